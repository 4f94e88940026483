package backend

import (
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"sync"
	"testing"

	"github.com/viablk/viablk/internal/block"
	"github.com/viablk/viablk/target/backend/backendtest"
	"github.com/viablk/viablk/target/backend/checksum"
	"golang.org/x/sys/unix"
)

// withSums returns an opener of disks with new checksums.
func withSums(wrappers string, open func(t testing.TB) (spec string)) func(testing.TB) block.Device {
	return func(t testing.TB) block.Device {
		t.Helper()
		return mustOpen(t, fmt.Sprintf("%scrc:%s,%s", wrappers, open(t), filepath.Join(t.TempDir(), "sums")), Options{})
	}
}

// specOf returns the specification of a new file.
func specOf(before, options string) func(t testing.TB) string {
	return func(t testing.TB) string { return before + "file:" + newFile(t, diskSize) + options }
}

func TestChecksums(t *testing.T) {
	memory := func(before string) func(testing.TB) string {
		return func(testing.TB) string { return fmt.Sprintf("%smemory:%d", before, diskSize) }
	}
	for name, spec := range map[string]func(before string) func(testing.TB) string{
		"memory":  memory,
		"threads": func(before string) func(testing.TB) string { return specOf(before, "?io=threads") },
		"direct":  func(before string) func(testing.TB) string { return specOf(before, "?direct=1&io=uring") },
	} {
		t.Run(name, func(t *testing.T) {
			backendtest.Run(t, withSums("", spec("")), backendtest.Options{Broken: withSums("", spec("fault:write=EIO:"))})
		})
	}
}

// A disk whose flush does not cover its other queues gets every request of one
// queue.
func TestChecksumsOfOneConnection(t *testing.T) {
	open := func(before string) func(t testing.TB) block.Device {
		return func(t testing.TB) block.Device {
			t.Helper()
			no := false
			inner, err := block.Adjust(mustOpen(t, fmt.Sprintf("%smemory:%d", before, diskSize), Options{}), block.Adjustments{MultiConn: &no})
			if err != nil {
				t.Fatal(err)
			}
			d, err := openCrc(inner, filepath.Join(t.TempDir(), "sums"), fileOptions{lock: true}, linux{})
			if err != nil {
				t.Fatal(err)
			}
			return d
		}
	}
	backendtest.Run(t, open(""), backendtest.Options{Broken: open("fault:write=EIO:")})
}

func TestReadOnlyChecksums(t *testing.T) {
	backendtest.Run(t, func(t testing.TB) block.Device {
		spec := fmt.Sprintf("crc:file:%s,%s", newFile(t, diskSize), filepath.Join(t.TempDir(), "sums"))
		d := mustOpen(t, spec, Options{})
		if _, err := viewOf(t, d).WriteAt(fill(1<<20, 1), 4096); err != nil {
			t.Fatal(err)
		}
		if err := d.Close(); err != nil {
			t.Fatal(err)
		}
		return mustOpen(t, spec, Options{ReadOnly: true})
	}, backendtest.Options{})
}

// sumsBed is a file with checksums.
type sumsBed struct {
	t          testing.TB
	path, sums string
}

func newSumsBed(t testing.TB, size int64) *sumsBed {
	t.Helper()
	path := newFile(t, size)
	return &sumsBed{t, path, path + ".sums"}
}

// openOn opens the disk on a kernel.
func (b *sumsBed) openOn(k kernel) *crc {
	b.t.Helper()
	o := fileOptions{lock: true, identity: true, io: ioThreads}
	inner, err := openFile(b.path, o, k)
	if err != nil {
		b.t.Fatal(err)
	}
	d, err := openCrc(inner, b.sums, o, k)
	if err != nil {
		b.t.Fatal(err)
	}
	return d.(*crc)
}

// spec returns the specification of the disk.
func (b *sumsBed) spec(options string) string {
	return "crc:file:" + b.path + options + "," + b.sums
}

func (b *sumsBed) open() *crc {
	b.t.Helper()
	return mustOpen(b.t, b.spec(""), Options{}).(*crc)
}

func (b *sumsBed) close(d block.Device) {
	b.t.Helper()
	if err := d.Close(); err != nil {
		b.t.Error(err)
	}
}

// flip flips a bit of a file, beneath the disk.
func flip(t testing.TB, path string, off int64) {
	t.Helper()
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	b := make([]byte, 1)
	if _, err = f.ReadAt(b, off); err == nil {
		b[0] ^= 0x10
		_, err = f.WriteAt(b, off)
	}
	if err != nil {
		t.Fatal(err)
	}
}

