package backend

import (
	"bytes"
	"errors"
	"log/slog"
	"math/rand/v2"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/viablk/viablk/internal/block"
	"github.com/viablk/viablk/target/backend/checksum"
)

// growSums grows a disk with checksums, and returns a view of it.
func growSums(t testing.TB, d *crc, size int64) *block.Disk {
	t.Helper()
	if err := grow(d, size); err != nil || d.Info().Size != size {
		t.Fatalf("the disk has %d bytes instead of %d: %v", d.Info().Size, size, err)
	}
	return viewOf(t, d)
}

// A disk grows while it is open, from and to ends of blocks, regions and
// groups, and amid them. Blocks of before stay checked, new ones are not until
// they are written, and from then on they are, also after the next opening.
func TestChecksumsGrow(t *testing.T) {
	const region, group = checksum.RegionSize, 32256 * checksum.RegionSize
	sizes := []int64{4096, 8192 + 512, 12288 - 512, region, region + 512, 3 * region, 300*region - 512, group, group + 5*region + 1024}
	for _, killed := range []bool{false, true} {
		b := newSumsBed(t, sizes[0])
		d := b.open()
		disk := viewOf(t, d)
		if _, err := disk.WriteAt(fill(4096, 1), 0); err != nil {
			t.Fatal(err)
		}
		for i, size := range sizes[1:] {
			before := sizes[i]
			disk = growSums(t, d, size)
			if end := fileSize(t, b.sums); end != checksum.End(size) {
				t.Fatalf("checksums of %d bytes have %d", size, end)
			}
			last := size - (size-1)%4096 - 1 // the first byte of the last block
			for _, off := range []int64{before - 1, min(before+4096, size-1), last} {
				want := unix.Errno(0)
				if off < before && before%4096 == 0 {
					want = unix.EIO // a block that is as it was
				}
				flip(t, b.path, off)
				_, err := disk.ReadAt(make([]byte, 1), off)
				wantErrno(t, "read of a block that changed", err, want)
				flip(t, b.path, off)
			}
			for _, off := range []int64{0, before &^ 4095, last} {
				n := min(4096, size-off)
				if n <= 0 {
					continue
				}
				if _, err := disk.WriteAt(fill(int(n), byte(i)), off); err != nil {
					t.Fatal(err)
				}
				flip(t, b.path, off+n-1)
				_, err := disk.ReadAt(make([]byte, 1), off)
				wantErrno(t, "read of a corrupt block", err, unix.EIO)
				flip(t, b.path, off+n-1)
				_, err = disk.ReadAt(make([]byte, n), off)
				wantErrno(t, "read of a block", err, 0)
			}
			if i%3 != 2 {
				continue
			}
			if err := disk.Close(); err != nil {
				t.Fatal(err)
			}
			if killed {
				killSums(t, d)
			} else {
				b.close(d)
				corruptClosed(t, b.path, last)
			}
			d = b.open()
			disk = viewOf(t, d)
			if !killed {
				_, err := disk.ReadAt(make([]byte, 1), last)
				wantErrno(t, "read of a block that changed while the disk was closed", err, unix.EIO)
				flip(t, b.path, last)
			}
			_, err := disk.ReadAt(make([]byte, 1), last)
			wantErrno(t, "read after the next opening", err, 0)
		}
		if err := disk.Close(); err != nil {
			t.Fatal(err)
		}
		b.close(d)
	}
}

// The last block is no whole one, and clients read and write it, and scrubs
// run, while it becomes one: no alarm, and nothing of the block is lost.
func TestChecksumsGrowUnderClients(t *testing.T) {
	const start = checksum.RegionSize - 20*4096
	for _, options := range []string{"?io=threads", "?direct=1&io=uring"} {
		b := newSumsBed(t, start+512)
		d := mustOpen(t, b.spec(options), Options{}).(*crc)
		d.idle = 0
		grain := int64(d.Info().MinimumBlock)
		stop := make(chan struct{})
		var users sync.WaitGroup
		for seed := range uint64(3) {
			users.Go(func() {
				random := rand.New(rand.NewPCG(seed, 3))
				for {
					select {
					case <-stop:
						return
					default:
					}
					disk, err := block.NewDisk(d)
					if err != nil {
						t.Error(err)
						return
					}
					size, _ := disk.Size()
					for off := max(start, size-8192) &^ (grain - 1); off < size && err == nil; off += grain {
						n := min(grain*(1+random.Int64N(16)), size-off)
						if random.IntN(2) == 0 {
							_, err = disk.WriteAt(fill(int(n), byte(off)), off)
						} else {
							_, err = disk.ReadAt(make([]byte, n), off)
						}
					}
					if err = errors.Join(err, disk.Close()); err != nil {
						t.Error(err)
						return
					}
				}
			})
		}
		size := d.Info().Size
		for range 60 {
			size += max(grain, 1536)
			if err := grow(d, size); err != nil {
				t.Fatal(err)
			}
			if status := scrubAll(t, d); !status.Clean() {
				t.Errorf("a scrub says %+v", status)
			}
		}
		close(stop)
		users.Wait()
		if n := d.mismatches.Load(); n > 0 {
			t.Errorf("%d false alarms", n)
		}
		readAll(t, d)
		b.close(d)
	}
}

