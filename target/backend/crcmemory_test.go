package backend

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	"github.com/viablk/viablk/internal/block"
	"github.com/viablk/viablk/target/backend/checksum"
	"golang.org/x/sys/unix"
)

// movingSums is a disk in memory with checksums that moves from process to
// process.
type movingSums struct {
	t    *testing.T
	sums string
	disk *crc
	held *Held
}

// sizeOfMoving is seven regions, of which the last is no whole one. A write
// marks the first four, or the others.
const sizeOfMoving = 6*checksum.RegionSize + 20*4096

func newMovingSums(t *testing.T) *movingSums {
	t.Helper()
	m := &movingSums{t: t, sums: filepath.Join(t.TempDir(), "sums"), held: holds(t)}
	m.open(m.spec())
	m.write(0, fill(sizeOfMoving, 1))
	return m
}

// spec is that of the disk.
func (m *movingSums) spec() string { return "crc:delay:any=0s:memory:25198592," + m.sums }

// open opens the disk in the process that holds it now.
func (m *movingSums) open(spec string) {
	m.t.Helper()
	m.disk = mustOpen(m.t, spec, Options{Held: m.held, Export: "a"}).(*crc)
}

func (m *movingSums) write(off int64, p []byte) {
	m.t.Helper()
	if _, err := viewOf(m.t, m.disk).WriteAt(p, off); err != nil {
		m.t.Error(err)
	}
}

// flip flips a bit of the memory.
func (m *movingSums) flip(off int64) { m.disk.memory.disk[off] ^= 0x10 }

// wantRead wants a read of a block to succeed, or not.
func (m *movingSums) wantRead(what string, off int64, want unix.Errno) {
	m.t.Helper()
	_, err := viewOf(m.t, m.disk).ReadAt(make([]byte, 1), off)
	wantErrno(m.t, what, err, want)
}

// end ends the process, which hands over what it has, and returns that. It
// may be killed after it has sent it.
func (m *movingSums) end(killed bool) []Descriptor {
	m.t.Helper()
	moved, err := m.held.Copy()
	if err != nil || len(moved) != 2 {
		m.t.Fatalf("%v, %v", moved, err)
	}
	if killed {
		killSums(m.t, m.disk)
		err = m.disk.inner.Close()
	} else {
		err = m.disk.Close()
	}
	if err != nil {
		m.t.Fatal(err)
	}
	return moved
}

// copies returns further descriptors of what was handed over.
func (m *movingSums) copies(all []Descriptor) (again []Descriptor) {
	m.t.Helper()
	for _, d := range all {
		fd, err := unix.FcntlInt(uintptr(d.FD), unix.F_DUPFD_CLOEXEC, 0)
		if err != nil {
			m.t.Fatal(err)
		}
		d.FD = fd
		again = append(again, d)
	}
	return again
}

// A disk in memory moves from process to process, which close it or are killed:
// bits that flip before and after are found, where no region was being written.
func TestChecksumsMoveWithMemory(t *testing.T) {
	const region = checksum.RegionSize
	m := newMovingSums(t)
	m.held = holds(t, m.end(false)...)
	m.open(m.spec())
	for round, killed := range []bool{false, true, false, true, true} {
		m.write(8192, fill(4096, byte(round)))
		m.flip(4*region + 4096)
		m.held = holds(t, m.end(killed)...)
		m.open(m.spec())
		m.wantRead("a block that changed before the disk moved", 4*region+4096, unix.EIO)
		if !killed {
			m.flip(8192)
			m.wantRead("a block of a region that was written", 8192, unix.EIO)
			m.flip(8192)
		}
		m.wantRead("the block beside it", 4*region+8192, 0)
		m.flip(6 * region)
		m.wantRead("a block that changed after it", 6*region, unix.EIO)
		m.flip(6 * region)
		m.flip(4*region + 4096)
		if status := scrubAll(t, m.disk); !status.Clean() {
			t.Errorf("the scrub found %+v", status)
		}
	}
	if err := m.disk.Close(); err != nil {
		t.Fatal(err)
	}
}

