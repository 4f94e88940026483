package via

import "sync"

// turn is the right to drive completion queues and the VIs bound to them. By
// default it is the consumer's by rule: one goroutine at a time. Once a
// notification is armed the NIC's own goroutine drives too, and the turn becomes
// a lock. It is held over whatever its holder drives, and over no handler:
// handlers that come due in a turn run when it ends.
//
// Queues that share a VI share a turn, and keep it when the VI is gone.
type turn struct {
	mu     sync.Mutex
	shared bool // it is a lock; set once, by who has the turn

	calls   []func() // handlers that came due; guarded by the turn
	running bool     // a goroutine runs them; guarded by the turn
}

// enter takes the turn; the result goes to leave. It costs two loads where
// nothing is notified.
func (c *CQ) enter() *turn {
	t := c.turn.Load()
	if t.shared {
		return c.lock()
	}
	return t
}

// lock takes a turn that is a lock.
func (c *CQ) lock() *turn {
	for {
		t := c.turn.Load()
		t.mu.Lock()
		if c.turn.Load() == t {
			return t
		}
		t.mu.Unlock() // joined with another meanwhile
	}
}

// leave ends the turn and runs the handlers that came due in it.
func (t *turn) leave() {
	if t.shared || len(t.calls) != 0 {
		t.end()
	}
}

// end runs the handlers one at a time, in the order in which they came due. What
// comes due meanwhile, in a turn of a handler or of another goroutine, is left to
// who runs them: handlers neither nest nor overtake each other.
func (t *turn) end() {
	if !t.running {
		t.running = true
		for len(t.calls) != 0 {
			calls := t.calls
			t.calls = nil
			t.release()
			for _, call := range calls {
				call()
			}
			t.regain()
		}
		t.running = false
	}
	t.release()
}

func (t *turn) release() {
	if t.shared {
		t.mu.Unlock()
	}
}

func (t *turn) regain() {
	if t.shared {
		t.mu.Lock()
	}
}

// call leaves a handler to the end of the turn.
func (t *turn) call(handler func()) { t.calls = append(t.calls, handler) }

// share makes the turn, which the caller has, a lock.
func (t *turn) share() {
	if !t.shared {
		t.mu.Lock()
		t.shared = true
	}
}

// joinTurns gives two completion queues, and those that share a turn with them,
// one turn. The caller drives both from now on.
func (g *agent) joinTurns(send, recv *CQ) {
	g.joining.Lock()
	defer g.joining.Unlock()
	a, b := send.turn.Load(), recv.turn.Load()
	if a == b {
		return
	}
	a.mu.Lock()
	b.mu.Lock()
	if b.shared {
		a.shared = true // before anybody finds the turn by a queue of b's
	}
	g.mu.Lock()
	for c := range g.cqs {
		if c.turn.Load() == b {
			c.turn.Store(a)
		}
	}
	g.mu.Unlock()
	b.mu.Unlock()
	a.mu.Unlock()
}
