package backend

import (
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/viablk/viablk/internal/block"
	"github.com/viablk/viablk/target/backend/checksum"
	"golang.org/x/sys/unix"
)

// quietOffset is a block that is written once, and then only read.
const quietOffset = 60 << 20

// crcCut is a disk with checksums on a machine that loses power.
type crcCut struct {
	*cutDisk
	sums string
}

func newCrcCut(t testing.TB) *crcCut {
	t.Helper()
	base, model := cutBase(t)
	model.random = rand.New(rand.NewPCG(*cutSeed, 7))
	d := &crcCut{&cutDisk{t: t, path: base, model: model}, base + ".sums"}
	device, err := d.open(0, 0)
	if err != nil {
		t.Fatal(err)
	}
	disk := viewOf(t, device)
	if _, err := disk.WriteAt(fill(4096, 5), quietOffset); err != nil {
		t.Fatal(err)
	}
	if err := disk.Close(); err != nil {
		t.Fatal(err)
	}
	if err := device.Close(); err != nil {
		t.Fatal(err)
	}
	d.kernel.powerCut(t)
	return d
}

// open opens the disk on a machine that was started now.
func (d *crcCut) open(seed uint64, cutAt int) (block.Device, error) {
	d.boots++
	return d.again(newCutKernel(seed, cutAt))
}

// again opens the disk. A flush clears each mark that it can.
func (d *crcCut) again(k *cutKernel) (block.Device, error) {
	d.t.Helper()
	d.kernel = k
	acceptLosses(d.t, d.path)
	o := fileOptions{lock: true, identity: true, io: ioThreads, workers: 1, boot: [16]byte{d.boots}}
	inner, err := openFile(d.path, o, k)
	if err != nil {
		return nil, err
	}
	c, err := openCrc(inner, d.sums, o, k)
	if err != nil {
		kill(d.t, inner)
		return nil, err
	}
	c.(*crc).idle = 0
	return c, nil
}

// cut ends the machine by a power cut.
func (d *crcCut) cut(device block.Device) {
	d.t.Helper()
	if device != nil {
		killSums(d.t, device)
	}
	d.kernel.powerCut(d.t)
}

// sumsFile is a file of checksums on the medium.
type sumsFile struct{ *os.File }

func (f sumsFile) ReadAt(p []byte, off int64) error  { _, err := f.File.ReadAt(p, off); return err }
func (f sumsFile) WriteAt(p []byte, off int64) error { _, err := f.File.WriteAt(p, off); return err }

// checked returns the blocks whose sums hold by what the medium says.
func (d *crcCut) checked() (blocks []int64) {
	d.t.Helper()
	file, err := os.Open(d.sums)
	if err != nil {
		d.t.Fatal(err)
	}
	defer file.Close()
	f := sumsFile{file}
	st, err := file.Stat()
	if err != nil {
		d.t.Fatal(err)
	}
	h, err := checksum.ReadHeader(f, st.Size())
	if err != nil {
		d.t.Fatal(err)
	}
	marks, err := checksum.OpenIntent(f, h)
	if err != nil {
		d.t.Fatal(err)
	}
	for _, off := range append([]int64{quietOffset}, cutZone[:]...) {
		region := off / checksum.RegionSize
		if marks.Marked(region) {
			continue
		}
		if off+checksum.BlockSize > h.Size && fileSize(d.t, d.path) != h.Size {
			continue // the last block, which has grown, or is not there yet
		}
		s := new(checksum.Sums)
		if err := s.Load(f, h, region); err != nil {
			d.t.Fatalf("a region without a mark: %v", err)
		}
		if s[off%checksum.RegionSize/checksum.BlockSize].Load() != checksum.None {
			blocks = append(blocks, off)
		}
	}
	return blocks
}

// openCorrupt opens the disk with bits that have flipped where no region is
// marked, and wants each to be found. Then they flip back.
func (d *crcCut) openCorrupt(open func() (block.Device, error)) (device block.Device, found int, err error) {
	d.t.Helper()
	blocks := d.checked()
	for _, off := range blocks {
		corruptClosed(d.t, d.path, off)
	}
	if device, err = open(); err == nil {
		disk := viewOf(d.t, device)
		for _, off := range blocks {
			if _, err := disk.ReadAt(make([]byte, 4096), off); block.Errno(err) != unix.EIO {
				d.t.Errorf("a bit that flipped at %d is not found: %v", off, err)
			}
		}
		if err := disk.Close(); err != nil {
			d.t.Error(err)
		}
	}
	for _, off := range blocks {
		corruptClosed(d.t, d.path, off)
	}
	return device, len(blocks), err
}

