package backend

import (
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"sync"

	"github.com/viablk/viablk/internal/block"
	"golang.org/x/sys/unix"
)

// pageView tells which pages of a private mapping exist. It reads the kernel's
// page map, because mincore(2) does not see what is in swap.
type pageView struct {
	fd    int
	first int64 // number of the mapping's first page in the address space
	page  int64 // bytes
}

const (
	pageEntry   = 8 // bytes of the page map for each page
	pagePresent = 1 << 63
	pageSwapped = 1 << 62

	// pagesAtOnce are read with one call, and pagesPerStatus for one request: a
	// page takes some nanoseconds, during which other requests of the queue
	// wait.
	pagesAtOnce    = 8 << 10
	pagesPerStatus = 64 << 10
)

// entries is memory for reading the page map.
var entries = sync.Pool{New: func() any { return new([pagesAtOnce * pageEntry]byte) }}

func newPageView(mapping []byte) (*pageView, error) {
	fd, err := unix.Open("/proc/self/pagemap", unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("open the page map: %w", err)
	}
	page := int64(unix.Getpagesize())
	v := &pageView{fd: fd, first: int64(address(mapping)) / page, page: page}
	// A container may hide it, or let only its entries be zeroes: then what was
	// written would be a hole.
	probe := make([]byte, 1)
	probe[0] = 1
	at := int64(address(probe)) / page
	var b [pageEntry]byte
	if _, err := unix.Pread(fd, b[:], at*pageEntry); err != nil || binary.NativeEndian.Uint64(b[:])&(pagePresent|pageSwapped) == 0 {
		v.close()
		return nil, errors.Join(errors.New("the page map does not tell"), err)
	}
	return v, nil
}

// close closes the view, if there is one.
func (v *pageView) close() {
	if v != nil {
		_ = unix.Close(v.fd)
	}
}

// status answers what of a range has pages, for as many pages as one call may
// take.
func (v *pageView) status(r *block.Request) error {
	buffer := entries.Get().(*[pagesAtOnce * pageEntry]byte)
	defer entries.Put(buffer)
	off, end := r.Offset, r.Offset+r.Length
	for checked := 0; checked < pagesPerStatus && off < end; checked += pagesAtOnce {
		first := off / v.page
		pages := min((end+v.page-1)/v.page-first, pagesAtOnce)
		n, err := unix.Pread(v.fd, buffer[:pages*pageEntry], (v.first+first)*pageEntry)
		if err != nil && err != unix.EINTR {
			return os.NewSyscallError("read the page map", err)
		}
		for b := buffer[:max(n, 0)&^(pageEntry-1)]; len(b) > 0; {
			run, flags := pageRun(b)
			next := (off/v.page + int64(run)) * v.page
			if !r.AddExtent(next-off, flags) {
				return nil
			}
			off, b = next, b[run*pageEntry:]
		}
	}
	if len(r.Extents) == 0 {
		r.AddExtent(r.Length, 0) // interrupted every time: data is always true
	}
	return nil
}

// pageRun returns how many of the first entries of b say the same, and what.
func pageRun(b []byte) (n int, flags block.ExtentFlags) {
	exists := func(i int) bool {
		return binary.NativeEndian.Uint64(b[i*pageEntry:])&(pagePresent|pageSwapped) != 0
	}
	flags = block.Hole | block.Zero
	if exists(0) {
		flags = 0
	}
	for n = 1; n < len(b)/pageEntry && exists(n) == (flags == 0); n++ {
	}
	return n, flags
}