// A bit flips beneath the disk: each read and each partial write of its block
// fails, every other one succeeds, and a write of the whole block repairs it.
func TestCorruptBlock(t *testing.T) {
	const size = 9<<20 + 512 // three regions, and a block that is no whole one
	for _, at := range []int64{4096*7 + 4095, checksum.RegionSize, size - 1} {
		for _, again := range []bool{false, true} {
			b := newSumsBed(t, size)
			d := b.open()
			disk := viewOf(t, d)
			if _, err := disk.WriteAt(fill(size, 3), 0); err != nil {
				t.Fatal(err)
			}
			if again { // the sums come from the file
				if err := disk.Close(); err != nil {
					t.Fatal(err)
				}
				b.close(d)
				corruptClosed(t, b.path, at)
				d = b.open()
				disk = viewOf(t, d)
			} else {
				flip(t, b.path, at)
			}
			block := at &^ 4095
			n := min(4096, size-block)
			p := make([]byte, size)
			_, err := disk.ReadAt(p, 0)
			wantErrno(t, "read of all", err, unix.EIO)
			_, err = disk.ReadAt(p[:n], block)
			wantErrno(t, "read of the block", err, unix.EIO)
			_, err = disk.ReadAt(p[:1], block)
			wantErrno(t, "read of a byte of the block", err, unix.EIO)
			_, err = disk.WriteAt(p[:1], block+1)
			wantErrno(t, "write of a byte of the block", err, unix.EIO)
			wantErrno(t, "zeroes in the block", disk.WriteZeroes(block+1, 1, 0), unix.EIO)
			if n, ok := CorruptBlocks(newWrapper(d, wrapperRules{})); n != 5 || !ok {
				t.Errorf("%d reads of the block are counted instead of 5, %v", n, ok)
			}
			if block > 0 {
				_, err = disk.ReadAt(p[:block], 0)
				wantErrno(t, "read of what is before", err, 0)
			}
			if end := block + n; end < size {
				_, err = disk.ReadAt(p[end:], end)
				wantErrno(t, "read of what is behind", err, 0)
			}
			_, err = disk.WriteAt(fill(int(n), 4), block)
			wantErrno(t, "write of the block", err, 0)
			_, err = disk.ReadAt(p, 0)
			wantErrno(t, "read after that", err, 0)
			b.close(d)
		}
	}
}

// corruptClosed flips a bit of a closed disk, as a medium does: the time of the
// last change stays.
func corruptClosed(t testing.TB, path string, at int64) {
	t.Helper()
	st, err := os.Stat(path)
	if err != nil {
		t.Fatal(err)
	}
	flip(t, path, at)
	if err := os.Chtimes(path, st.ModTime(), st.ModTime()); err != nil {
		t.Fatal(err)
	}
}

// Random changes of any alignment against a plain model, with the disk closed
// or killed now and then: no alarm, and no sum that a block lacks.
func TestChecksumsAgainstModel(t *testing.T) {
	const size = 9<<20 + 512
	rounds := 15
	if testing.Short() {
		rounds = 3
	}
	for _, spec := range []string{"", "?direct=1"} {
		grain := int64(1)
		if spec != "" {
			grain = 512
		}
		b := newSumsBed(t, size)
		model := make([]byte, size)
		random := rand.New(rand.NewPCG(1, 2))
		for round := range rounds {
			d := mustOpen(t, b.spec(spec), Options{}).(*crc)
			disk := viewOf(t, d)
			for range 20 {
				if err := change(random, disk, model, grain); err != nil {
					t.Fatal(err)
				}
			}
			got := make([]byte, size)
			if _, err := disk.ReadAt(got, 0); err != nil || firstDifference(got, model) != size {
				t.Fatalf("round %d: the disk differs at %d, %v", round, firstDifference(got, model), err)
			}
			if err := disk.Close(); err != nil {
				t.Fatal(err)
			}
			if round%3 == 0 {
				killSums(t, d)
			} else {
				b.close(d)
			}
		}
	}
}

// killSums ends a disk as a killed process does.
func killSums(t testing.TB, d block.Device) {
	t.Helper()
	c := d.(*crc)
	c.follower.close()
	c.executor.Close()
	if err := c.disk.Close(); err != nil {
		t.Error(err)
	}
	if err := unix.Close(c.file.fd); err != nil {
		t.Error(err)
	}
	c.file.fd = -1
	if f, ok := c.inner.(*file); ok {
		kill(t, f)
	}
}

// Concurrent requests of any alignment that overlap raise no alarm, while marks
// are cleared as early as can be.
func TestOverlappingChecksums(t *testing.T) {
	path := newFile(t, 9<<20)
	for name, spec := range map[string]string{
		"memory": "memory:9M", "threads": "file:" + path + "?io=threads", "uring": "file:" + path + "?io=uring&direct=1",
	} {
		t.Run(name, func(t *testing.T) {
			d := mustOpen(t, "crc:"+spec+","+filepath.Join(t.TempDir(), "sums"), Options{}).(*crc)
			defer d.Close()
			d.idle = 0
			disk := viewOf(t, d)
			var users sync.WaitGroup
			for seed := range uint64(4) {
				users.Go(func() { overlap(t, disk, rand.New(rand.NewPCG(seed, 5)), int64(d.Info().MinimumBlock)) })
			}
			users.Wait()
			if n := d.mismatches.Load(); n > 0 {
				t.Errorf("%d false alarms", n)
			}
		})
	}
}

// overlap uses a few blocks at the border of two regions.
func overlap(t testing.TB, disk *block.Disk, random *rand.Rand, grain int64) {
	const span = 16 * 4096
	start := int64(checksum.RegionSize) - span/2
	for range 1500 {
		off := random.Int64N(span/grain) * grain
		n := min(grain*(1+random.Int64N(3*4096/grain)), span-off)
		if random.IntN(2) == 0 {
			off, n = off&^4095, 4096
		}
		p := make([]byte, n)
		var err error
		switch random.IntN(12) {
		case 0:
			err = disk.Trim(start+off, n)
		case 1:
			err = disk.WriteZeroes(start+off, n, 0)
		case 2:
			err = disk.Sync()
		case 3, 4, 5, 6:
			for i := range p {
				p[i] = byte(random.Uint32())
			}
			if random.IntN(8) == 0 {
				_, err = disk.WriteAtFUA(p, start+off)
			} else {
				_, err = disk.WriteAt(p, start+off)
			}
		default:
			_, err = disk.ReadAt(p, start+off)
		}
		if err != nil {
			t.Errorf("%d bytes at %d: %v", n, start+off, err)
			return
		}
	}
}
