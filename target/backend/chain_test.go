package backend

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/viablk/viablk/internal/block"
	"golang.org/x/sys/unix"
)

// cutNames are names of a machine that loses power: a change takes place, or it
// does not.
type cutNames struct {
	linuxNames
	kernel *cutKernel
}

func (n cutNames) call(do func() error) error {
	if err := n.kernel.call(); err != nil {
		return err
	}
	if n.kernel.off && n.kernel.random.IntN(2) == 0 {
		return unix.EIO
	}
	if err := do(); err != nil || !n.kernel.off {
		return err
	}
	return unix.EIO
}

func (n cutNames) link(from, to string) error {
	return n.call(func() error { return n.linuxNames.link(from, to) })
}

func (n cutNames) rename(from, to string) error {
	return n.call(func() error { return n.linuxNames.rename(from, to) })
}

func (n cutNames) remove(path string) error {
	return n.call(func() error { return n.linuxNames.remove(path) })
}

func (n cutNames) sync(path string) error {
	return n.call(func() error { return n.linuxNames.sync(path) })
}

// image is what the sectors of a disk have.
type image [cutZones * cutSectors]uint64

// image opens the disk on a machine that was started now, and returns what it
// holds.
func (d *cutDisk) image() (i image) {
	d.t.Helper()
	device, err := d.open(0, 0)
	if err != nil {
		d.t.Fatal(err)
	}
	d.model.check(d.t, func(p []byte, off int64) error { return device.(*file).cow.read(p, off) }, powerCut)
	i = d.model.now
	if err := device.Close(); err != nil {
		d.t.Fatal(err)
	}
	d.kernel.powerCut(d.t)
	return i
}

// lives1 has the disk live an orderly life.
func (d *cutDisk) lives1() {
	d.t.Helper()
	device, err := d.open(0, 0)
	if err != nil {
		d.t.Fatal(err)
	}
	d.uses(device, 12)
	if err := device.Close(); err != nil {
		d.t.Fatal(err)
	}
	d.kernel.powerCut(d.t)
}

// chain runs a change of the chain, on a machine that loses power amid a call.
// It returns whether it did.
func (d *cutDisk) chain(seed uint64, cutAt int, do func(*Chain) error) (cut bool, err error) {
	d.t.Helper()
	d.kernel = newCutKernel(seed, cutAt)
	d.boots++
	o := fileOptions{lock: true, identity: true, boot: [16]byte{d.boots}}
	c, err := openChain(d.path, o, d.kernel, cutNames{kernel: d.kernel})
	if err == nil {
		err = do(c)
		c.Close()
	}
	cut = d.kernel.off
	d.kernel.powerCut(d.t)
	return cut, err
}

// must is chain without a power cut and without an error.
func (d *cutDisk) must(do func(*Chain) error) {
	d.t.Helper()
	if _, err := d.chain(0, 0, do); err != nil {
		d.t.Fatal(err)
	}
}

// newCutDisk makes an overlay.
func newCutDisk(t testing.TB, seed uint64) *cutDisk {
	base, model := cutBase(t)
	model.random = newCutKernel(seed, 0).random
	return &cutDisk{t: t, base: base, path: filepath.Join(filepath.Dir(base), "overlay"), model: model}
}

// listed returns the names of the snapshots, without unused ones.
func (d *cutDisk) listed() (all []string) {
	d.t.Helper()
	snapshots, err := Snapshots(d.path)
	if err != nil {
		d.t.Fatal(err)
	}
	for _, s := range snapshots {
		if !s.Unused {
			all = append(all, s.Name)
		}
	}
	return all
}

// backTo rolls the disk back, and checks what it is.
func (d *cutDisk) backTo(name string, want image) {
	d.t.Helper()
	d.must(func(c *Chain) error { return c.Rollback(name) })
	d.model.flushedAs(want)
	if got := d.image(); got != want {
		d.t.Errorf("rolled back to %q, the disk differs", name)
	}
}

// flushedAs notes that the disk has become another.
func (m *cutModel) flushedAs(i image) {
	m.now = i
	m.flushed(0, len(m.now))
}

