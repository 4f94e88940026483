package via

import "sync"

// A driver is the ownership of the progress engine of completion queues and the
// VIs bound to them. By default the consumer owns it by rule: one goroutine at
// a time. Once a notification is armed the NIC's goroutine drives too, and the
// driver becomes a lock. The owner holds it over all that it drives, but over
// no handler: handlers that come due meanwhile run when the driver is released.
//
// Queues that share a VI share a driver, and keep it when the VI is gone.
type driver struct {
	mu     sync.Mutex
	shared bool // the driver is a lock; set once, by its owner

	callbacks []func() // handlers that came due; guarded by the driver
	running   bool     // a goroutine runs them; guarded by the driver
}

// acquire acquires the driver; the caller releases it. It costs two loads where
// no notification was armed.
func (c *CQ) acquire() *driver {
	d := c.driver.Load()
	if d.shared {
		return c.lock()
	}
	return d
}

// lock locks a driver that is shared.
//
// Whether the driver is a lock is decided at run time.
// +checklocksignore
func (c *CQ) lock() *driver {
	for {
		d := c.driver.Load()
		d.mu.Lock()
		if c.driver.Load() == d {
			return d
		}
		d.mu.Unlock() // joined with another meanwhile
	}
}

// release releases the driver and runs the handlers that came due.
func (d *driver) release() {
	if d.shared || len(d.callbacks) != 0 {
		d.runCallbacks()
	}
}

// runCallbacks runs the handlers one at a time, in the order in which they came
// due, and releases the driver. Handlers that come due meanwhile, in a handler
// or on another goroutine, are left to the goroutine that runs them: handlers
// neither nest nor overtake each other.
func (d *driver) runCallbacks() {
	if !d.running {
		d.running = true
		for len(d.callbacks) != 0 {
			callbacks := d.callbacks
			d.callbacks = nil
			d.unlock()
			for _, call := range callbacks {
				call()
			}
			d.relock()
		}
		d.running = false
	}
	d.unlock()
}

// Whether the driver is a lock is decided at run time.
// +checklocksignore
func (d *driver) unlock() {
	if d.shared {
		d.mu.Unlock()
	}
}

// Whether the driver is a lock is decided at run time.
// +checklocksignore
func (d *driver) relock() {
	if d.shared {
		d.mu.Lock()
	}
}

// deferCall defers a handler until the driver is released.
func (d *driver) deferCall(handler func()) { d.callbacks = append(d.callbacks, handler) }

// share makes the driver, which the caller owns, a lock.
//
// Whether the driver is a lock is decided at run time.
// +checklocksignore
func (d *driver) share() {
	if !d.shared {
		d.mu.Lock()
		d.shared = true
	}
}

// joinDrivers gives two completion queues, and those that share a driver with
// them, one driver. The caller drives both from now on.
func (g *agent) joinDrivers(send, recv *CQ) {
	g.joinMu.Lock()
	defer g.joinMu.Unlock()
	a, b := send.driver.Load(), recv.driver.Load()
	if a == b {
		return
	}
	a.mu.Lock()
	b.mu.Lock()
	if b.shared {
		a.shared = true // before a goroutine finds a by a queue of b's
	}
	g.mu.Lock()
	for c := range g.cqs {
		if c.driver.Load() == b {
			c.driver.Store(a)
		}
	}
	g.mu.Unlock()
	b.mu.Unlock()
	a.mu.Unlock()
}
