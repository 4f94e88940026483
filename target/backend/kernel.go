package backend

import (
	"golang.org/x/sys/unix"

	"github.com/viablk/viablk/internal/blockdev"
)

// kernel is the system calls of a file, so that tests can have them fail. No
// method retries anything.
type kernel interface {
	// pread reads; with noWait only what needs no waiting, EAGAIN if nothing.
	pread(fd int, p []byte, off int64, noWait bool) (int, error)
	// pwrite writes; with dsync it returns when the data is durable.
	pwrite(fd int, p []byte, off int64, dsync bool) (int, error)
	fdatasync(fd int) error
	// writeBack begins to write dirty pages to the medium.
	writeBack(fd int) error
	// seek finds data or a hole at off or behind it: SEEK_DATA, SEEK_HOLE.
	seek(fd int, off int64, whence int) (int64, error)
	fallocate(fd int, mode uint32, off, length int64) error
	// size returns the present size of a regular file.
	size(fd int) (int64, error)
	truncate(fd int, size int64) error
	// discard and zeroOut are BLKDISCARD and BLKZEROOUT.
	discard(fd int, off, length int64) error
	zeroOut(fd int, off, length int64) error
}

// linux is the kernel.
type linux struct{}

func (linux) pread(fd int, p []byte, off int64, noWait bool) (int, error) {
	if noWait {
		return unix.Preadv2(fd, [][]byte{p}, off, unix.RWF_NOWAIT)
	}
	return unix.Pread(fd, p, off)
}

func (linux) pwrite(fd int, p []byte, off int64, dsync bool) (int, error) {
	if dsync {
		return unix.Pwritev2(fd, [][]byte{p}, off, unix.RWF_DSYNC)
	}
	return unix.Pwrite(fd, p, off)
}

func (linux) fdatasync(fd int) error { return unix.Fdatasync(fd) }

func (linux) writeBack(fd int) error {
	return unix.SyncFileRange(fd, 0, 0, unix.SYNC_FILE_RANGE_WRITE)
}

func (linux) seek(fd int, off int64, whence int) (int64, error) { return unix.Seek(fd, off, whence) }

func (linux) fallocate(fd int, mode uint32, off, length int64) error {
	return unix.Fallocate(fd, mode, off, length)
}

func (linux) size(fd int) (int64, error) {
	var st unix.Stat_t
	err := unix.Fstat(fd, &st)
	return st.Size, err
}

func (linux) truncate(fd int, size int64) error { return unix.Ftruncate(fd, size) }

func (linux) discard(fd int, off, length int64) error {
	return blockdev.Discard(fd, off, length)
}

func (linux) zeroOut(fd int, off, length int64) error {
	return blockdev.ZeroOut(fd, off, length)
}
