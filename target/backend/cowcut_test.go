package backend

import (
	"bytes"
	"flag"
	"math/rand/v2"
	"os"
	"path/filepath"
	"testing"

	"github.com/viablk/viablk/internal/block"
)

var (
	cutSeeds = flag.Int("cow.seeds", 2, "seeds of the power cuts of an overlay: each cuts amid every system call once")
	cutSeed  = flag.Uint64("cow.seed", 1, "the first seed")
)

// cutStep is how many system calls further the next cut is. The race detector
// finds nothing in these loops of one goroutine: with -short they do a part.
func cutStep() int {
	if testing.Short() {
		return 7
	}
	return 1
}

// cutDisk is an overlay on a machine that loses power.
type cutDisk struct {
	t      testing.TB
	base   string
	path   string
	boots  byte
	model  *cutModel
	kernel *cutKernel
}

// open opens the overlay on a machine that was started now.
func (d *cutDisk) open(seed uint64, cutAt int) (block.Device, error) {
	d.t.Helper()
	d.boots++
	return d.again(newCutKernel(seed, cutAt))
}

// again opens the overlay. A person has accepted that flushes failed: a machine
// that is off fails them, too.
func (d *cutDisk) again(k *cutKernel) (block.Device, error) {
	d.t.Helper()
	d.kernel = k
	acceptLosses(d.t, d.path)
	return openCow(d.base, d.path, true, fileOptions{lock: true, identity: true, io: ioThreads, workers: 1, boot: [16]byte{d.boots}}, k)
}

// uses changes the disk at random until the power is cut, or n times.
func (d *cutDisk) uses(device block.Device, n int) {
	disk, err := block.NewDisk(device)
	if err != nil {
		d.t.Fatal(err)
	}
	defer disk.Close()
	m, random := d.model, d.model.random
	for i := 0; i < n && err == nil; i++ {
		zone := random.IntN(cutZones) * cutSectors
		first := random.IntN(cutSectors)
		n := 1 + random.IntN(min(cutSectors-first, 20))
		off, length := cutOffset(zone+first), int64(n)*sector
		first += zone
		if size, _ := disk.Size(); off+length > size {
			continue // the disk has not grown yet
		}
		m.stamp++
		switch kind := random.IntN(8); kind {
		case 0:
			if err = disk.Sync(); err == nil {
				m.flushed(0, len(m.now))
			}
		case 1:
			if err = disk.WriteZeroes(off, length, 0); true {
				m.wrote(first, n, 0, err)
			}
		case 2:
			err = d.trims(disk, first, n)
		default:
			p := bytes.Repeat(stampSector(m.stamp), n)
			write := disk.WriteAt
			if kind == 3 {
				write = disk.WriteAtFUA
			}
			_, err = write(p, off)
			m.wrote(first, n, m.stamp, err)
			if kind == 3 && err == nil {
				m.flushed(first, n)
			}
		}
	}
}

// trims trims sectors: they are zero, or what they were.
func (d *cutDisk) trims(disk *block.Disk, first, n int) error {
	err := disk.Trim(cutOffset(first), int64(n)*sector)
	for i := first; i < first+n; i++ {
		d.model.may[i] = append(d.model.may[i], 0)
		d.model.unsure[i] = append(d.model.unsure[i], 0)
		p := make([]byte, sector)
		if _, e := disk.ReadAt(p, cutOffset(i)); err == nil && e == nil {
			d.model.now[i] = stampOf(p)
		}
	}
	return err
}

// check compares what the disk holds.
func (d *cutDisk) check(device block.Device, after ending) {
	d.t.Helper()
	disk, err := block.NewDisk(device)
	if err != nil {
		d.t.Fatal(err)
	}
	defer disk.Close()
	d.model.check(d.t, func(p []byte, off int64) error {
		if size, _ := disk.Size(); off >= size {
			clear(p) // the disk has not grown yet
			return nil
		}
		_, err := disk.ReadAt(p, off)
		return err
	}, after)
}

// cut ends the machine by a power cut.
func (d *cutDisk) cut(device block.Device) {
	d.t.Helper()
	if device != nil {
		kill(d.t, device)
	}
	d.kernel.powerCut(d.t)
}

