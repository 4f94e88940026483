package backend

import (
	"time"

	"github.com/viablk/viablk/internal/block"
	"github.com/viablk/viablk/internal/eventfd"
	"golang.org/x/sys/unix"
)

// hangPoll is how often a request that hangs looks whether its rule still
// holds.
const hangPoll = 10 * time.Millisecond

// wrapperRules are the delays and faults of a wrapper.
type wrapperRules struct {
	delays [operations]time.Duration
	faults []*fault
}

// Innermost returns the disk behind all others in a disk, as [Open] returned
// it.
func Innermost(d block.Device) block.Device {
	for {
		switch outer := d.(type) {
		case *wrapper:
			d = outer.inner
		case *Volatile:
			d = outer.inner
		case *crc:
			d = outer.inner
		default:
			return d
		}
	}
}

// wrapper is a disk in front of another: `delay:…` or `fault:…`.
type wrapper struct {
	inner block.Device
	rules wrapperRules
}

func newWrapper(inner block.Device, rules wrapperRules) block.Device {
	return &wrapper{inner, rules}
}

func (w *wrapper) Info() block.Info { return w.inner.Info() }
func (w *wrapper) Close() error     { return w.inner.Close() }

// Durability implements [block.DurabilityReporter].
func (w *wrapper) Durability() block.Durability { return block.DurabilityOf(w.inner) }

// Identity implements [block.Identified].
func (w *wrapper) Identity() block.Identity { return block.IdentityOf(w.inner) }

// fate returns the fault that hits r, or nil.
func (w *wrapper) fate(r *block.Request) *fault {
	var hit *fault
	for _, f := range w.rules.faults {
		if f.matches(r) && f.applies() && hit == nil {
			hit = f
		}
	}
	return hit
}

func (w *wrapper) NewQueue(depth int) (block.Queue, error) {
	inner, err := w.inner.NewQueue(depth)
	if err != nil {
		return nil, err
	}
	q := &wrapperQueue{Queue: inner, device: w, depth: depth, fd: inner.FD(), blockedFD: -1}
	if q.fd < 0 {
		// Requests that wait here are in flight although none is in the inner
		// queue.
		q.blockedFD, err = eventfd.New()
		if err != nil {
			_ = inner.Close()
			return nil, err
		}
		q.fd = q.blockedFD
	}
	return q, nil
}

// wrapperQueue is a queue of a wrapper. A request waits for its delay, which is
// the time that a slow disk takes, then goes to the inner queue, is answered,
// or hangs. The clock moves on when the owner calls, and Arm tells the owner
// when to.
type wrapperQueue struct {
	block.Queue   // the inner one; it has all memory
	device        *wrapper
	depth, held   int
	fd, blockedFD int // blockedFD: an eventfd that is never readable, or -1

	waiting  []delayed        // not sorted: a delay is not a fast path
	hung     []delayed        // due is when to check again
	answered []*block.Request // finished here
	halves   map[*block.Request]*block.Request
}

// delayed is a request and what becomes of it.
type delayed struct {
	r    *block.Request
	fate *fault
	due  time.Time
}

func (q *wrapperQueue) FD() int { return q.fd }

func (q *wrapperQueue) Submit(r *block.Request) bool {
	if q.held == q.depth {
		return false
	}
	q.held++
	fate := q.device.fate(r)
	if d := q.device.rules.delays[r.Op]; d > 0 {
		q.waiting = append(q.waiting, delayed{r, fate, time.Now().Add(d)})
	} else {
		q.begin(r, fate)
	}
	return true
}

// begin executes the fate of r.
func (q *wrapperQueue) begin(r *block.Request, fate *fault) {
	what := pass
	if fate != nil {
		what = fate.action
	}
	switch what {
	case pass:
		q.pass(r)
	case fail:
		q.answer(r, fate.errno)
	case ignore:
		q.answer(r, nil)
	case short:
		q.halve(r)
	case hang:
		q.hung = append(q.hung, delayed{r, fate, time.Now().Add(hangPoll)})
	}
}

// pass hands r to the inner queue, which is as deep as this one.
func (q *wrapperQueue) pass(r *block.Request) {
	if !q.Queue.Submit(r) {
		q.answer(r, unix.EIO)
	}
}

