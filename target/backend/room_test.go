package backend

import (
	"errors"
	"math/rand/v2"
	"os"
	"sync"
	"syscall"
	"testing"

	"github.com/viablk/viablk/internal/block"
	"golang.org/x/sys/unix"
)

// Callers write, trim and zero the same chunks: no write meets a hole.
func TestNoWriteMeetsAHole(t *testing.T) {
	const size, chunk = 4 << 20, 1 << chunkShift
	k, disk, _ := openStrict(t, size)
	var callers sync.WaitGroup
	for seed := range uint64(8) {
		callers.Go(func() {
			random := rand.New(rand.NewPCG(seed, 7))
			p := make([]byte, 3*chunk)
			for range 1500 {
				n := 512 * (1 + random.Int64N(16))
				if random.IntN(8) == 0 {
					n = 512 * (1 + random.Int64N(3*chunk/512))
				}
				off := 512 * random.Int64N((size-n)/512)
				var err error
				switch random.IntN(8) {
				case 0, 1:
					err = disk.Trim(off, n)
				case 2:
					err = disk.WriteZeroes(off, n, 0)
				case 3:
					_, err = disk.WriteAtFUA(p[:n], off)
				default:
					_, err = disk.WriteAt(p[:n], off)
				}
				if err != nil {
					t.Errorf("%d bytes at %d: %v", n, off, err)
					return
				}
			}
		})
	}
	callers.Wait()
	if k.allocations.Load() == 0 {
		t.Error("nothing was allocated")
	}
}

// A punch that ends while a neighbour in its chunk allocates: the chunk is not
// known.
func TestPunchWhileTheChunkIsAllocated(t *testing.T) {
	k, disk, _ := openStrict(t, 1<<20)
	once := sync.Once{}
	k.allocated = func() {
		once.Do(func() {
			if err := disk.Trim(8192, 4096); err != nil {
				t.Error(err)
			}
		})
	}
	for _, off := range []int64{0, 8192} {
		if _, err := disk.WriteAt(fill(4096, 1), off); err != nil {
			t.Fatal(err)
		}
	}
	if n := k.allocations.Load(); n != 2 {
		t.Errorf("%d allocations, want 2", n)
	}
}

// An allocation that begins and ends while a neighbour in its chunk punches:
// the chunk is not known when the punch has ended.
func TestAllocationWhileTheChunkIsPunched(t *testing.T) {
	k, disk, _ := openStrict(t, 1<<20)
	k.punching = func() {
		if _, err := disk.WriteAt(fill(4096, 1), 0); err != nil {
			t.Error(err)
		}
	}
	if err := disk.Trim(8192, 4096); err != nil {
		t.Fatal(err)
	}
	if _, err := disk.WriteAt(fill(4096, 1), 8192); err != nil {
		t.Fatal(err)
	}
	if n := k.allocations.Load(); n != 2 {
		t.Errorf("%d allocations, want 2", n)
	}
}

// A known chunk costs no system call any more, in the last part of the file
// too, until the file grows.
func TestKnownChunksAreNotAllocatedAgain(t *testing.T) {
	const size, chunk, chunks = 1<<20 + 4096, 1 << chunkShift, 1<<20>>chunkShift + 1
	k, disk, path := openStrict(t, size)
	write := func(want int64) {
		t.Helper()
		for off := int64(0); off < size; off += 4096 {
			if _, err := disk.WriteAt(fill(4096, 1), off); err != nil {
				t.Fatal(err)
			}
		}
		if n := k.allocations.Swap(0); n != want {
			t.Errorf("%d allocations, want %d", n, want)
		}
	}
	write(chunks)
	write(0)
	if err := os.Truncate(path, size+8192); err != nil {
		t.Fatal(err)
	}
	write(1)
	write(0)
	if err := disk.Trim(chunk-4096, 8192); err != nil { // of two chunks
		t.Fatal(err)
	}
	write(2)
	if err := disk.WriteZeroes(0, 1<<20, block.NoHole); err != nil {
		t.Fatal(err)
	}
	write(0)
}

// A file system that does not allocate is asked once. Of its failures only the
// lack of room is the answer to a write.
func TestAllocationThatFails(t *testing.T) {
	for _, c := range []struct {
		errno, write syscall.Errno
		calls        int
	}{
		{unix.EOPNOTSUPP, 0, 1},
		{unix.ENOSYS, 0, 1},
		{unix.EIO, 0, 3},
		{unix.ENOSPC, unix.ENOSPC, 6}, // the chunk, and the request alone
		{unix.EDQUOT, unix.EDQUOT, 6},
	} {
		t.Run(c.errno.Error(), func(t *testing.T) {
			fails := true
			k := &broken{onAllocate: func(mode uint32) (error, bool) {
				return c.errno, fails && mode == unix.FALLOC_FL_KEEP_SIZE
			}}
			disk, _ := openBroken(t, k)
			k.allocations = nil
			for range 3 {
				_, err := disk.WriteAt(fill(512, 1), 0)
				wantErrno(t, "write", err, c.write)
			}
			if len(k.allocations) != c.calls {
				t.Errorf("%d allocations, want %d", len(k.allocations), c.calls)
			}
			k.mu.Lock()
			fails = false
			k.mu.Unlock()
			if _, err := disk.WriteAtFUA(fill(512, 1), 0); err != nil {
				t.Errorf("durable write with room: %v", err)
			}
			if err := disk.Sync(); err != nil {
				t.Errorf("flush: %v", err)
			}
		})
	}
}