// lives has the disk live through a power cut amid a system call, another one
// soon after its machine started and its first process was killed, and an
// orderly life. It returns whether the first cut came to be.
func (d *cutDisk) lives(seed uint64, cutAt int) (cut bool) {
	t := d.t
	d.model.random = rand.New(rand.NewPCG(seed, 7))
	const uses = 24
	for _, at := range []int{cutAt, 1 + d.model.random.IntN(30)} {
		device, err := d.open(seed, at)
		if err == nil && at != cutAt {
			kill(t, device)
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
	device, err := d.open(seed, 0)
	if err != nil {
		t.Fatal(err)
	}
	d.check(device, powerCut)
	d.uses(device, uses)
	kill(t, device) // the process alone
	if device, err = d.again(d.kernel); err != nil {
		t.Fatal(err)
	}
	d.check(device, closed)
	d.uses(device, uses)
	if err := device.Close(); err != nil {
		t.Fatal(err)
	}
	d.kernel.powerCut(t)
	if device, err = d.open(seed, 0); err != nil {
		t.Fatal(err)
	}
	d.check(device, closed)
	d.cut(device)
	return cut
}

// Power cuts amid every system call of a life of an overlay. Flushed writes are
// there, every sector has one write, and the base stays.
func TestOverlayLosesPower(t *testing.T) {
	cuts := 0
	for seed := *cutSeed; seed < *cutSeed+uint64(*cutSeeds); seed++ {
		for cutAt := 1; ; cutAt += cutStep() {
			base, model := cutBase(t)
			before, err := os.Stat(base)
			if err != nil {
				t.Fatal(err)
			}
			d := &cutDisk{t: t, base: base, path: filepath.Join(filepath.Dir(base), "overlay"), model: model}
			// The first life begins with an overlay that is there.
			device, err := d.open(0, 0)
			if err != nil {
				t.Fatal(err)
			}
			if err := device.Close(); err != nil {
				t.Fatal(err)
			}
			d.kernel.powerCut(t)
			cut := d.lives(seed, cutAt)
			after, err := os.Stat(base)
			if err != nil || !after.ModTime().Equal(before.ModTime()) {
				t.Errorf("the base was written to, %v", err)
			}
			if t.Failed() {
				t.Fatalf("power cut %d: replay it with -cow.seed %d -cow.seeds 1", cutAt, seed)
			}
			if err := os.RemoveAll(filepath.Dir(base)); err != nil {
				t.Fatal(err)
			}
			if !cut {
				break
			}
			cuts++
		}
	}
	t.Logf("%d power cuts", cuts)
}

// A power cut after a flush that failed: the header that says so may be torn,
// and the one before is whole.
func TestOverlayLosesPowerAfterFailedFlush(t *testing.T) {
	for seed := *cutSeed; seed < *cutSeed+8; seed++ {
		d := newCutDisk(t, seed)
		d.lives1()
		device, err := d.open(seed, 0)
		if err != nil {
			t.Fatal(err)
		}
		d.kernel.fails = true
		disk, err := block.NewDisk(device)
		if err != nil {
			t.Fatal(err)
		}
		if err := disk.Sync(); err == nil {
			t.Fatal("the flush does not fail")
		}
		if err := disk.Close(); err != nil {
			t.Fatal(err)
		}
		d.cut(device)
		if device, err = d.open(seed, 0); err != nil {
			t.Fatalf("%v; replay it with -cow.seed %d", err, seed)
		}
		d.check(device, powerCut)
		d.cut(device)
	}
}

// A process that ends amid every system call of a life of an overlay, while the
// machine goes on: every write that was answered is there.
func TestOverlayIsKilled(t *testing.T) {
	for cutAt := 1; ; cutAt += cutStep() {
		d := newCutDisk(t, *cutSeed)
		d.lives1()
		device, err := d.open(*cutSeed, cutAt)
		if err == nil {
			d.uses(device, 40)
			kill(t, device)
		} else if !d.kernel.off {
			t.Fatal(err)
		}
		over := !d.kernel.off
		d.kernel.close(t)
		if device, err = d.again(newCutKernel(0, 0)); err != nil {
			t.Fatal(err)
		}
		d.check(device, killed)
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
