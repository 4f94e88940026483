package backend

import (
	"bytes"
	"encoding/binary"
	"errors"
	"math/rand/v2"
	"testing"

	"github.com/viablk/viablk/internal/block"
	"golang.org/x/sys/unix"
)

// allocated returns which units of the disk have memory, as the kernel tells.
func (f *memoryFile) allocated(t *testing.T) (units []bool) {
	t.Helper()
	units = make([]bool, (len(f.disk)+memoryUnit-1)/memoryUnit)
	for at := f.offset; ; {
		from, err := unix.Seek(f.fd, at, unix.SEEK_DATA)
		if err == unix.ENXIO {
			return units
		}
		if err != nil {
			t.Fatal(err)
		}
		if at, err = unix.Seek(f.fd, from, unix.SEEK_HOLE); err != nil {
			t.Fatal(err)
		}
		for i := (from - f.offset) / memoryUnit; i < (at-f.offset+memoryUnit-1)/memoryUnit && i < int64(len(units)); i++ {
			units[i] = true
		}
	}
}

func newMemoryFile(t *testing.T, size int64) *memoryFile {
	t.Helper()
	f, err := createMemory(size)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := f.close(nil); err != nil {
			t.Error(err)
		}
	})
	return f
}

// statusOf returns which units the disk says it holds.
func (f *memoryFile) statusOf(t *testing.T, off, n int64) (held []bool) {
	t.Helper()
	r := block.Request{Op: block.Status, Offset: off, Length: n, Extents: make([]block.Extent, 0, 1024)}
	f.status(&r)
	if r.Covered() != n {
		t.Fatalf("the status of %d bytes covers %d", n, r.Covered())
	}
	for _, x := range r.Extents {
		for range (x.Length + memoryUnit - 1) / memoryUnit {
			held = append(held, x.Flags == 0)
		}
	}
	return held
}

// TestMemoryIsSparse: a disk in memory is what was written to it, a unit with a
// bit has memory, and a unit that was cleared as a whole has no bit.
func TestMemoryIsSparse(t *testing.T) {
	const units = 300
	for _, size := range []int64{units * memoryUnit, units*memoryUnit - 512} {
		f := newMemoryFile(t, size)
		want, held := make([]byte, size), make([]bool, units)
		random := rand.New(rand.NewPCG(uint64(size), 1))
		for step := range 4000 {
			off := random.Int64N(size)
			n := 1 + random.Int64N(min(size-off, 1<<(1+random.IntN(19))))
			if random.IntN(2) == 0 { // whole units, as most clients have them
				off &^= memoryUnit - 1
				n = min((n+memoryUnit-1)&^(memoryUnit-1), size-off)
			}
			first, last := off/memoryUnit, (off+n-1)/memoryUnit
			switch op := random.IntN(5); op {
			case 0, 1:
				p := make([]byte, n)
				f.read(p, off)
				if !bytes.Equal(p, want[off:off+n]) {
					t.Fatalf("step %d: %d bytes at %d differ", step, n, off)
				}
			case 2:
				p := bytes.Repeat([]byte{byte(step | 1)}, int(n))
				f.write(p, off)
				copy(want[off:], p)
				for i := first; i <= last; i++ {
					held[i] = true
				}
			default:
				keep := op == 4
				f.zero(off, n, keep)
				clear(want[off : off+n])
				for i := first; i <= last; i++ {
					whole := i*memoryUnit >= off && min((i+1)*memoryUnit, size) <= off+n
					held[i] = keep || held[i] && !whole
				}
			}
			if got, all := f.full(off, n), !contains(held[first:last+1], false); got != all {
				t.Fatalf("step %d: %d bytes at %d: full is %v", step, n, off, got)
			}
			if step%100 != 0 {
				continue
			}
			has := f.allocated(t)
			for i, h := range f.statusOf(t, 0, size) {
				if h != held[i] || h && !has[i] {
					t.Fatalf("step %d: unit %d: status %v, memory %v, want %v", step, i, h, has[i], held[i])
				}
			}
		}
		if !bytes.Equal(f.disk, want) {
			t.Fatal("the memory differs")
		}
	}
}

func contains(all []bool, x bool) bool {
	for _, y := range all {
		if x == y {
			return true
		}
	}
	return false
}

