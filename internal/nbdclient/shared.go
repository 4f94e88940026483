package nbdclient

import (
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/viablk/viablk/internal/block"
	"github.com/viablk/viablk/internal/contain"
	"github.com/viablk/viablk/internal/ring"
	"golang.org/x/sys/unix"
)

// shared is the connection of a server whose connections do not see each
// other's flushes: all queues of the device use it. A goroutine drives it; the
// queues hand requests over, and get them back.
type shared struct {
	queue *queue // routineShared's
	bell  *bell  // wakes routineShared
	ended chan struct{}

	mu sync.Mutex
	// +checklocks:mu
	arrived []sharedRequest
	// +checklocks:mu
	queues []*sharedQueue // by the token of their requests; nil is free
	// +checklocks:mu
	abandoned []uint64 // queues that do not wait for the server any longer
	// +checklocks:mu
	closing bool
}

// sharedRequest is a request, and the queue that it is of.
type sharedRequest struct {
	r     *block.Request
	queue uint64
}

// newShared starts with the first connection, which it takes.
func newShared(d *Device, c *connection) (*shared, error) {
	q, err := newQueue(d, block.MaximumDepth, c)
	if err != nil {
		return nil, err
	}
	b, err := newBell()
	if err != nil {
		return nil, errors.Join(err, q.Close())
	}
	s := &shared{queue: q, bell: b, ended: make(chan struct{})}
	go s.routineShared()
	return s, nil
}

// routineShared drives the connection until close.
func (s *shared) routineShared() {
	defer close(s.ended)
	defer contain.Shared()
	reaped := make([]*block.Request, block.MaximumDepth)
	poll := make([]unix.PollFd, 2)
	var waiting []sharedRequest
	for {
		s.bell.receiveRings()
		var closing bool
		if waiting, closing = s.receive(waiting); closing {
			return
		}
		n := 0
		for n < len(waiting) && s.submit(waiting[n]) {
			n++
		}
		waiting = slices.Delete(waiting, 0, n)
		s.queue.Kick()
		s.discard()
		s.deliver(reaped[:s.queue.Reap(reaped)])
		d, ok := s.queue.Arm()
		if !ok {
			continue
		}
		poll[0] = unix.PollFd{Fd: int32(s.bell.fd), Events: unix.POLLIN}
		poll[1] = unix.PollFd{Fd: int32(s.queue.FD()), Events: unix.POLLIN}
		timeout := -1
		if d >= 0 {
			timeout = int((d + time.Millisecond - 1) / time.Millisecond)
		}
		if _, err := unix.Poll(poll, timeout); err != nil && err != unix.EINTR {
			time.Sleep(time.Millisecond) // requests are in flight: only waiting is safe
		}
	}
}

// submit submits a request to the connection. It returns false while that has
// as many as it holds.
func (s *shared) submit(a sharedRequest) bool {
	a.r.Token = a.queue
	return s.queue.Submit(a.r)
}

// receive appends the requests that have arrived to dst.
func (s *shared) receive(dst []sharedRequest) ([]sharedRequest, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	dst = append(dst, s.arrived...)
	clear(s.arrived)
	s.arrived = s.arrived[:0]
	return dst, s.closing
}

// discard ends the requests of queues that do not wait any longer, and the
// connection, which may still bring an answer.
func (s *shared) discard() {
	s.mu.Lock()
	abandoned := s.abandoned
	s.abandoned = nil
	s.mu.Unlock()
	for _, token := range abandoned {
		if s.queue.link != nil {
			s.queue.lose(errSilent)
		}
		s.queue.discard(func(r *block.Request) bool { return r.Token == token })
	}
}

// deliver hands finished requests to their queues.
func (s *shared) deliver(finished []*block.Request) {
	for len(finished) > 0 {
		token, n := finished[0].Token, 1
		for n < len(finished) && finished[n].Token == token {
			n++
		}
		s.mu.Lock()
		q := s.queues[token]
		s.mu.Unlock()
		q.deliver(finished[:n])
		finished = finished[n:]
	}
}

