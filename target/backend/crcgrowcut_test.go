package backend

import (
	"math/rand/v2"
	"os"
	"path/filepath"
	"testing"

	"github.com/viablk/viablk/internal/block"
)

// The sizes of a disk that grows: amid a block of the last zone, and behind it.
const (
	smallCut = 130<<20 + 7*sector
	largeCut = 300 << 20
)

// newGrowingCut returns a disk with checksums that is still small.
func newGrowingCut(t testing.TB, seed uint64) *crcCut {
	t.Helper()
	base, model := cutBase(t)
	if err := os.Truncate(base, smallCut); err != nil {
		t.Fatal(err)
	}
	for i := range model.now {
		if cutOffset(i) >= smallCut {
			model.now[i], model.may[i] = 0, []uint64{0}
		}
	}
	model.random = rand.New(rand.NewPCG(seed, 7))
	d := &crcCut{&cutDisk{t: t, path: base, model: model}, base + ".sums"}
	device, err := d.open(0, 0)
	if err != nil {
		t.Fatal(err)
	}
	d.uses(device, 20)
	if err := device.Close(); err != nil {
		t.Fatal(err)
	}
	d.kernel.powerCut(t)
	return d
}

// grows has a disk grow and be used, and returns whether it may tell clients
// that it has grown.
func (d *crcCut) grows(device block.Device) bool {
	if err := grow(device, largeCut); err == nil {
		d.uses(device, 12)
	}
	return device.Info().Size == largeCut
}

// A process or machine that ends amid every system call of the growth of a disk
// and soon after it: what was flushed is there, no read raises an alarm, a bit
// that flips where nothing was being written is found, and a size that a client
// was told stays.
func TestGrowthOfChecksumsIsCut(t *testing.T) {
	const growth = 12 // system calls, of which each is tried often
	for _, after := range []ending{killed, powerCut} {
		found, told := 0, 0
		for cutAt, over := 1, false; !over; cutAt += cutStep() {
			seeds := uint64(*cutSeeds)
			if cutAt <= growth {
				seeds *= 6
			}
			for seed := *cutSeed; seed < *cutSeed+seeds; seed++ {
				d := newGrowingCut(t, seed)
				grown, n, cut := d.growthIsCut(seed, cutAt, after)
				over = !cut
				found += n
				if grown {
					told++
				}
				d.growsAgain(grown, after)
				if t.Failed() {
					t.Fatalf("cut %d, %v: replay it with -cow.seed %d -cow.seeds 1", cutAt, after, seed)
				}
				if err := os.RemoveAll(filepath.Dir(d.path)); err != nil {
					t.Fatal(err)
				}
			}
		}
		t.Logf("%d flips, %d disks had grown", found, told)
		if found == 0 || told == 0 {
			t.Error("no flip is found, or no cut is behind the growth")
		}
	}
}

// growthIsCut is a life that ends amid a system call, counted from the growth
// on.
func (d *crcCut) growthIsCut(seed uint64, cutAt int, after ending) (grown bool, found int, cut bool) {
	device, found, err := d.openCorrupt(func() (block.Device, error) { return d.open(seed, 0) })
	if err != nil {
		d.t.Fatal(err)
	}
	d.uses(device, 6)
	d.kernel.cutAt = d.kernel.calls + cutAt
	grown = d.grows(device)
	cut = d.kernel.off
	killSums(d.t, device)
	if after == powerCut {
		d.kernel.powerCut(d.t)
	} else {
		d.kernel.close(d.t)
	}
	return grown, found, cut
}

// growsAgain is the next life, and the one after that.
func (d *crcCut) growsAgain(grown bool, after ending) {
	t := d.t
	for range 2 {
		device, _, err := d.openCorrupt(func() (block.Device, error) { return d.open(1, 0) })
		if err != nil {
			t.Fatal(err)
		}
		if got := device.Info().Size; got != largeCut && (grown || got != smallCut) {
			t.Errorf("the disk has %d bytes, and a client was told that it has grown: %v", got, grown)
		}
		d.check(device, after)
		if grown = d.grows(device); !grown {
			t.Error("the disk does not grow")
		}
		if err := device.Close(); err != nil {
			t.Error(err)
		}
		d.kernel.powerCut(t)
		after = closed
	}
}