// lives has the disk live through a power cut amid a system call, another one
// soon after its machine started and its first process was killed, and an
// orderly life. It returns whether the first cut came to be, and how many flips
// were found.
func (d *crcCut) lives(seed uint64, cutAt int) (cut bool, found int) {
	t := d.t
	const uses = 24
	open := func(at int) (device block.Device, err error) {
		n := 0
		device, n, err = d.openCorrupt(func() (block.Device, error) { return d.open(seed, at) })
		found += n
		return device, err
	}
	for _, at := range []int{cutAt, 1 + d.model.random.IntN(30)} {
		device, err := open(at)
		if err == nil && at != cutAt {
			killSums(t, device)
			device, err = d.again(d.kernel)
		}
		if err == nil {
			d.check(device, powerCut)
			d.uses(device, uses)
		} else if !d.kernel.off {
			t.Fatal(err)
		}
		cut = cut || at == cutAt && d.kernel.off
		d.cut(device)
	}
	device, err := open(0)
	if err != nil {
		t.Fatal(err)
	}
	d.check(device, powerCut)
	d.uses(device, uses)
	killSums(t, device) // the process alone
	if device, err = d.again(d.kernel); err != nil {
		t.Fatal(err)
	}
	d.check(device, closed)
	d.uses(device, uses)
	if err := device.Close(); err != nil {
		t.Fatal(err)
	}
	d.kernel.powerCut(t)
	if device, err = open(0); err != nil {
		t.Fatal(err)
	}
	d.check(device, closed)
	d.cut(device)
	return cut, found
}

// Power cuts amid every system call of a life of a disk with checksums. Flushed
// writes are there, no read of them raises an alarm, and a bit that flips where
// nothing was being written is found.
func TestChecksumsLosePower(t *testing.T) {
	cuts, found := 0, 0
	for seed := *cutSeed; seed < *cutSeed+uint64(*cutSeeds); seed++ {
		for cutAt := 1; ; cutAt += cutStep() {
			d := newCrcCut(t)
			d.model.random = rand.New(rand.NewPCG(seed, 7))
			cut, n := d.lives(seed, cutAt)
			if t.Failed() {
				t.Fatalf("power cut %d: replay it with -cow.seed %d -cow.seeds 1", cutAt, seed)
			}
			if err := os.RemoveAll(filepath.Dir(d.path)); err != nil {
				t.Fatal(err)
			}
			found += n
			if !cut {
				break
			}
			cuts++
		}
	}
	t.Logf("%d power cuts, %d flips", cuts, found)
	if found < cuts {
		t.Error("marks are hardly ever cleared: no flip can be found")
	}
}

// A process that ends amid every system call of a life of a disk with
// checksums, and a power cut amid a life of another one: that finds marks that
// the first one failed to make durable.
func TestChecksumsAreKilled(t *testing.T) {
	for cutAt := 1; ; cutAt += cutStep() {
		d := newCrcCut(t)
		device, err := d.open(*cutSeed, cutAt)
		if err == nil {
			d.uses(device, 40)
			killSums(t, device)
		} else if !d.kernel.off {
			t.Fatal(err)
		}
		over := !d.kernel.off
		d.kernel.off, d.kernel.cutAt = false, d.kernel.calls+1+d.model.random.IntN(12)
		device, _, err = d.openCorrupt(func() (block.Device, error) { return d.again(d.kernel) })
		if err == nil {
			d.checkUndurable(device)
			d.uses(device, 8)
		} else if device = nil; !d.kernel.off {
			t.Fatal(err)
		}
		d.cut(device)
		if device, err = d.open(0, 0); err != nil {
			t.Fatal(err)
		}
		d.check(device, powerCut)
		if err := device.Close(); err != nil {
			t.Error(err)
		}
		d.kernel.close(t)
		if t.Failed() {
			t.Fatalf("killed amid call %d: replay it with -cow.seed %d", cutAt, *cutSeed)
		}
		if over {
			t.Logf("%d kills", cutAt-1)
			return
		}
	}
}

// checkUndurable is check after a killed process, of a machine that may still
// lose what it holds.
func (d *crcCut) checkUndurable(device block.Device) {
	d.t.Helper()
	before := d.model.may
	for i := range before {
		before[i] = slices.Clone(before[i])
	}
	d.check(device, killed)
	for i, now := range d.model.now {
		d.model.may[i] = append(before[i], now)
	}
}
