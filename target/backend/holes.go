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
	statusOf(f.kernel, f.fd, r, r.Offset, r.Offset+r.Length)
	return nil
}

// statusOf adds what the range from off to end of a file is to an answer. It
// returns false when no more is wanted.
func statusOf(k kernel, fd int, r *block.Request, off, end int64) (more bool) {
	for more = true; more && off < end; {
		data, err := k.seek(fd, off, unix.SEEK_DATA)
		if err == unix.ENXIO {
			data, err = end, nil // nothing but a hole up to the end of the file
		}
		if err == nil && data > off {
			data = min(data, end)
			more = r.AddExtent(data-off, block.Hole|block.Zero)
			off = data
			continue
		}
		hole := end
		if err == nil {
			hole, err = k.seek(fd, off, unix.SEEK_HOLE)
		}
		if err != nil || hole <= off {
			hole = end // no answer, or a concurrent hole: data is always true
		}
		hole = min(hole, end)
		more = r.AddExtent(hole-off, 0)
		off = hole
	}
	return more
}

// prefetch has the kernel read a range ahead. It is a hint: what cannot be done
// is no error.
func (f *file) prefetch(off, length int64) error {
	_ = unix.Fadvise(f.fd, off, length, unix.FADV_WILLNEED)
	return nil
}