// newQueue opens a queue.
func (s *shared) newQueue(depth int) (block.Queue, error) {
	buffers, err := block.NewBuffers(block.PayloadLimit)
	if err != nil {
		return nil, err
	}
	b, err := newBell()
	if err != nil {
		return nil, err
	}
	q := &sharedQueue{
		Buffers: buffers, shared: s, bell: b, depth: depth, submitted: make([]sharedRequest, 0, depth), done: ring.New[*block.Request](depth),
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	free := slices.Index(s.queues, nil)
	if free < 0 {
		free = len(s.queues)
		s.queues = append(s.queues, nil)
	}
	s.queues[free], q.token = q, uint64(free)
	return q, nil
}

// close ends the connection. No queue is open.
func (s *shared) close() error {
	s.mu.Lock()
	s.closing = true
	s.mu.Unlock()
	s.bell.ring()
	<-s.ended
	return errors.Join(s.queue.Close(), s.bell.close())
}

// sharedQueue is a [block.Queue] that shares its connection.
type sharedQueue struct {
	*block.Buffers
	shared    *shared
	token     uint64
	depth     int
	held      int             // requests submitted and not reaped
	submitted []sharedRequest // before Kick
	bell      *bell
	aborted   bool
	closed    bool

	mu sync.Mutex
	// +checklocks:mu
	done ring.Ring[*block.Request]
}

// Submit implements [block.Queue].
func (q *sharedQueue) Submit(r *block.Request) bool {
	if q.held == q.depth {
		return false
	}
	q.held++
	q.submitted = append(q.submitted, sharedRequest{r, q.token})
	if q.aborted {
		q.cancel(q.submitted)
		q.submitted = q.submitted[:0]
	}
	return true
}

// Kick implements [block.Queue].
func (q *sharedQueue) Kick() {
	if len(q.submitted) == 0 {
		return
	}
	s := q.shared
	s.mu.Lock()
	s.arrived = append(s.arrived, q.submitted...)
	s.mu.Unlock()
	clear(q.submitted)
	q.submitted = q.submitted[:0]
	s.bell.ring()
}

// deliver takes finished requests.
func (q *sharedQueue) deliver(finished []*block.Request) {
	q.mu.Lock()
	for _, r := range finished {
		q.done.Push(r)
	}
	q.mu.Unlock()
	q.bell.ring()
}

// Reap implements [block.Queue].
func (q *sharedQueue) Reap(dst []*block.Request) int {
	q.bell.receiveRings()
	q.Kick()
	q.mu.Lock()
	n := q.done.PopInto(dst)
	q.mu.Unlock()
	q.held -= n
	return n
}

// Arm implements [block.Queue].
func (q *sharedQueue) Arm() (time.Duration, bool) {
	q.mu.Lock()
	empty := q.done.Empty()
	q.mu.Unlock()
	if !empty || len(q.submitted) > 0 {
		return 0, false
	}
	return q.Tidy(), true
}

// FD implements [block.Queue].
func (q *sharedQueue) FD() int { return q.bell.fd }

// Abort implements [block.Queue].
func (q *sharedQueue) Abort() {
	q.aborted = true
	q.cancel(q.submitted)
	q.submitted = q.submitted[:0]
	s := q.shared
	s.mu.Lock()
	var mine []sharedRequest
	s.arrived = slices.DeleteFunc(s.arrived, func(a sharedRequest) bool {
		if a.queue == q.token {
			mine = append(mine, a)
		}
		return a.queue == q.token
	})
	s.mu.Unlock()
	q.cancel(mine)
}

// cancel ends requests that have not begun.
func (q *sharedQueue) cancel(requests []sharedRequest) {
	q.mu.Lock()
	defer q.mu.Unlock()
	for _, a := range requests {
		a.r.Err = unix.ECANCELED
		q.done.Push(a.r)
	}
}

// Close implements [block.Queue].
func (q *sharedQueue) Close() error {
	if q.closed {
		return nil
	}
	q.closed = true
	q.Abort()
	s := q.shared
	var reaped [16]*block.Request
	for until := time.Now().Add(closeTimeout); q.held > 0; {
		if q.Reap(reaped[:]) > 0 {
			continue
		}
		if _, ok := q.Arm(); !ok {
			continue
		}
		left := time.Until(until)
		if left <= 0 {
			s.mu.Lock()
			s.abandoned = append(s.abandoned, q.token)
			s.mu.Unlock()
			s.bell.ring()
			until, left = time.Now().Add(closeTimeout), closeTimeout
		}
		_, err := unix.Poll([]unix.PollFd{{Fd: int32(q.bell.fd), Events: unix.POLLIN}}, int(left.Milliseconds())+1)
		if err != nil && err != unix.EINTR {
			return fmt.Errorf("close a queue: %w", err)
		}
	}
	s.mu.Lock()
	s.queues[q.token] = nil
	s.mu.Unlock()
	return errors.Join(q.bell.close(), q.Buffers.Close())
}