// TestMemoryReadsOfHolesAllocateNothing: through a queue, a disk that was never
// written, and one that was trimmed, are read as a whole.
func TestMemoryReadsOfHolesAllocateNothing(t *testing.T) {
	const size = 8 << 20
	d := mustOpen(t, "memory:8MiB", Options{})
	disk, err := block.NewDisk(d)
	if err != nil {
		t.Fatal(err)
	}
	defer disk.Close()
	f, p := d.(*memory).file, make([]byte, size)
	check := func(what string) {
		t.Helper()
		if _, err := disk.ReadAt(p, 0); err != nil {
			t.Fatal(err)
		}
		if contains(f.allocated(t), true) {
			t.Errorf("%s: it was read, and has memory", what)
		}
	}
	check("a new disk")
	if _, err := disk.WriteAt(bytes.Repeat([]byte{1}, size), 0); err != nil {
		t.Fatal(err)
	}
	if contains(f.allocated(t), false) {
		t.Error("a disk that was written has no memory")
	}
	if err := disk.Trim(0, size); err != nil {
		t.Fatal(err)
	}
	check("a trimmed disk")
}

// TestMemoryRunsAreThoseOfBits: run counts units up to a change, or to the end.
func TestMemoryRunsAreThoseOfBits(t *testing.T) {
	f := newMemoryFile(t, 512*memoryUnit)
	random := rand.New(rand.NewPCG(3, 4))
	for i := range f.bits {
		f.bits[i] = []uint64{0, ^uint64(0), random.Uint64()}[i%3]
	}
	bit := func(i int64) bool { return f.bits[i/64]>>(i%64)&1 != 0 }
	for first := int64(0); first < 512; first++ {
		for _, end := range []int64{first + 1, min(first+63, 512), 512} {
			want := int64(1)
			for first+want < end && bit(first+want) == bit(first) {
				want++
			}
			if n, occupied := f.run(first, end); n != want || occupied != bit(first) {
				t.Fatalf("units %d to %d: %d, %v instead of %d, %v", first, end, n, occupied, want, bit(first))
			}
		}
	}
}

// TestMemoryMoves: bytes and identity of a disk in memory are those of before
// in the process that takes over, again and again.
func TestMemoryMoves(t *testing.T) {
	const spec, size = "delay:any=0s:memory:1MiB", 1 << 20
	held := holds(t)
	d := mustOpen(t, spec, Options{Held: held, Export: "a"})
	other := mustOpen(t, spec, Options{Held: held, Export: "b"})
	writer := [16]byte{7}
	w, err := block.IdentityOf(d).SetWriter(writer)
	if err != nil || w != (block.Writer{ID: writer, Generation: 1}) {
		t.Fatalf("%v, %v", w, err)
	}
	before := block.IdentityOf(d)
	uuid, verifier := before.UUID(), before.Verifier()
	if uuid == block.IdentityOf(other).UUID() || verifier == block.IdentityOf(other).Verifier() {
		t.Error("two disks have one identity")
	}
	content := make([]byte, size)
	for round := range 3 {
		disk, err := block.NewDisk(d)
		if err != nil {
			t.Fatal(err)
		}
		p := bytes.Repeat([]byte{byte(round + 1)}, memoryUnit)
		if _, err := disk.WriteAt(p, int64(round)*3*memoryUnit); err != nil {
			t.Fatal(err)
		}
		copy(content[round*3*memoryUnit:], p)
		got := make([]byte, size)
		if _, err := disk.ReadAt(got, 0); err != nil || !bytes.Equal(got, content) {
			t.Fatalf("round %d: the content differs, %v", round, err)
		}
		if export, ok := held.HasMemory(); !ok || export != "a" && export != "b" {
			t.Errorf("%q, %v", export, ok)
		}
		moved, err := held.Copy()
		if err != nil || len(moved) != 2 {
			t.Fatalf("%v, %v", moved, err)
		}
		if err := errors.Join(disk.Close(), d.Close(), other.Close()); err != nil {
			t.Fatal(err)
		}
		if _, ok := held.HasMemory(); ok {
			t.Error("closed disks are held")
		}
		held = holds(t, moved...)
		d = mustOpen(t, spec, Options{Held: held, Export: "a"})
		if export, ok := held.MemoryLeft(); !ok || export != "b" {
			t.Errorf("%q, %v is left", export, ok)
		}
		other = mustOpen(t, spec, Options{Held: held, Export: "b"})
		if export, ok := held.MemoryLeft(); ok {
			t.Errorf("%q is left", export)
		}
		after := block.IdentityOf(d)
		if after.UUID() != uuid || after.Verifier() != verifier || after.Writer() != w {
			t.Errorf("the identity has changed: %v", after)
		}
		if w, err = after.SetWriter(writer); err != nil || w.Generation != uint64(round)+2 {
			t.Errorf("%v, %v", w, err)
		}
	}
	if err := errors.Join(d.Close(), other.Close()); err != nil {
		t.Fatal(err)
	}
}

