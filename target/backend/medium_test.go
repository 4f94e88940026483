package backend

import (
	"encoding/binary"
	"os"
	"path/filepath"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

const (
	mediumBlock  = 4096
	mediumBlocks = 4
	recordName   = "user.viablk.identity"
)

// contents are the number at the beginning of each block of a disk.
type contents [mediumBlocks]uint64

// medium is a file and what of it outlives a power cut: a model of the page
// cache above the real file. It is the kernel of the file too. One goroutine
// uses it at a time.
//
// A record is durable when it is stored, as fsync(2) says. The data that such
// an fsync covers counts as durable at the next fdatasync only.
type medium struct {
	linux
	path    string
	cached  contents // what reads return
	durable contents
	dirty   [mediumBlocks]bool // written since the kernel wrote the block back

	failing bool // fdatasync and durable writes fail

	// As the record says: opened and not closed, and in which boot; a flush
	// failed, and no person has accepted that.
	unclean bool
	boot    int
	failed  bool
}

// newMedium makes an empty file.
func newMedium(t testing.TB, path string) *medium {
	t.Helper()
	if err := os.WriteFile(path, make([]byte, mediumBlocks*mediumBlock), 0o600); err != nil {
		t.Fatal(err)
	}
	return &medium{path: path}
}

func (m *medium) pwrite(fd int, p []byte, off int64, dsync bool) (int, error) {
	if dsync && m.failing {
		return 0, unix.EIO
	}
	n, err := m.linux.pwrite(fd, p, off, false)
	if err != nil {
		return n, err
	}
	for at := 0; at < n; at += mediumBlock {
		i := (off + int64(at)) / mediumBlock
		m.cached[i] = binary.LittleEndian.Uint64(p[at:])
		m.dirty[i] = !dsync
		if dsync {
			m.durable[i] = m.cached[i]
		}
	}
	return n, nil
}

// fdatasync writes back what is dirty. A failed one forgets what is dirty: the
// next one does not write it either.
func (m *medium) fdatasync(int) error {
	for i := range m.dirty {
		if m.dirty[i] && !m.failing {
			m.durable[i] = m.cached[i]
		}
		m.dirty[i] = false
	}
	if m.failing {
		return unix.EIO
	}
	return nil
}

// powerCut takes from the file what is not durable, and keeps its time of
// modification. Of what the kernel has not written back, blocks may be there.
func (m *medium) powerCut(t testing.TB, written func() bool) {
	t.Helper()
	var lost []int
	for i := range m.cached {
		if m.dirty[i] && written() {
			m.durable[i] = m.cached[i]
		}
		m.dirty[i] = false
		if m.cached[i] != m.durable[i] {
			lost = append(lost, i)
		}
	}
	if len(lost) == 0 {
		return
	}
	times := m.times(t)
	f, err := os.OpenFile(m.path, os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	for _, i := range lost {
		m.cached[i] = m.durable[i]
		if _, err := f.WriteAt(stamp(m.cached[i]), int64(i)*mediumBlock); err != nil {
			t.Fatal(err)
		}
	}
	m.setTimes(t, times)
}

// scribble changes the file as another program does, and its time of
// modification, whose steps are those of the kernel's clock.
func (m *medium) scribble(t testing.TB, value uint64) {
	t.Helper()
	f, err := os.OpenFile(m.path, os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if _, err := f.WriteAt(stamp(value), 0); err != nil {
		t.Fatal(err)
	}
	m.cached[0], m.durable[0] = value, value
	m.setTimes(t, m.times(t).Add(time.Second))
}

// copyTo copies the file with its attributes and times.
func (m *medium) copyTo(t testing.TB, path string) *medium {
	t.Helper()
	b, err := os.ReadFile(m.path)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, b, 0o600); err != nil {
		t.Fatal(err)
	}
	c := &medium{path: path, cached: m.cached, durable: m.cached}
	if r := m.record(t); r != nil {
		c.setRecord(t, r)
	}
	c.setTimes(t, m.times(t))
	return c
}

// move renames the file.
func (m *medium) move(t testing.TB, path string) {
	t.Helper()
	if err := os.Rename(m.path, path); err != nil {
		t.Fatal(err)
	}
	m.path = path
}

// record returns the identity record of the file, or nil.
func (m *medium) record(t testing.TB) []byte {
	t.Helper()
	b := make([]byte, 4096)
	n, err := unix.Getxattr(m.path, recordName, b)
	switch err {
	case nil:
		return b[:n]
	case unix.ENODATA:
		return nil
	}
	t.Fatal(err)
	return nil
}

// setRecord stores the record, or removes it.
func (m *medium) setRecord(t testing.TB, b []byte) {
	t.Helper()
	var err error
	if b == nil {
		if err = unix.Removexattr(m.path, recordName); err == unix.ENODATA {
			err = nil
		}
	} else {
		err = unix.Setxattr(m.path, recordName, b, 0)
	}
	if err != nil {
		t.Fatal(err)
	}
}

func (m *medium) times(t testing.TB) time.Time {
	t.Helper()
	st, err := os.Stat(m.path)
	if err != nil {
		t.Fatal(err)
	}
	return st.ModTime()
}

func (m *medium) setTimes(t testing.TB, at time.Time) {
	t.Helper()
	if err := os.Chtimes(m.path, at, at); err != nil {
		t.Fatal(err)
	}
}

// stamp is a block that begins with a number.
func stamp(value uint64) []byte {
	b := make([]byte, mediumBlock)
	binary.LittleEndian.PutUint64(b, value)
	return b
}

// memoryFolder returns a folder in memory, if its file system keeps extended
// attributes: a flush costs nothing there.
func memoryFolder(t testing.TB) string {
	t.Helper()
	folder, err := os.MkdirTemp("/dev/shm", "viablk-test-")
	if err != nil {
		return t.TempDir()
	}
	t.Cleanup(func() { _ = os.RemoveAll(folder) })
	probe := filepath.Join(folder, "probe")
	if os.WriteFile(probe, nil, 0o600) != nil || unix.Setxattr(probe, recordName, []byte("x"), 0) != nil || os.Remove(probe) != nil {
		return t.TempDir()
	}
	return folder
}