// Each change of a chain of snapshots, with a power cut amid each of its calls.
// The disk is then what it was before the change or what it is after it, the
// change can be made again, and every snapshot is what it was.
func TestSnapshotsLosePower(t *testing.T) {
	changes := []struct {
		name string
		do   func(*Chain) error
		left []string // snapshots afterwards
	}{
		{"create", func(c *Chain) error { return c.Create("three") }, []string{"three", "two", "one"}},
		{"delete oldest", func(c *Chain) error { return c.Delete("one") }, []string{"two"}},
		{"delete newest", func(c *Chain) error { return c.Delete("two") }, []string{"one"}},
		{"rollback", func(c *Chain) error { return c.Rollback("one") }, []string{"one"}},
	}
	for _, change := range changes {
		t.Run(change.name, func(t *testing.T) {
			cuts := 0
			for cutAt := 1; ; cutAt += cutStep() {
				d := newCutDisk(t, uint64(cutAt))
				d.lives1()
				is := map[string]image{"one": d.image()}
				d.must(func(c *Chain) error { return c.Create("one") })
				d.lives1()
				is["two"] = d.image()
				d.must(func(c *Chain) error { return c.Create("two") })
				d.lives1()
				now := d.image()
				is["three"] = now

				cut, err := d.chain(*cutSeed, cutAt, change.do)
				if err != nil && !cut {
					t.Fatal(err)
				}
				// Of a rollback that was cut, both are right.
				back := change.name == "rollback" && !slices.Equal(d.listed(), []string{"two", "one"})
				if back {
					now = is["one"]
				}
				d.model.flushedAs(now)
				if got := d.image(); got != now {
					t.Errorf("the disk differs after the power cut")
				}
				if !slices.Equal(d.listed(), change.left) || change.name != "create" {
					_, err = d.chain(0, 0, change.do)
					if err != nil && !errors.Is(err, ErrNoSnapshot) {
						t.Errorf("the change made again: %v", err)
					}
				}
				if got := d.listed(); !slices.Equal(got, change.left) {
					t.Errorf("there are the snapshots %v", got)
				}
				for _, name := range change.left {
					d.backTo(name, is[name])
				}
				d.lives1()
				if t.Failed() {
					t.Fatalf("power cut %d, of seed %d", cutAt, *cutSeed)
				}
				if err := os.RemoveAll(filepath.Dir(d.base)); err != nil {
					t.Fatal(err)
				}
				if !cut {
					break
				}
				cuts++
			}
			t.Logf("%d power cuts", cuts)
		})
	}
}

// A disk is the same to its clients after a snapshot and a merge, and has
// another writer after a rollback.
func TestSnapshotsKeepIdentity(t *testing.T) {
	d := newCutDisk(t, 1)
	d.lives1()
	identity := func() (uuid [16]byte, verifier, generation uint64) {
		d.boots-- // the same start of the machine
		device, err := d.open(0, 0)
		if err != nil {
			t.Fatal(err)
		}
		i := block.IdentityOf(device)
		uuid, verifier, generation = i.UUID(), i.Verifier(), i.Writer().Generation
		if err := device.Close(); err != nil {
			t.Fatal(err)
		}
		d.kernel.powerCut(t)
		return uuid, verifier, generation
	}
	uuid, verifier, generation := identity()
	for _, step := range []struct {
		do      func(*Chain) error
		writers uint64
	}{
		{func(c *Chain) error { return c.Create("one") }, 0},
		{func(c *Chain) error { return c.Create("two") }, 0},
		{func(c *Chain) error { return c.Delete("two") }, 0},
		{func(c *Chain) error { return c.Rollback("one") }, 1},
		{func(c *Chain) error { return c.Delete("one") }, 0},
	} {
		d.must(step.do)
		generation += step.writers
		u, v, g := identity()
		if u != uuid || v != verifier || g != generation {
			t.Errorf("after %+v: UUID %x, verifier %d, generation %d instead of %x, %d, %d", step, u, v, g, uuid, verifier, generation)
		}
	}
}

// A snapshot is deleted on a file system that has no room for its blocks: it
// stays, and so does all else.
func TestDeleteSnapshotWithoutRoom(t *testing.T) {
	folder := smallExt4(t)
	base, path := newFile(t, 2*diskSize), filepath.Join(folder, "overlay")
	serve := func(use func(*block.Disk) error) {
		t.Helper()
		d := mustOpen(t, "cow:"+base+","+path+"?create=1", Options{})
		disk, err := block.NewDisk(d)
		if err == nil {
			err = errors.Join(use(disk), disk.Close())
		}
		if err = errors.Join(err, d.Close()); err != nil {
			t.Fatal(err)
		}
	}
	const length = 4 << 20
	check := func(disk *block.Disk) error {
		got := make([]byte, length)
		if _, err := disk.ReadAt(got, 0); err != nil {
			return err
		}
		if !slices.Equal(got, fill(length, 3)) {
			t.Error("the disk differs")
		}
		return nil
	}
	change := func(do func(*Chain) error) error {
		t.Helper()
		c, err := OpenChain(path, Options{})
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		return do(c)
	}
	serve(func(disk *block.Disk) error { _, err := disk.WriteAt(fill(length, 3), 0); return err })
	if err := change(func(c *Chain) error { return c.Create("one") }); err != nil {
		t.Fatal(err)
	}
	free := ballast(t, folder)
	for range 2 {
		wantErrno(t, "delete", change(func(c *Chain) error { return c.Delete("one") }), unix.ENOSPC)
		serve(check)
	}
	free()
	if err := change(func(c *Chain) error { return c.Delete("one") }); err != nil {
		t.Fatal(err)
	}
	serve(check)
	if all, err := Snapshots(path); err != nil || len(all) != 0 {
		t.Errorf("left: %v, %v", all, err)
	}
}