// A process that was to take the disk over ends before it serves, with the same
// or another use of the disk: the one before goes on with its checksums.
func TestChecksumsAfterAFailedMove(t *testing.T) {
	m := newMovingSums(t)
	for _, successor := range []string{
		m.spec(),
		"memory:25198592",
		"delay:any=0s:memory:25198592",
		"crc:memory:25198592," + filepath.Join(t.TempDir(), "others"),
	} {
		for _, killed := range []bool{false, true} {
			moved := m.end(false)
			d := mustOpen(t, successor, Options{Held: holds(t, m.copies(moved)...), Export: "a"})
			c, isCrc := d.(*crc)
			if killed && isCrc {
				killSums(t, d)
				d = c.inner
			}
			if err := d.Close(); err != nil {
				t.Fatal(err)
			}
			m.held = holds(t, moved...)
			m.open(m.spec())
			m.flip(4096)
			m.wantRead(successor+": a block that changed", 4096, unix.EIO)
			m.flip(4096)
			m.wantRead(successor+": the same when it is right", 4096, 0)
		}
	}
	if err := m.disk.Close(); err != nil {
		t.Fatal(err)
	}
}

// Checksums that do not have every change of the disk in memory are not used:
// no read raises an alarm.
func TestChecksumsOfOtherMemory(t *testing.T) {
	folder := t.TempDir()
	change := func(t *testing.T, d block.Device) {
		if _, err := viewOf(t, d).WriteAt(fill(4096, 9), 4096); err != nil {
			t.Fatal(err)
		}
	}
	for name, between := range map[string]struct {
		spec   string
		change func(t *testing.T, d block.Device)
	}{
		"plain":           {"memory:25198592", change},
		"in a wrapper":    {"delay:any=0s:memory:25198592", change},
		"mapped":          {"memory:25198592", func(_ *testing.T, d block.Device) { d.(block.Mapped).Access(4096, 4096, true) }},
		"other checksums": {"crc:memory:25198592," + folder + "/a", change},
		"a cache":         {"crc:volatile:memory:25198592," + folder + "/b", change},
		"another writer": {"memory:25198592", func(t *testing.T, d block.Device) {
			if _, err := block.IdentityOf(d).SetWriter([16]byte{1}); err != nil {
				t.Fatal(err)
			}
		}},
	} {
		t.Run(name, func(t *testing.T) {
			m := newMovingSums(t)
			m.held = holds(t, m.end(false)...)
			d := mustOpen(t, between.spec, Options{Held: m.held, Export: "a"})
			between.change(t, d)
			m.held.Forget() // what it does not need
			moved, err := m.held.Copy()
			if err = errors.Join(err, d.Close()); err != nil {
				t.Fatal(err)
			}
			m.held = holds(t, moved...)
			m.open(m.spec())
			m.flip(8192) // what the disk was like is not known
			m.wantRead("a block", 8192, 0)
			m.wantRead("the block that was written", 4096, 0)
			m.write(8192, fill(4096, 2))
			m.flip(8192)
			m.wantRead("a block that was written", 8192, unix.EIO)
			if err := m.disk.Close(); err != nil {
				t.Fatal(err)
			}
		})
	}
	// A file of before, of the same disk.
	m := newMovingSums(t)
	before, err := os.ReadFile(m.sums)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := block.IdentityOf(m.disk).SetWriter([16]byte{1}); err != nil {
		t.Fatal(err)
	}
	m.write(4096, fill(4096, 9))
	moved := m.end(false)
	if err := os.WriteFile(m.sums, before, 0o600); err != nil {
		t.Fatal(err)
	}
	m.held = holds(t, moved...)
	m.open(m.spec())
	m.wantRead("a block that was written", 4096, 0)
	// Another disk of the same export and size.
	moved = m.end(false)
	for _, d := range moved {
		_ = unix.Close(d.FD)
	}
	m.held = holds(t)
	m.open(m.spec())
	m.wantRead("a block of a new disk", 4096, 0)
	if err := m.disk.Close(); err != nil {
		t.Fatal(err)
	}
}
