package uring

import (
	"fmt"
	"sync"
	"sync/atomic"

	"golang.org/x/sys/unix"
)

// Ring submits reads and writes of one file to the kernel. One goroutine at a
// time uses it, on whatever thread.
//
// Memory of an operation is the kernel's from the call that names it until Next
// returned its result, or Withdraw took it back: the caller keeps it alive.
type Ring struct {
	fd      int
	file    int32
	mapping []byte // both rings
	entries []submission

	// Of the ring of operations: the kernel takes from head, tail is ours.
	sqHead, sqTail *atomic.Uint32
	tail           uint32 // of what is put in
	handed         uint32 // of what the kernel has been told of

	// Of the ring of results: the kernel appends at tail, head is ours.
	cqHead, cqTail *atomic.Uint32
	results        []completion
}

// submission is struct io_uring_sqe.
type submission struct {
	opcode   uint8
	flags    uint8
	priority uint16
	fd       int32
	offset   uint64
	address  uint64
	length   uint32
	rwFlags  uint32
	user     uint64
	_        [3]uint64
}

// completion is struct io_uring_cqe.
type completion struct {
	user   uint64
	result int32
	_      uint32
}

// parameters is struct io_uring_params.
type parameters struct {
	entries, results           uint32
	flags, cpu, idle, features uint32
	_                          [4]uint32
	sq                         struct {
		head, tail, mask, entries, flags, dropped, array, _ uint32
		_                                                   uint64
	}
	cq struct {
		head, tail, mask, entries, overflow, array, flags, _ uint32
		_                                                    uint64
	}
}

// The numbers of linux/io_uring.h.
const (
	offsetOfRings   = 0
	offsetOfEntries = 0x10000000

	opRead  = 22
	opWrite = 23

	registerProbe = 8
	getEvents     = 1 << 0

	featureSingleMap = 1 << 0
	featureNoDrop    = 1 << 1
)

// New returns a ring for operations on the file fd, of which there are at most
// depth (1 to 4096) at a time. The file stays open as long as the ring.
//
// It is not registered with the ring (IORING_REGISTER_FILES). The kernel would
// keep it open until some time after Close, and with it what the last close
// gives up: locks, and the right to a block device.
func New(fd, depth int) (*Ring, error) {
	if fd < 0 {
		return nil, fmt.Errorf("set an io_uring up for file %d: %w", fd, unix.EBADF)
	}
	var p parameters
	ring, err := setup(uint32(depth), &p)
	if err != nil {
		return nil, fmt.Errorf("set an io_uring up: %w", err)
	}
	r := &Ring{fd: ring, file: int32(fd)}
	if err := r.prepare(&p); err != nil {
		_ = r.Close() // it has nothing in flight
		return nil, fmt.Errorf("set an io_uring up: %w", err)
	}
	return r, nil
}

// prepare maps the rings.
func (r *Ring) prepare(p *parameters) error {
	if p.features&featureSingleMap == 0 || p.features&featureNoDrop == 0 {
		return fmt.Errorf("the kernel's is too old: %w", unix.EOPNOTSUPP)
	}
	return r.share(p)
}

// Probe reports why this process cannot have rings: nil if it can.
var Probe = sync.OnceValue(func() error {
	var p parameters
	fd, err := setup(1, &p)
	if err != nil {
		return fmt.Errorf("set an io_uring up: %w", err)
	}
	defer unix.Close(fd)
	ok, err := supports(fd, opRead, opWrite)
	if err != nil {
		return fmt.Errorf("ask what the kernel's io_uring can do: %w", err)
	}
	if !ok || p.features&featureSingleMap == 0 || p.features&featureNoDrop == 0 {
		return fmt.Errorf("the kernel's io_uring is too old: %w", unix.EOPNOTSUPP)
	}
	return nil
})

// Read puts a read of len(p) bytes at off in. It reports false if depth
// operations are in already. user comes back with the result.
func (r *Ring) Read(p []byte, off int64, user uint64) bool {
	return r.put(opRead, 0, p, off, user)
}

// Write puts a write in. With durable the result comes when the data is
// (RWF_DSYNC).
func (r *Ring) Write(p []byte, off int64, durable bool, user uint64) bool {
	flags := uint32(0)
	if durable {
		flags = unix.RWF_DSYNC
	}
	return r.put(opWrite, flags, p, off, user)
}

func (r *Ring) put(opcode uint8, rwFlags uint32, p []byte, off int64, user uint64) bool {
	if r.tail-r.sqHead.Load() == uint32(len(r.entries)) {
		return false
	}
	r.entries[r.tail&uint32(len(r.entries)-1)] = submission{
		opcode: opcode, fd: r.file, offset: uint64(off),
		address: addressOf(p), length: uint32(len(p)), rwFlags: rwFlags, user: user,
	}
	r.tail++
	return true
}

// Submit hands what was put in over to the kernel. With an error the kernel has
// not taken all of it: it is tried again, or taken back with Withdraw.
func (r *Ring) Submit() error {
	r.sqTail.Store(r.tail)
	for r.handed != r.tail {
		n, err := ioUringEnter(r.fd, r.tail-r.handed, 0, 0)
		r.handed += uint32(n)
		switch {
		case err == unix.EINTR:
		case err != nil:
			return fmt.Errorf("submit to an io_uring: %w", err)
		case n == 0:
			return fmt.Errorf("submit to an io_uring: %w", unix.EAGAIN)
		}
	}
	return nil
}

// Withdraw takes back the operation that was put in last, unless the kernel has
// it, and returns its user.
func (r *Ring) Withdraw() (user uint64, ok bool) {
	if r.tail == r.handed {
		return 0, false
	}
	r.tail--
	r.sqTail.Store(r.tail)
	return r.entries[r.tail&uint32(len(r.entries)-1)].user, true
}

// Ready reports whether Next has a result.
func (r *Ring) Ready() bool { return r.cqHead.Load() != r.cqTail.Load() }

// Next returns the result of an operation: bytes, or an errno that is below 0.
func (r *Ring) Next() (user uint64, result int, ok bool) {
	head := r.cqHead.Load()
	if head == r.cqTail.Load() {
		return 0, 0, false
	}
	c := &r.results[head&uint32(len(r.results)-1)]
	user, result = c.user, int(c.result)
	r.cqHead.Store(head + 1)
	return user, result, true
}

// Wait blocks until there is a result. Something has been submitted.
func (r *Ring) Wait() error {
	for !r.Ready() {
		if _, err := ioUringEnter(r.fd, 0, 1, getEvents); err != nil && err != unix.EINTR {
			return fmt.Errorf("wait for an io_uring: %w", err)
		}
	}
	return nil
}

// FD is readable while there are results.
func (r *Ring) FD() int { return r.fd }

// Close releases the ring, in which nothing is in flight.
func (r *Ring) Close() error {
	err := r.unmap()
	if e := unix.Close(r.fd); err == nil {
		err = e
	}
	if err != nil {
		return fmt.Errorf("close an io_uring: %w", err)
	}
	return nil
}
