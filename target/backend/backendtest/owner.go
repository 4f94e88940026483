package backendtest

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"time"

	"github.com/viablk/viablk/internal/block"
	"golang.org/x/sys/unix"
)

// owner drives one queue as the worker of a connection does. Its methods return
// errors, because owners run on goroutines where a test must not end.
type owner struct {
	queue    block.Queue
	limit    time.Duration
	inFlight int // requests

	dst     [32]*block.Request
	poll    [1]unix.PollFd
	timeout unix.Timespec
}

// owner opens a queue and closes it at the end of the case.
func (k *kit) owner(d block.Device, depth int) *owner {
	k.Helper()
	q, err := d.NewQueue(depth)
	if err != nil {
		k.Fatalf("open a queue of depth %d: %v", depth, err)
	}
	k.Cleanup(func() {
		if err := q.Close(); err != nil {
			k.Errorf("close a queue: %v", err)
		}
	})
	return &owner{queue: q, limit: k.options.Timeout}
}

// submit submits r, which the queue must take.
func (o *owner) submit(r *block.Request) error {
	if !o.queue.Submit(r) {
		return fmt.Errorf("the queue refuses a %v with %d requests in flight", r.Op, o.inFlight)
	}
	o.inFlight++
	return nil
}

// next returns at least one finished request; the slice is valid until the next
// call. It sleeps by the protocol: Reap, Arm, poll.
func (o *owner) next() ([]*block.Request, error) {
	deadline := time.Now().Add(o.limit)
	for {
		if n := o.queue.Reap(o.dst[:]); n > 0 {
			o.inFlight -= n
			if o.inFlight < 0 {
				return nil, fmt.Errorf("the queue returned %d requests too many", -o.inFlight)
			}
			return o.dst[:n], nil
		}
		d, ok := o.queue.Arm()
		if !ok && time.Now().Before(deadline) {
			continue // Reap has something to return or to do
		}
		if o.queue.FD() < 0 && d < 0 {
			return nil, fmt.Errorf("%d requests are in flight in a queue without a file descriptor", o.inFlight)
		}
		left := time.Until(deadline)
		if left <= 0 {
			return nil, fmt.Errorf("%d requests made no progress within %v: a wake-up is lost", o.inFlight, o.limit)
		}
		if d >= 0 {
			left = min(left, d)
		}
		if _, err := o.sleep(left); err != nil {
			return nil, err
		}
	}
}

// sleep polls for at most d and reports whether the queue is readable.
func (o *owner) sleep(d time.Duration) (bool, error) {
	o.poll[0] = unix.PollFd{Fd: int32(o.queue.FD()), Events: unix.POLLIN}
	o.timeout = unix.NsecToTimespec(int64(d))
	n, err := unix.Ppoll(o.poll[:], &o.timeout, nil)
	if err != nil && err != unix.EINTR {
		return false, fmt.Errorf("poll the queue: %w", err)
	}
	return n > 0, nil
}

// drain waits for every request in flight and calls done with each request.
func (o *owner) drain(done func(*block.Request) error) error {
	o.queue.Kick()
	for o.inFlight > 0 {
		finished, err := o.next()
		if err != nil {
			return err
		}
		for _, r := range finished {
			if done == nil {
				if r.Err != nil {
					return fmt.Errorf("%v of %d bytes at %d: %w", r.Op, r.Length, r.Offset, r.Err)
				}
			} else if err := done(r); err != nil {
				return err
			}
		}
	}
	return nil
}

// reserve reserves memory for r, after every request in flight is done if there
// is none before.
func (o *owner) reserve(r *block.Request, done func(*block.Request) error) error {
	if o.queue.Reserve(r) {
		return nil
	}
	if err := o.drain(done); err != nil {
		return err
	}
	if !o.queue.Reserve(r) {
		return fmt.Errorf("no memory for %d bytes with no request in flight", r.Length)
	}
	return nil
}

// run runs one request with no other request in flight and returns its result.
func (o *owner) run(r *block.Request) error {
	if err := o.submit(r); err != nil {
		return err
	}
	var result error
	err := o.drain(func(got *block.Request) error {
		if got != r {
			return fmt.Errorf("the queue returned a request that is not in flight")
		}
		result = got.Err
		return nil
	})
	if err != nil {
		return err
	}
	return result
}

// must runs one request, which must succeed.
func (k *kit) must(o *owner, r *block.Request) {
	k.Helper()
	if err := o.run(r); err != nil {
		k.Fatalf("%v of %d bytes at %d, flags %b: %v", r.Op, r.Length, r.Offset, r.Flags, err)
	}
}

// write writes p from the kit's own memory.
func (k *kit) write(o *owner, p []byte, off int64, flags block.Flags) {
	k.Helper()
	k.must(o, &block.Request{Op: block.Write, Flags: flags, Offset: off, Length: int64(len(p)), Data: p})
}

// read reads n bytes into the kit's own memory.
func (k *kit) read(o *owner, off int64, n int) []byte {
	k.Helper()
	p := bytes.Repeat([]byte{0xA5}, n) // so that what is not filled shows
	k.must(o, &block.Request{Op: block.Read, Offset: off, Length: int64(n), Data: p})
	return p
}

// pattern fills p with bytes that depend on seed and position.
func pattern(p []byte, seed uint64) []byte {
	z := seed*0x9e3779b97f4a7c15 + 1
	var piece [4096]byte
	for rest := p; len(rest) > 0; {
		z = scatter(&piece, z)
		rest = rest[copy(rest, piece[:]):]
	}
	return p
}

// scatter fills a piece of memory of its caller's, and returns what follows z.
// The race detector, which would look at every word, sees the copy of the
// piece.
//
//go:norace
func scatter(piece *[4096]byte, z uint64) uint64 {
	for at := 0; at < len(piece); at += 8 {
		z ^= z << 13
		z ^= z >> 7
		z ^= z << 17
		binary.LittleEndian.PutUint64(piece[at:], z)
	}
	return z
}

// zero reports whether every byte is zero.
func zero(p []byte) bool {
	return len(p) == 0 || p[0] == 0 && bytes.Equal(p[1:], p[:len(p)-1])
}
