package backend

import (
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"sync"
	"testing"

	"golang.org/x/sys/unix"
)

// cutKernel is the kernel of a machine that loses power amid a system call. It
// knows what of each sector of its files is durable; the files show the page
// cache. Before the power is cut, the kernel writes back what it likes. Names
// of files are durable at once.
type cutKernel struct {
	linux
	random *rand.Rand

	mu    sync.Mutex
	calls int // that change something, so far
	cutAt int // the call amid which the power is cut; 0 for none
	off   bool
	fails bool                // nothing becomes durable on demand
	files map[uint64]*cutFile // by inode
}

// cutFile is a file, and what its sectors that are not written back were.
type cutFile struct {
	fd      int
	durable map[int64]*[sector]byte
	size    int64 // that is durable, while that of the page cache is not
	resized bool
}

func newCutKernel(seed uint64, cutAt int) *cutKernel {
	return &cutKernel{random: rand.New(rand.NewPCG(seed, uint64(cutAt))), cutAt: cutAt, files: make(map[uint64]*cutFile)}
}

// file returns the file behind a descriptor. Its own descriptor has no
// part in locks.
func (k *cutKernel) file(fd int) (*cutFile, error) {
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return nil, err
	}
	f := k.files[st.Ino]
	if f == nil {
		private, err := unix.Open(fmt.Sprintf("/proc/self/fd/%d", fd), unix.O_RDWR|unix.O_CLOEXEC, 0)
		if err != nil {
			return nil, err
		}
		f = &cutFile{fd: private, durable: make(map[int64]*[sector]byte)}
		k.files[st.Ino] = f
	}
	return f, nil
}

// call counts a call. Amid the last one the power is cut.
func (k *cutKernel) call() error {
	if k.off {
		return unix.EIO
	}
	if k.calls++; k.calls == k.cutAt {
		k.off = true
	}
	return nil
}

// change runs a change of a range of a file, of which some sectors are written
// back at once.
func (k *cutKernel) change(fd int, off, n int64, do func() error) error {
	k.mu.Lock()
	defer k.mu.Unlock()
	f, err := k.file(fd)
	if err == nil {
		err = k.call()
	}
	if err != nil {
		return err
	}
	for s := off / sector; s <= (off+n-1)/sector; s++ {
		if f.durable[s] != nil {
			continue
		}
		was := new([sector]byte)
		if _, err := unix.Pread(f.fd, was[:], s*sector); err != nil {
			return err
		}
		f.durable[s] = was
	}
	if err := do(); err != nil {
		return err
	}
	for s := off / sector; s <= (off+n-1)/sector; s++ {
		if k.random.IntN(4) == 0 {
			delete(f.durable, s)
		}
	}
	if k.off {
		return unix.EIO
	}
	return nil
}