func (q *wrapperQueue) answer(r *block.Request, err error) {
	r.Err = err
	q.answered = append(q.answered, r)
}

// halve does the first half of r, in whole blocks. The inner queue sees a
// request of its own, with the caller's memory.
func (q *wrapperQueue) halve(r *block.Request) {
	least := int64(max(q.device.Info().MinimumBlock, 1))
	n := r.Length / 2 &^ (least - 1)
	payload := r.Op == block.Read || r.Op == block.Write
	if n == 0 || payload && r.Data == nil {
		q.answer(r, unix.EIO)
		return
	}
	half := &block.Request{Op: r.Op, Flags: r.Flags, Offset: r.Offset, Length: n}
	if payload {
		half.Data = r.Data[:n]
	}
	if q.halves == nil {
		q.halves = make(map[*block.Request]*block.Request)
	}
	q.halves[half] = r
	q.pass(half)
}

// advance begins what is due, in the order of submission.
func (q *wrapperQueue) advance() {
	if len(q.waiting) == 0 && len(q.hung) == 0 {
		return
	}
	now := time.Now()
	waiting := q.waiting
	q.waiting = waiting[:0]
	for _, d := range waiting {
		if d.due.After(now) {
			q.waiting = append(q.waiting, d)
		} else {
			q.begin(d.r, d.fate)
		}
	}
	clear(waiting[len(q.waiting):])
	hung := q.hung
	q.hung = hung[:0]
	for _, d := range hung {
		switch {
		case d.due.After(now):
			q.hung = append(q.hung, d)
		case d.fate.lasts():
			d.due = now.Add(hangPoll)
			q.hung = append(q.hung, d)
		default:
			q.pass(d.r)
		}
	}
	clear(hung[len(q.hung):])
	q.Queue.Kick()
}

func (q *wrapperQueue) Reap(dst []*block.Request) int {
	q.advance()
	n := copy(dst, q.answered)
	rest := copy(q.answered, q.answered[n:])
	clear(q.answered[rest:])
	q.answered = q.answered[:rest]
	n += q.Queue.Reap(dst[n:])
	for i, r := range dst[:n] {
		dst[i] = q.whole(r)
	}
	q.held -= n
	return n
}

// whole returns the caller's request for one of the inner queue.
func (q *wrapperQueue) whole(r *block.Request) *block.Request {
	if len(q.halves) == 0 {
		return r
	}
	caller, isHalf := q.halves[r]
	if !isHalf {
		return r
	}
	delete(q.halves, r)
	caller.Err = unix.EIO
	return caller
}

func (q *wrapperQueue) Arm() (time.Duration, bool) {
	q.advance()
	if len(q.answered) > 0 {
		return 0, false
	}
	d, ok := q.Queue.Arm()
	if !ok {
		return 0, false
	}
	if due, waits := q.nextDue(); waits {
		if left := max(time.Until(due), time.Nanosecond); d < 0 || left < d {
			d = left
		}
	}
	return d, true
}

// nextDue returns when the clock has to move on.
func (q *wrapperQueue) nextDue() (next time.Time, waits bool) {
	for _, list := range [...][]delayed{q.waiting, q.hung} {
		for i := range list {
			if !waits || list[i].due.Before(next) {
				next, waits = list[i].due, true
			}
		}
	}
	return next, waits
}

// Abort drops requests that hang, and those that the inner queue has not begun.
// A slow disk has begun those that wait, so they still reach the inner queue.
func (q *wrapperQueue) Abort() {
	for _, d := range q.hung {
		q.answer(d.r, unix.ECANCELED)
	}
	q.hung = nil
	q.Queue.Abort()
}

// Close lets requests that wait finish, as a slow disk would, and drops those
// that hang.
func (q *wrapperQueue) Close() error {
	q.Abort()
	for len(q.waiting) > 0 {
		due, _ := q.nextDue()
		time.Sleep(time.Until(due))
		q.advance()
		q.hung = nil
	}
	q.Queue.Kick()
	err := q.Queue.Close()
	_ = eventfd.Close(q.blockedFD)
	q.blockedFD = -1
	return err
}