// The map against a plain one.
func TestRoomIsAMap(t *testing.T) {
	const chunks = 3*leafChunks + 100
	random := rand.New(rand.NewPCG(3, 5))
	r, model := new(room), make([]bool, chunks)
	type running struct {
		number      int
		first, last int64
		void        bool
	}
	var claims []running
	for step := range 20_000 {
		first := random.Int64N(chunks)
		if random.IntN(2) == 0 {
			first = leafChunks*(1+first%3) - 8 + first%16 // where leaves meet
		}
		last := min(first+random.Int64N(1+1<<random.IntN(10)), chunks-1)
		off, n := first<<chunkShift, (last-first+1)<<chunkShift
		switch random.IntN(6) {
		case 0, 1:
			claims = append(claims, running{r.begin(first, last, r.size.Load()), first, last, false})
		case 2, 3:
			if len(claims) > 0 {
				i := random.IntN(len(claims))
				c := claims[i]
				claims = append(claims[:i], claims[i+1:]...)
				allocated := random.IntN(4) > 0
				r.end(c.number, allocated)
				for chunk := c.first; chunk <= c.last && allocated && !c.void; chunk++ {
					model[chunk] = true
				}
			}
		case 4:
			r.forget(off, n)
			for chunk := first; chunk <= last; chunk++ {
				model[chunk] = false
			}
			for i := range claims {
				c := &claims[i]
				c.void = c.void || c.first <= last && first <= c.last
			}
		}
		all := true
		for chunk := first; chunk <= last; chunk++ {
			all = all && model[chunk]
		}
		if got := r.knows(off, n); got != all {
			t.Fatalf("step %d: chunks %d to %d are known: %v, want %v", step, first, last, got, all)
		}
	}
}

// Chunks behind the map's end are never known.
func TestRoomHasAnEnd(t *testing.T) {
	r := new(room)
	const end = maxLeaves * leafChunks
	r.end(r.begin(end-2, end+1, 0), true)
	for chunk, want := range map[int64]bool{end - 3: false, end - 2: true, end - 1: true, end: false, end + 1: false} {
		if got := r.knows(chunk<<chunkShift, 1<<chunkShift); got != want {
			t.Errorf("chunk %d of %d is known: %v", chunk, int64(end), got)
		}
	}
	r.forget((end-1)<<chunkShift, 4<<chunkShift)
	if r.knows((end-1)<<chunkShift, 1) || !r.knows((end-2)<<chunkShift, 1) {
		t.Error("the last chunk is not forgotten alone")
	}
}

// An allocation up to a size that the file has no more does not make the last
// chunk known.
func TestAllocationWhileTheFileGrows(t *testing.T) {
	const size = 1<<20 + 4096
	k, disk, path := openStrict(t, size)
	grown := false
	k.allocated = func() {
		if grown {
			return
		}
		grown = true
		if err := os.Truncate(path, size+8192); err != nil {
			t.Error(err)
		}
		if _, err := disk.WriteAt(fill(512, 1), 0); err != nil { // it sees the size
			t.Error(err)
		}
	}
	for range 2 {
		if _, err := disk.WriteAt(fill(512, 1), 1<<20); err != nil {
			t.Fatal(err)
		}
	}
	if n := k.allocations.Load(); n != 3 {
		t.Errorf("%d allocations, want 3", n)
	}
}

// A claim for a size that is not the file's makes nothing known.
func TestClaimForAnotherSize(t *testing.T) {
	const chunk = 1 << chunkShift
	r := new(room)
	r.resized(2 * chunk)
	r.end(r.begin(0, 1, chunk+4096), true)
	if r.knows(0, 1) || r.knows(chunk, 1) {
		t.Error("chunks of a file of another size are known")
	}
	r.end(r.begin(0, 1, 2*chunk), true)
	if !r.knows(0, 2*chunk) {
		t.Error("chunks of a file of this size are not known")
	}
}

func TestKnownChunksDoNotAllocate(t *testing.T) {
	d := mustOpen(t, "file:"+newFile(t, 1<<20), Options{})
	defer d.Close()
	f := d.(*file)
	if err := errors.Join(f.within(0, 1<<20, unix.EINVAL), f.reserve(0, 1<<20, false)); err != nil {
		t.Fatal(err)
	}
	if n := testing.AllocsPerRun(100, func() {
		if !f.ready(4096, 1<<19) || f.reserve(4096, 1<<19, true) != nil {
			t.Fatal("not known")
		}
	}); n != 0 {
		t.Errorf("%v allocations", n)
	}
}