// follow asks a disk for its size, and waits until its checksums have followed.
func follow(d *crc) int64 {
	d.Info()
	d.follower.mu.Lock()
	done := d.follower.done
	d.follower.mu.Unlock()
	if done != nil {
		<-done
	}
	return d.Info().Size
}

// A disk that grows from outside, as a block device, has its size of before
// until its checksums follow.
func TestChecksumsFollowTheirDisk(t *testing.T) {
	b := newSumsBed(t, 1<<20+512)
	d := mustOpen(t, b.spec("?lock=0"), Options{}).(*crc)
	if _, err := viewOf(t, d).WriteAt(fill(1<<20+512, 1), 0); err != nil {
		t.Fatal(err)
	}
	for _, size := range []int64{2 << 20, 20<<20 + 1024} {
		if err := os.Truncate(b.path, size); err != nil {
			t.Fatal(err)
		}
		before := d.size.Load()
		if got := d.Info().Size; got != before && fileSize(t, b.sums) != checksum.End(size) {
			t.Errorf("a client is told %d bytes, and the checksums have %d", got, fileSize(t, b.sums))
		}
		if got := follow(d); got != size || fileSize(t, b.sums) != checksum.End(size) {
			t.Fatalf("the disk has %d bytes instead of %d, its checksums %d", got, size, fileSize(t, b.sums))
		}
		disk := viewOf(t, d)
		if _, err := disk.WriteAt(fill(4096, 2), size&^4095-4096); err != nil {
			t.Fatal(err)
		}
		flip(t, b.path, size&^4095-1)
		_, err := disk.ReadAt(make([]byte, 1), size&^4095-4096)
		wantErrno(t, "read of a corrupt block", err, unix.EIO)
		flip(t, b.path, size&^4095-1)
	}
	b.close(d)
	if d.Info(); d.follower.failed != 0 {
		t.Error("it failed to follow")
	}
}

// A disk that shrinks while it is open is as one without checksums: its size is
// that of its whole blocks, requests behind that fail, and the others go on. A
// block that comes back is not what was written, until it is.
func TestChecksumsOfADiskThatShrinks(t *testing.T) {
	const size, small = 6 << 20, 1<<20 + 512
	plain := newFile(t, size)
	b := usedSums(t, size)
	f := mustOpen(t, "file:"+plain+"?lock=0", Options{})
	d := mustOpen(t, b.spec("?lock=0"), Options{}).(*crc)
	disk, other := viewOf(t, d), viewOf(t, f)
	if err := errors.Join(os.Truncate(plain, small), os.Truncate(b.path, small)); err != nil {
		t.Fatal(err)
	}
	if got := follow(d); got != 1<<20 {
		t.Errorf("the disk has %d bytes", got)
	}
	for _, off := range []int64{2 << 20, size - 4096} {
		for name, call := range map[string]func(*block.Disk) error{
			"read":   func(d *block.Disk) error { _, err := d.ReadAt(make([]byte, 4096), off); return err },
			"write":  func(d *block.Disk) error { _, err := d.WriteAt(make([]byte, 4096), off); return err },
			"zeroes": func(d *block.Disk) error { return d.WriteZeroes(off, 4096, 0) },
			"trim":   func(d *block.Disk) error { return d.Trim(off, 4096) },
		} {
			wantErrno(t, name+" behind the end", call(disk), unix.Errno(block.Errno(call(other))))
		}
	}
	got := make([]byte, 1<<20)
	if _, err := disk.ReadAt(got, 0); err != nil || !bytes.Equal(got, fill(1<<20, 1)) {
		t.Errorf("what is left differs: %v", err)
	}
	flip(t, b.path, 4096)
	_, err := disk.ReadAt(make([]byte, 1), 4096)
	wantErrno(t, "read of a corrupt block", err, unix.EIO)
	flip(t, b.path, 4096)
	wantErrno(t, "flush", disk.Sync(), 0)

	if err := os.Truncate(b.path, 2*size); err != nil {
		t.Fatal(err)
	}
	if got := follow(d); got != 2*size {
		t.Errorf("the disk has %d bytes", got)
	}
	disk = viewOf(t, d)
	at := int64(3 << 20)
	_, err = disk.ReadAt(make([]byte, 1), at)
	wantErrno(t, "read of a block that was lost", err, unix.EIO)
	_, err = disk.WriteAt(fill(4096, 2), at)
	wantErrno(t, "write", err, 0)
	_, err = disk.ReadAt(make([]byte, 4096), at)
	wantErrno(t, "read after that", err, 0)
	_, err = disk.ReadAt(make([]byte, size), size)
	wantErrno(t, "read of what is new", err, 0)
	b.close(d)
	if err := f.Close(); err != nil {
		t.Fatal(err)
	}
}