// TestMemoryOfOthersIsRefused: a file that is no memory of a disk of this size
// does not become one.
func TestMemoryOfOthersIsRefused(t *testing.T) {
	const size = 1 << 20
	write := func(at int64, p ...byte) func(fd int) error {
		return func(fd int) error {
			_, err := unix.Pwrite(fd, p, at)
			return err
		}
	}
	for name, c := range map[string]struct {
		size   int64
		change func(fd int) error
		as     func(fd int) int
	}{
		"size":    {size: 2 * size},
		"version": {change: write(7, '2')},
		"larger":  {change: write(memoryAtSize+2, 0x11)},
		"no seals": {as: func(int) int {
			fd, err := unix.MemfdCreate("x", unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING)
			if err != nil {
				t.Fatal(err)
			}
			_, total := memoryLayout(size)
			header := binary.LittleEndian.AppendUint64([]byte(memoryMagic), size)
			if _, err := unix.Pwrite(fd, header, 0); err != nil {
				t.Fatal(err)
			}
			if err := unix.Ftruncate(fd, total); err != nil {
				t.Fatal(err)
			}
			return fd
		}},
		"short": {as: func(int) int {
			fd, err := unix.MemfdCreate("x", unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING)
			if err != nil {
				t.Fatal(err)
			}
			header := binary.LittleEndian.AppendUint64([]byte(memoryMagic), size)
			if _, err := unix.Pwrite(fd, header, 0); err != nil {
				t.Fatal(err)
			}
			if _, err := unix.FcntlInt(uintptr(fd), unix.F_ADD_SEALS, memorySeals); err != nil {
				t.Fatal(err)
			}
			return fd
		}},
		"file": {as: func(int) int {
			fd, err := unix.Open(newFile(t, size), unix.O_RDWR|unix.O_CLOEXEC, 0)
			if err != nil {
				t.Fatal(err)
			}
			return fd
		}},
	} {
		t.Run(name, func(t *testing.T) {
			f := newMemoryFile(t, size)
			if c.change != nil {
				if err := c.change(f.fd); err != nil {
					t.Fatal(err)
				}
			}
			fd := f.fd
			if c.as != nil {
				fd = c.as(f.fd)
				defer unix.Close(fd)
			}
			if got, err := adoptMemory(fd, max(c.size, size)); err == nil {
				t.Errorf("it is taken: %v", got.close(nil))
			} else if name == "size" && !errors.Is(err, ErrUsage) {
				t.Error(err)
			}
		})
	}
	f := newMemoryFile(t, size)
	if got, err := adoptMemory(f.fd, size); err != nil {
		t.Fatal(err)
	} else if err := unix.Munmap(got.mapping); err != nil { // the descriptor is that of f
		t.Fatal(err)
	}
	if err := unix.Ftruncate(f.fd, 0); err != unix.EPERM {
		t.Errorf("another process may cut it off: %v", err)
	}
}

// TestMemoryThatIsPromised: where the kernel promises no memory later, a disk
// keeps what it has.
func TestMemoryThatIsPromised(t *testing.T) {
	const size = 64 * memoryUnit
	f := newMemoryFile(t, size)
	f.whole = true
	f.write(bytes.Repeat([]byte{1}, size), 0)
	f.zero(0, size, false)
	if contains(f.allocated(t), false) {
		t.Error("it gave memory back")
	}
	p := bytes.Repeat([]byte{1}, size)
	f.read(p, 0)
	if !bytes.Equal(p, make([]byte, size)) || !f.empty(0, size) {
		t.Error("it was not cleared")
	}
	f.write([]byte{2}, 100) // the rest of the unit has to be zeroes
	f.read(p, 0)
	if p[100] != 2 || bytes.Count(p, []byte{0}) != size-1 {
		t.Error("what was cleared is there again")
	}
}
