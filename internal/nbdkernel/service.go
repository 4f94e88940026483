package nbdkernel

import (
	"context"
	"errors"
	"fmt"
	"time"
)

// How long a connection that was given up by the driver is waited with before
// it is replaced: not at all if it lived longer than the longest pause, else as
// long as the last time and twice that.
const (
	minReplacePause = 50 * time.Millisecond
	maxReplacePause = 5 * time.Second
)

// Serve keeps the driver supplied with connections. It returns nil when the
// device was disconnected, or left by [Attachment.Leave], and the cause when
// ctx ends: then the device is left too, at once. It is called once.
func (a *Attachment) Serve(ctx context.Context) error {
	defer close(a.served)
	defer a.release(errEnded)
	stop := context.AfterFunc(ctx, func() {
		a.beginClose()
		a.cut(context.Cause(ctx))
	})
	defer stop()
	go a.watchSize()
	defer func() { <-a.sized }()
	defer a.beginClose()
	pause, since := minReplacePause, time.Now()
	for {
		if a.active.Err() != nil && a.Connections() == 0 {
			return context.Cause(ctx)
		}
		<-a.changed // there is a connection that can end, or one that has
		lost, disconnected := a.collect()
		if len(lost) > 0 && !disconnected {
			state, err := a.cfg.Device.currentState()
			disconnected = err == nil && !state.Attached // it was reset, without a disconnect
		}
		if disconnected {
			a.beginClose() // the driver ends the other connections
		}
		if len(lost) == 0 || a.active.Err() != nil {
			continue
		}
		a.cfg.Log.Warn("the kernel gave connections up; they are replaced", "event", "device_connections_replaced", "device", a.Node(), "connections", len(lost), "error", lost[0])
		if time.Since(since) > maxReplacePause {
			pause = minReplacePause
		}
		since = time.Now()
		a.mu.Lock()
		a.replacing = true
		a.mu.Unlock()
		pause = a.replace(len(lost), pause)
	}
}

// replace replaces connections, after a pause, for as long as the device is not
// left, and returns how long the next pause is.
func (a *Attachment) replace(n int, pause time.Duration) time.Duration {
	for {
		select {
		case <-time.After(pause):
		case <-a.active.Done():
			return pause
		}
		pause = min(2*pause, maxReplacePause)
		err := a.fill(a.active)
		if err == nil {
			a.mu.Lock()
			a.replaced += uint64(n)
			a.mu.Unlock()
			return pause
		}
		if state, failure := a.cfg.Device.currentState(); failure == nil && !state.Attached {
			a.beginClose()
			for _, l := range a.list() {
				l.shutdown()
			}
		}
		if a.active.Err() == nil {
			a.cfg.Log.Warn("the kernel waits for a connection", "event", "device_connection_failed", "device", a.Node(), "error", err)
		}
	}
}

// collect releases connections that have ended. It returns why those were lost
// that the driver gave up, and whether it said disconnect.
func (a *Attachment) collect() (lost []error, disconnected bool) {
	for _, l := range a.list() {
		select {
		case <-l.done:
		default:
			continue
		}
		if l.err == nil {
			disconnected = true
		} else {
			lost = append(lost, l.err)
		}
		a.remove(l)
	}
	return lost, disconnected
}

// End ends the device in peace, if no program uses it: what the kernel holds of
// it in its cache is written, and the device is disconnected. A device that is
// in use is left. Serve has ended when End returns nil; it runs, or has ended
// before.
func (a *Attachment) End(ctx context.Context) error {
	select {
	case <-a.served:
		return nil
	default:
	}
	claim, err := a.Node().Claim()
	if errors.Is(err, ErrBusy) {
		a.cfg.Log.Warn("the device is left: its requests wait until it is reattached", "event", "device_left", "for", a.cfg.DeadTimeout, "reason", err)
		return a.Detach(ctx)
	}
	if err != nil {
		return err
	}
	err = a.disconnect(ctx, claim)
	claim.Release()
	if err == nil {
		a.Node().awaitFree(ctx, a.cfg.Device.sysfs)
	}
	return err
}

// disconnect disconnects a device that is claimed.
func (a *Attachment) disconnect(ctx context.Context, claim *Claim) error {
	if err := claim.Flush(); err != nil {
		return err
	}
	a.beginClose()
	if err := a.cfg.Driver.Disconnect(a.Node()); err != nil {
		return err
	}
	return a.awaitEnd(ctx)
}

// Detach ends this process's part in the device: requests in flight are
// answered, and others wait in the kernel, for the dead timeout, until the
// device is reattached. Serve has ended when Detach returns nil; it runs.
func (a *Attachment) Detach(ctx context.Context) error {
	a.beginClose()
	select {
	case <-a.sized: // a driver that waits for requests would keep the next process waiting
	case <-ctx.Done():
		return fmt.Errorf("leave %s: %w", a.Node(), context.Cause(ctx))
	}
	for _, l := range a.list() {
		l.drain()
	}
	return a.awaitEnd(ctx)
}

func (a *Attachment) awaitEnd(ctx context.Context) error {
	select {
	case <-a.served:
		return nil
	case <-ctx.Done():
		return fmt.Errorf("leave %s: %w", a.Node(), context.Cause(ctx))
	}
}

// Done returns a channel that is closed when Serve has returned.
func (a *Attachment) Done() <-chan struct{} { return a.served }