// refusing is a kernel that refuses to make a file longer.
type refusing struct {
	linux
	refuses bool
	calls   int
}

func (r *refusing) truncate(fd int, size int64) error {
	if r.calls++; r.refuses {
		return unix.EFBIG
	}
	return r.linux.truncate(fd, size)
}

// Checksums that cannot follow their disk leave it its size, once for each
// size; when they can, an administrator says so.
func TestChecksumsCannotFollow(t *testing.T) {
	b := newSumsBed(t, 1<<20)
	k := &refusing{}
	c := b.openOn(k)
	var log bytes.Buffer
	c.log = slog.New(slog.NewTextHandler(&log, nil))
	k.refuses = true
	if err := os.Truncate(b.path, 2<<20); err != nil {
		t.Fatal(err)
	}
	for range 3 {
		if got := follow(c); got != 1<<20 {
			t.Errorf("the disk has %d bytes", got)
		}
	}
	if n := strings.Count(log.String(), "event=checksums_not_extended"); n != 1 || k.calls != 1 {
		t.Errorf("after %d attempts the log says: %s", k.calls, log.String())
	}
	if err := grow(c, 2<<20); block.Errno(err) != unix.EFBIG {
		t.Errorf("asked to grow: %v", err)
	}
	k.refuses = false
	disk := growSums(t, c, 2<<20)
	if _, err := disk.WriteAt(fill(2<<20, 1), 0); err != nil {
		t.Fatal(err)
	}
	if err := disk.Close(); err != nil {
		t.Fatal(err)
	}
	b.close(c)
}

// A size that is not durable in the file of checksums is told to no client, and
// every later flush fails.
func TestGrownChecksumsNotDurable(t *testing.T) {
	b := usedSums(t, 1<<20)
	k := &syncFailing{path: b.sums}
	c := b.openOn(k)
	k.failing.Store(true)
	if err := grow(c, 2<<20); block.Errno(err) != unix.EIO || c.Info().Size != 1<<20 {
		t.Errorf("the disk has %d bytes: %v", c.Info().Size, err)
	}
	k.failing.Store(false)
	disk := viewOf(t, c)
	wantErrno(t, "flush", disk.Sync(), unix.EIO)
	if _, err := PrepareGrow(c, 2<<20); !errors.Is(err, ErrFixedSize) {
		t.Errorf("after a failed flush: %v", err)
	}
	if err := disk.Close(); err != nil {
		t.Fatal(err)
	}
	if err := c.Close(); !errors.Is(err, unix.EIO) {
		t.Errorf("closed with %v", err)
	}
	d := b.open()
	if got := readAll(t, d); len(got) != 2<<20 || !bytes.Equal(got[:1<<20], fill(1<<20, 1)) {
		t.Error("the disk differs after the next opening")
	}
	b.close(d)
}

// A disk grows, and its last block is written as a whole one, after a scrub has
// chosen that block and before it reads it.
func TestChecksumsGrowAmidScrub(t *testing.T) {
	b := usedSums(t, 8192+512)
	d := b.open()
	now, grown := time.Second, false
	d.scrubs.clock = func() time.Duration {
		before := now
		if !grown {
			now = 0 // the first piece waits
		}
		return before
	}
	d.scrubs.sleep = func(time.Duration, <-chan struct{}, <-chan struct{}) {
		now, grown = time.Hour, true
		if _, err := growSums(t, d, 4<<20).WriteAt(fill(4<<20, 3), 0); err != nil {
			t.Error(err)
		}
	}
	if err := StartScrub(d, ScrubOptions{Rate: 4096}); err != nil {
		t.Fatal(err)
	}
	<-d.scrubs.latestScrub().done
	if status, _ := ScrubOf(d); status.State != ScrubFinished || !status.Clean() || status.Size != 4<<20 || !grown {
		t.Errorf("the scrub says %+v, grown: %v", status, grown)
	}
	b.close(d)
}

// A region is marked, the disk is killed, shrinks, and grows again while it is
// open: the region is as a new one.
func TestChecksumsGrowOverOldMarks(t *testing.T) {
	const size, off = 20 << 20, 17 << 20
	b := newSumsBed(t, size)
	d := b.open()
	if _, err := viewOf(t, d).WriteAt(fill(4096, 1), off); err != nil {
		t.Fatal(err)
	}
	killSums(t, d)
	st, err := os.Stat(b.path)
	if err = errors.Join(err, os.Truncate(b.path, 1<<20), os.Chtimes(b.path, st.ModTime(), st.ModTime())); err != nil {
		t.Fatal(err)
	}
	d = b.open()
	disk := growSums(t, d, size)
	readAll(t, d)
	if _, err := disk.WriteAt(fill(4096, 2), off); err != nil {
		t.Fatal(err)
	}
	flip(t, b.path, off)
	_, err = disk.ReadAt(make([]byte, 4096), off)
	wantErrno(t, "read of a corrupt block", err, unix.EIO)
	b.close(d)
}
