package nbdclient

import (
	"context"
	"errors"
	"fmt"
	"syscall"
	"time"

	"github.com/viablk/viablk/internal/block"
	"golang.org/x/sys/unix"
)

// A connector opens the connections of a device whose queues have one each. It
// keeps one more, the witness, from the first connection of a generation of
// servers to its last.
//
// A server that was started again accepts connections as before, and nothing
// says that those to its predecessor are dead until they are used. So a
// flush on a new connection could cover writes that the predecessor has lost.
// For each new connection the witness makes a round trip: if it is answered,
// the server that accepted the new connection is the one that accepted all
// others.
type connector struct {
	device  *Device
	idle    chan struct{} // holds a value while no connect is in flight
	witness *queue        // of one request; nil without
	probe   block.Request
	memory  []byte
	busy    bool // the probe is in flight
}

func newConnector(d *Device) *connector {
	c := &connector{device: d, idle: make(chan struct{}, 1)}
	c.idle <- struct{}{}
	return c
}

// keep makes a connection the witness, which takes it.
func (c *connector) keep(first *connection) error {
	q, err := newQueue(c.device, 1, first)
	if err != nil {
		return err
	}
	q.once = true
	c.witness = q
	return nil
}

// connect opens a connection to the server of the witness.
func (c *connector) connect(ctx context.Context) (*connection, error) {
	ctx, cancel := context.WithTimeout(ctx, 2*c.device.cfg.Timeout)
	defer cancel()
	select {
	case <-c.idle:
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
	defer func() { c.idle <- struct{}{} }()
	for {
		next, lost, err := c.attempt(ctx)
		if err == nil || !lost || c.device.failure() != nil || ctx.Err() != nil {
			return next, err
		}
	}
}

// attempt opens a connection. It fails with lost if the witness did.
func (c *connector) attempt(ctx context.Context) (next *connection, lost bool, err error) {
	if err := c.renew(ctx); err != nil {
		return nil, false, err
	}
	if next, err = c.device.reconnect(ctx); err != nil {
		return nil, false, err
	}
	if err := c.check(ctx); err != nil {
		disconnect(next.opened.Stream, next.opened.Extended)
		return nil, c.witness.link == nil, fmt.Errorf("open %s: %w", c.device.cfg.Name, err)
	}
	return next, false, nil
}

// renew replaces the witness of an earlier generation.
func (c *connector) renew(ctx context.Context) error {
	generation, failure := c.device.generations.current()
	switch {
	case failure != nil:
		return failed(failure)
	case c.witness != nil && c.witness.link != nil && c.witness.link.generation == generation:
		return nil
	}
	if err := c.release(); err != nil {
		return err
	}
	first, err := c.device.reconnect(ctx)
	if err != nil {
		return err
	}
	return c.keep(first)
}

// check has the witness make a round trip, of a flush if the server has it. If
// that fails, all connections are given up.
func (c *connector) check(ctx context.Context) error {
	if err := c.wait(ctx); err != nil { // an earlier one that took too long
		return err
	}
	info := c.device.Info()
	c.probe = block.Request{Op: block.Flush}
	if info.Features&block.CanFlush == 0 {
		length := int64(info.MinimumBlock)
		if c.memory == nil {
			c.memory = make([]byte, length)
		}
		c.probe = block.Request{Op: block.Read, Length: length, Data: c.memory}
	}
	if !c.witness.Submit(&c.probe) {
		return syscall.EBUSY
	}
	c.busy = true
	c.witness.Kick()
	if err := c.wait(ctx); err != nil {
		return err
	}
	if c.witness.link == nil {
		return c.probe.Err
	}
	return nil // an error is an answer, too
}

// wait waits for the probe.
func (c *connector) wait(ctx context.Context) error {
	var done [1]*block.Request
	for c.busy {
		if c.witness.Reap(done[:]) == 1 {
			c.busy = false
			return nil
		}
		if err := ctx.Err(); err != nil {
			return errors.Join(errSilent, err)
		}
		if _, ok := c.witness.Arm(); !ok {
			continue
		}
		_, err := unix.Poll([]unix.PollFd{{Fd: int32(c.witness.FD()), Events: unix.POLLIN}}, int(waitPoll.Milliseconds()))
		if err != nil && err != unix.EINTR {
			return fmt.Errorf("poll: %w", err)
		}
	}
	return nil
}

// waitPoll is how often a wait looks whether it was cancelled.
const waitPoll = 100 * time.Millisecond

// release closes the witness.
func (c *connector) release() error {
	if c.witness == nil {
		return nil
	}
	c.busy = false
	q := c.witness
	c.witness = nil
	return q.Close()
}
