package backend

import (
	"github.com/viablk/viablk/internal/block"
	"golang.org/x/sys/unix"
)

// status answers what of a range is data and what is a hole, as the file system
// knows it. One that does not know says that all is data.
func (f *file) status(r *block.Request) error {
	if err := f.within(r.Offset, r.Length, unix.EINVAL); err != nil {
		return err
	}
	off, end := r.Offset, r.Offset+r.Length
	for more := true; more && off < end; {
		data, err := f.kernel.seek(f.fd, off, unix.SEEK_DATA)
		if err == unix.ENXIO {
			data, err = end, nil // nothing but a hole up to the end of the file
		}
		if err == nil && data > off {
			more = r.AddExtent(data-off, block.Hole|block.Zero)
			off = data
			continue
		}
		hole := end
		if err == nil {
			hole, err = f.kernel.seek(f.fd, off, unix.SEEK_HOLE)
		}
		if err != nil || hole <= off {
			hole = end // no answer, or a concurrent hole: data is always true
		}
		more = r.AddExtent(hole-off, 0)
		off = hole
	}
	return nil
}

// prefetch has the kernel read a range ahead. It is a hint: what cannot be done
// is no error.
func (f *file) prefetch(off, length int64) error {
	_ = unix.Fadvise(f.fd, off, length, unix.FADV_WILLNEED)
	return nil
}
