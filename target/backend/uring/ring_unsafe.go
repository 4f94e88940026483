package uring

import (
	"fmt"
	"sync/atomic"
	"unsafe"

	"golang.org/x/sys/unix"
)

// setup is io_uring_setup(2).
func setup(entries uint32, p *parameters) (int, error) {
	// Safety: the kernel reads and writes 120 bytes, which parameters has, and
	// keeps no reference.
	fd, _, errno := unix.Syscall(unix.SYS_IO_URING_SETUP, uintptr(entries), uintptr(unsafe.Pointer(p)), 0)
	if errno != 0 {
		return -1, errno
	}
	unix.CloseOnExec(int(fd))
	return int(fd), nil
}

// ioUringEnter is io_uring_enter(2).
func ioUringEnter(fd int, submit, wait, flags uint32) (int, error) {
	n, _, errno := unix.Syscall6(unix.SYS_IO_URING_ENTER, uintptr(fd), uintptr(submit), uintptr(wait), uintptr(flags), 0, 0)
	if errno != 0 {
		return 0, errno
	}
	return int(n), nil
}

// supports reports whether the kernel knows the opcodes.
func supports(ring int, opcodes ...int) (bool, error) {
	const operations = 64
	type operation struct {
		_     uint8
		_     uint8
		flags uint16
		_     uint32
	}
	var probe struct {
		last, length uint8
		_            [14]byte
		operations   [operations]operation
	}
	// Safety: the kernel writes to the 16 bytes of the head and to as many
	// operations as it is told there are, and keeps no reference.
	_, _, errno := unix.Syscall6(unix.SYS_IO_URING_REGISTER, uintptr(ring), registerProbe, uintptr(unsafe.Pointer(&probe)), operations, 0, 0)
	if errno != 0 {
		return false, errno
	}
	for _, op := range opcodes {
		if probe.operations[op].flags&1 == 0 {
			return false, nil
		}
	}
	return true, nil
}

// share maps the rings as the kernel says where they are.
func (r *Ring) share(p *parameters) error {
	size := max(p.sq.array+4*p.entries, p.cq.array+uint32(unsafe.Sizeof(completion{}))*p.results)
	const protection, flags = unix.PROT_READ | unix.PROT_WRITE, unix.MAP_SHARED | unix.MAP_POPULATE
	var err error
	if r.mapping, err = unix.Mmap(r.fd, offsetOfRings, int(size), protection, flags); err != nil {
		return fmt.Errorf("map the rings: %w", err)
	}
	entries, err := unix.Mmap(r.fd, offsetOfEntries, int(p.entries)*int(unsafe.Sizeof(submission{})), protection, flags)
	if err != nil {
		return fmt.Errorf("map the operations: %w", err)
	}
	// Safety: the mappings are as long as the counts say, aligned to a page,
	// stay until unmap, and both structures are the kernel's, whose offsets are
	// aligned. Words that both sides write are only accessed atomically.
	base := unsafe.Pointer(unsafe.SliceData(r.mapping))
	word := func(offset uint32) *atomic.Uint32 { return (*atomic.Uint32)(unsafe.Add(base, offset)) }
	r.sqHead, r.sqTail = word(p.sq.head), word(p.sq.tail)
	r.cqHead, r.cqTail = word(p.cq.head), word(p.cq.tail)
	r.results = unsafe.Slice((*completion)(unsafe.Add(base, p.cq.array)), p.results)
	r.entries = unsafe.Slice((*submission)(unsafe.Pointer(unsafe.SliceData(entries))), p.entries)
	order := unsafe.Slice((*uint32)(unsafe.Add(base, p.sq.array)), p.entries)
	for i := range order {
		order[i] = uint32(i) // entries are handed over in the order of their places
	}
	return nil
}

// unmap undoes share, as far as that came.
func (r *Ring) unmap() error {
	var err error
	if r.entries != nil {
		// Safety: it is the mapping of which share made it.
		size := len(r.entries) * int(unsafe.Sizeof(submission{}))
		err = unix.Munmap(unsafe.Slice((*byte)(unsafe.Pointer(unsafe.SliceData(r.entries))), size))
		r.entries = nil
	}
	if r.mapping != nil {
		if e := unix.Munmap(r.mapping); err == nil {
			err = e
		}
		r.mapping = nil
	}
	return err
}

// addressOf returns where p begins. The Ring's contract keeps it there, and
// alive.
func addressOf(p []byte) uint64 {
	// Safety: the number goes to the kernel, and is never turned into a pointer
	// again.
	return uint64(uintptr(unsafe.Pointer(unsafe.SliceData(p))))
}
