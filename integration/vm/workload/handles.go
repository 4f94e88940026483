package workload

import (
	"errors"
	"fmt"
	"os"
	"runtime/debug"

	"golang.org/x/sys/unix"
)

// handles are a file, or a disk, open twice: through the page cache and past
// it.
type handles struct {
	path             string
	buffered, direct int // descriptors; direct is negative if there is none
}

func (h *handles) open(flags int) error {
	var err error
	if h.buffered, err = unix.Open(h.path, unix.O_RDWR|unix.O_CLOEXEC|flags, 0o600); err != nil {
		return fmt.Errorf("open %s: %w", h.path, err)
	}
	h.direct, err = unix.Open(h.path, unix.O_RDWR|unix.O_CLOEXEC|unix.O_DIRECT, 0)
	if err != nil && err != unix.EINVAL {
		return errors.Join(fmt.Errorf("open %s past the page cache: %w", h.path, err), h.close())
	}
	return nil
}

func (h *handles) close() error {
	err := unix.Close(h.buffered)
	if h.direct >= 0 {
		err = errors.Join(err, unix.Close(h.direct))
	}
	h.buffered, h.direct = -1, -1
	return err
}

// transfer reads or writes. A read that ends early is at the end of the file.
func (h *handles) transfer(o Op, p []byte) (n int, err error) {
	switch o.Kind {
	case ReadMapped, WriteMapped:
		return h.mapped(o, p)
	case Read, ReadDirect:
		for n < len(p) {
			got, err := unix.Pread(h.of(o.Kind), p[n:], o.Offset+int64(n))
			if err != nil || got == 0 {
				return n, err
			}
			n += got
			if o.Kind == ReadDirect {
				return n, nil // the rest would be no multiple of the blocks
			}
		}
		return n, nil
	}
	for n < len(p) {
		did, err := unix.Pwrite(h.of(o.Kind), p[n:], o.Offset+int64(n))
		if err != nil {
			return n, err
		}
		n += did
	}
	return n, nil
}

func (h *handles) of(k Kind) int {
	if k == ReadDirect || k == WriteDirect {
		return h.direct
	}
	return h.buffered
}

// mapped reads or writes memory.
func (h *handles) mapped(o Op, p []byte) (n int, err error) {
	page := int64(os.Getpagesize())
	from := o.Offset - o.Offset%page
	end := (o.Offset + o.Length + page - 1) / page * page
	memory, err := unix.Mmap(h.buffered, from, int(end-from), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		return 0, fmt.Errorf("map: %w", err)
	}
	defer func() {
		if e := unix.Munmap(memory); err == nil {
			err = e
		}
	}()
	// A page that cannot be read is a fault at its address.
	defer debug.SetPanicOnFault(debug.SetPanicOnFault(true))
	defer func() {
		if fault := recover(); fault != nil {
			err = fmt.Errorf("map: %v", fault)
		}
	}()
	part := memory[o.Offset-from:][:o.Length]
	if o.Kind == ReadMapped {
		return copy(p, part), nil
	}
	n = copy(part, p)
	if o.Offset%2 == 0 {
		err = unix.Msync(memory, unix.MS_SYNC)
	}
	return n, err
}
