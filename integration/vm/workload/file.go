package workload

import (
	"errors"
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

// File is a file as a region. The caller closes it.
type File struct {
	handles
	limits Limits
	kinds  []Kind
}

// modes are fallocate's.
var modes = map[Kind]uint32{
	Punch: unix.FALLOC_FL_PUNCH_HOLE | unix.FALLOC_FL_KEEP_SIZE, Zero: unix.FALLOC_FL_ZERO_RANGE | unix.FALLOC_FL_KEEP_SIZE,
	Collapse: unix.FALLOC_FL_COLLAPSE_RANGE, Insert: unix.FALLOC_FL_INSERT_RANGE, Allocate: 0,
}

// OpenFile makes a file of up to a size, and finds out what its file system can
// do to it.
func OpenFile(path string, size int64) (*File, error) {
	f := &File{handles: handles{path: path, direct: -1}, limits: Limits{Size: size, Direct: sector, Block: 4096}}
	if err := f.open(unix.O_CREAT | unix.O_TRUNC); err != nil {
		return nil, err
	}
	if err := f.probe(); err != nil {
		return nil, errors.Join(err, f.close())
	}
	return f, nil
}

// probe finds out what can be done.
func (f *File) probe() error {
	f.kinds = []Kind{Read, Write, ReadMapped, WriteMapped, Truncate, Sync, DataSync, Reopen, Forget}
	if f.direct >= 0 {
		var st unix.Statx_t
		if err := unix.Statx(f.direct, "", unix.AT_EMPTY_PATH, unix.STATX_DIOALIGN, &st); err != nil {
			return fmt.Errorf("look at %s: %w", f.path, err)
		}
		if st.Mask&unix.STATX_DIOALIGN == 0 {
			f.limits.Direct = f.limits.Block // safe everywhere
		} else {
			f.limits.Direct = max(sector, int64(st.Dio_offset_align))
		}
		f.kinds = append(f.kinds, ReadDirect, WriteDirect)
	}
	for _, k := range []Kind{Punch, Zero, Collapse, Insert, Allocate} {
		if err := unix.Ftruncate(f.buffered, 4*f.limits.Block); err != nil {
			return fmt.Errorf("truncate %s: %w", f.path, err)
		}
		err := unix.Fallocate(f.buffered, modes[k], f.limits.Block, f.limits.Block)
		switch {
		case err == nil:
			f.kinds = append(f.kinds, k)
		case err != unix.EOPNOTSUPP:
			return fmt.Errorf("%v in %s: %w", k, f.path, err)
		}
	}
	return nil
}

// Kinds implements [Region].
func (f *File) Kinds() []Kind { return f.kinds }

// Limits implements [Region].
func (f *File) Limits() Limits { return f.limits }

// Size implements [Region].
func (f *File) Size() (int64, error) {
	st, err := os.Stat(f.path)
	if err != nil {
		return 0, err
	}
	return st.Size(), nil
}

// Close closes the file.
func (f *File) Close() error { return f.close() }

// Do implements [Region].
func (f *File) Do(o Op, p []byte) (int, error) {
	switch o.Kind {
	case Truncate:
		return 0, unix.Ftruncate(f.buffered, o.Offset)
	case Punch, Zero, Collapse, Insert, Allocate:
		return 0, unix.Fallocate(f.buffered, modes[o.Kind], o.Offset, o.Length)
	case Sync:
		return 0, unix.Fsync(f.buffered)
	case DataSync:
		return 0, unix.Fdatasync(f.buffered)
	case Reopen:
		if err := f.close(); err != nil {
			return 0, err
		}
		return 0, f.open(0)
	case Forget:
		if err := unix.Fsync(f.buffered); err != nil {
			return 0, err
		}
		return 0, unix.Fadvise(f.buffered, 0, 0, unix.FADV_DONTNEED)
	}
	return f.transfer(o, p)
}
