package backend

import (
	"runtime"
	"sync/atomic"
	"testing"

	"github.com/viablk/viablk/internal/block"
	"golang.org/x/sys/unix"
)

// strict is a kernel that knows which blocks of 4 KiB a file has, and counts
// the writes into holes. Blocks come and go one by one, with others in between.
type strict struct {
	linux
	blocks      []atomic.Bool
	intoHoles   atomic.Int64
	allocations atomic.Int64
	allocated   func() // if set, called when an allocation is done, before it returns
	punching    func() // if set, called when a punch begins
}

const strictBlock = 4096

func (s *strict) pwrite(fd int, p []byte, off int64, dsync bool) (int, error) {
	for b := off / strictBlock; b <= (off+int64(len(p))-1)/strictBlock; b++ {
		if !s.blocks[b].Load() {
			s.intoHoles.Add(1)
		}
	}
	return s.linux.pwrite(fd, p, off, dsync)
}

func (s *strict) fallocate(fd int, mode uint32, off, length int64) error {
	end := min(off+length, int64(len(s.blocks))*strictBlock)
	switch mode {
	case unix.FALLOC_FL_KEEP_SIZE:
		s.allocations.Add(1)
		for b := off / strictBlock; b < (end+strictBlock-1)/strictBlock; b++ {
			s.blocks[b].Store(true)
			runtime.Gosched()
		}
		if s.allocated != nil {
			s.allocated()
		}
		return nil
	case unix.FALLOC_FL_KEEP_SIZE | unix.FALLOC_FL_PUNCH_HOLE:
		if s.punching != nil {
			s.punching()
		}
		for b := (off + strictBlock - 1) / strictBlock; b < end/strictBlock; b++ {
			s.blocks[b].Store(false)
			runtime.Gosched()
		}
	}
	return s.linux.fallocate(fd, mode, off, length)
}

// openStrict opens a new file of size bytes.
func openStrict(t *testing.T, size int64) (*strict, *block.Disk, string) {
	t.Helper()
	k := &strict{blocks: make([]atomic.Bool, 2*size/strictBlock)}
	path := newFile(t, size)
	d, err := openFile(path, fileOptions{}, k)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if n := k.intoHoles.Load(); n != 0 {
			t.Errorf("%d blocks were written that are holes", n)
		}
	})
	return k, viewOf(t, d), path
}