func (k *cutKernel) pwrite(fd int, p []byte, off int64, dsync bool) (n int, err error) {
	err = k.change(fd, off, int64(len(p)), func() (err error) {
		n, err = k.linux.pwrite(fd, p, off, false)
		return err
	})
	if err != nil || !dsync {
		return n, err
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	for s := off / sector; s <= (off+int64(len(p))-1)/sector; s++ {
		f, err := k.file(fd)
		if err != nil {
			return 0, err
		}
		delete(f.durable, s)
	}
	return n, nil
}

func (k *cutKernel) fallocate(fd int, mode uint32, off, length int64) error {
	size, err := k.linux.size(fd)
	if err != nil {
		return err
	}
	if mode == unix.FALLOC_FL_KEEP_SIZE || off >= size {
		return k.linux.fallocate(fd, mode, off, length) // what is read stays
	}
	n := min(length, size-off)
	return k.change(fd, off, n, func() error { return k.linux.fallocate(fd, mode, off, length) })
}

// truncate makes a file longer. The kernel may write its size back before what
// is in it, or behind that.
func (k *cutKernel) truncate(fd int, size int64) error {
	k.mu.Lock()
	defer k.mu.Unlock()
	f, err := k.file(fd)
	if err == nil {
		err = k.call()
	}
	if err != nil {
		return err
	}
	before, err := k.linux.size(fd)
	if err == nil {
		err = k.linux.truncate(fd, size)
	}
	if err != nil {
		return err
	}
	if !f.resized {
		f.size, f.resized = before, before != size && k.random.IntN(4) != 0
	}
	if k.off {
		return unix.EIO
	}
	return nil
}

func (k *cutKernel) fdatasync(fd int) error {
	k.mu.Lock()
	defer k.mu.Unlock()
	f, err := k.file(fd)
	if err == nil {
		err = k.call()
	}
	switch {
	case err != nil:
		return err
	case k.off, k.fails:
		return unix.EIO
	}
	clear(f.durable)
	f.resized = false
	return nil
}

// powerCut takes from the files what is not durable.
func (k *cutKernel) powerCut(t testing.TB) {
	t.Helper()
	for _, f := range k.files {
		var numbers []int64
		for s := range f.durable {
			numbers = append(numbers, s)
		}
		slices.Sort(numbers)
		for _, s := range numbers {
			if k.random.IntN(2) == 0 {
				continue
			}
			if _, err := unix.Pwrite(f.fd, f.durable[s][:], s*sector); err != nil {
				t.Fatal(err)
			}
		}
		if f.resized && k.random.IntN(2) == 0 {
			if err := unix.Ftruncate(f.fd, f.size); err != nil {
				t.Fatal(err)
			}
		}
	}
	k.close(t)
}

// close ends the machine as it is.
func (k *cutKernel) close(t testing.TB) {
	t.Helper()
	for _, f := range k.files {
		if err := unix.Close(f.fd); err != nil {
			t.Fatal(err)
		}
	}
	k.files = nil
}

// The sectors that the tests of power cuts use: zones whose blocks are in two
// sectors of the first page of the map, which can be torn between them, and in
// another page.
const (
	cutSize    = 140 << 20
	cutZones   = 3
	cutSectors = 40 // of each zone
)

var cutZone = [cutZones]int64{0, 20 << 20, 130 << 20}

// cutModel is what the sectors of a disk may hold: the stamps that were written
// since the last flush, and before.
type cutModel struct {
	random *rand.Rand
	stamp  uint64
	now    [cutZones * cutSectors]uint64
	may    [cutZones * cutSectors][]uint64 // after a power cut
	unsure [cutZones * cutSectors][]uint64 // of changes that failed
}

// ending is what ended the last life of a disk.
type ending int

const (
	closed   ending = iota // also a process that was killed between requests
	killed                 // the process, amid a call
	powerCut               // the machine
)

// cutOffset returns where a sector is.
func cutOffset(i int) int64 { return cutZone[i/cutSectors] + int64(i%cutSectors)*sector }

func stampSector(value uint64) []byte {
	p := make([]byte, sector)
	binary.LittleEndian.PutUint64(p, value)
	binary.LittleEndian.PutUint64(p[sector-8:], value)
	return p
}

// cutBase makes the base of a disk, whose sectors have stamps.
func cutBase(t testing.TB) (path string, model *cutModel) {
	t.Helper()
	path = newFile(t, cutSize)
	f, err := os.OpenFile(path, os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	model = new(cutModel)
	for i := range model.now {
		model.stamp++
		model.now[i] = model.stamp
		model.may[i] = []uint64{model.stamp}
		if _, err := f.WriteAt(stampSector(model.stamp), cutOffset(i)); err != nil {
			t.Fatal(err)
		}
	}
	return path, model
}

// stampOf returns the stamp of a sector.
func stampOf(p []byte) uint64 { return binary.LittleEndian.Uint64(p) }

// wrote notes that sectors may have a value: if the write was answered, they
// have.
func (m *cutModel) wrote(first, n int, value uint64, err error) {
	for i := first; i < first+n; i++ {
		m.may[i] = append(m.may[i], value)
		if err == nil {
			m.now[i] = value
		} else {
			m.unsure[i] = append(m.unsure[i], value)
		}
	}
}

// flushed notes that what sectors have is durable.
func (m *cutModel) flushed(first, n int) {
	for i := first; i < first+n; i++ {
		m.may[i] = append(m.may[i][:0], m.now[i])
	}
}

// check compares what a disk holds with what its sectors may hold, which is
// taken as durable from then on.
func (m *cutModel) check(t testing.TB, read func(p []byte, off int64) error, after ending) {
	t.Helper()
	p := make([]byte, sector)
	for i := range m.now {
		if err := read(p, cutOffset(i)); err != nil {
			t.Fatal(err)
		}
		got := stampOf(p)
		if end := stampOf(p[sector-8:]); end != got {
			t.Errorf("sector %d is torn: %d and %d", i, got, end)
		}
		may := []uint64{m.now[i]}
		switch after {
		case killed:
			may = append(may, m.unsure[i]...)
		case powerCut:
			may = m.may[i]
		}
		if !slices.Contains(may, got) {
			t.Errorf("sector %d has the stamp %d, and may have one of %d", i, got, may)
		}
		m.now[i], m.unsure[i] = got, nil
	}
	m.flushed(0, len(m.now))
}
