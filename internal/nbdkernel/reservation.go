package nbdkernel

import (
	"context"
	"fmt"
	"time"
)

// Reservation is a device that this process is about to serve. No other process
// connects it meanwhile.
type Reservation struct {
	index   int // AnyIndex: the driver is to choose
	backend string
	state   State // before it was reserved
	lock    *lock // nil if the driver is to choose

	sysfs, locks string // folders
}

// Reserve reserves the device of an index for a backend, or any if that is
// [AnyIndex]. With reattach it may be there already, connected to the backend,
// if no process serves it any more; and any device is the one that is connected
// to the backend, if there is one. The error wraps [ErrBusy] if the device is
// in use. The caller gives the reservation to [Attach], or releases it.
func Reserve(index int, backend string, reattach bool) (*Reservation, error) {
	r := &Reservation{index: index, backend: backend, sysfs: sysfs, locks: Folder}
	if err := r.acquire(reattach); err != nil {
		r.Release()
		return nil, err
	}
	return r, nil
}

// acquire reserves the device.
func (r *Reservation) acquire(reattach bool) (err error) {
	if reattach && r.index == AnyIndex {
		n, found, err := findBackend(r.sysfs, r.backend)
		if err != nil {
			return err
		}
		if found {
			r.index = int(n)
		}
	}
	if r.index == AnyIndex {
		return nil
	}
	if r.lock, err = acquireLock(r.locks, r.node()); err != nil {
		return err
	}
	if r.state, err = r.currentState(); err == nil && r.state.Attached {
		err = r.state.refuse(r.node(), r.backend, reattach)
	}
	return err
}

// currentState returns the state of the device now.
func (r *Reservation) currentState() (State, error) { return r.node().state(r.sysfs) }

// idle reports whether the driver has no request of the device.
func (r *Reservation) idle() bool { return r.node().idle(r.sysfs) }

// refuse says why a device that is connected cannot be taken over.
func (s State) refuse(n Node, backend string, reattach bool) error {
	switch {
	case s.Backend == "":
		return fmt.Errorf("%s is attached by another program: choose another device: %w", n, ErrBusy)
	case s.Backend != backend:
		return fmt.Errorf("%s is attached to %s: choose another device: %w", n, s.Backend, ErrBusy)
	case !reattach:
		return fmt.Errorf("%s is attached already, and its process is gone: reattach it, or detach it: %w", n, ErrBusy)
	}
	return nil
}

// Reattaching reports whether the device is there, and waits to be served.
func (r *Reservation) Reattaching() bool { return r.state.Attached }

// Node returns the device, if it is known before the driver chooses it.
func (r *Reservation) Node() (n Node, known bool) { return r.node(), r.index != AnyIndex }

// Release lets others have the device.
func (r *Reservation) Release() {
	r.lock.release()
	r.lock = nil
}

func (r *Reservation) node() Node { return Node(r.index) }

// lockChosen reserves the device that the driver chose: at once, or when the
// process has ended that had it before.
func (r *Reservation) lockChosen(ctx context.Context, n Node) (err error) {
	if r.index = int(n); r.lock == nil {
		r.lock, err = awaitLock(ctx, r.locks, n)
	}
	return err
}

// takeOverTimeout is how long a process that is being killed may take to lose
// its device.
const takeOverTimeout = 10 * time.Second
