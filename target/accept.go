package target

import (
	"context"
	"errors"
	"fmt"

	"github.com/viablk/viablk/internal/carrier"
	"github.com/viablk/viablk/internal/wire"
	"github.com/viablk/viablk/via"
)

// A connection request takes these steps:
//
//  1. Server.admit counts it, against the limits of its origin.
//  2. conn.confirm answers it, if the fabric can without a VI, and waits until
//     the peer has shown that it has the answer. Until then the address may be
//     that of another host: the request has a goroutine and nothing else.
//  3. worker.accept makes the VI and its memory.
//  4. A loop drives the worker.

// routineConfirm confirms a request and starts its worker.
func (c *conn) routineConfirm(ctx context.Context, r *via.ConnRequest) {
	attrs, err := c.confirm(ctx, r)
	if err != nil {
		c.refuse(r, err)
		c.server.removeConn(c)
		return
	}
	c.server.cfg.Scheduler.Go(func() { c.routineServe(ctx, r, attrs) })
}

// confirm returns the attributes of the VI that answers the request.
func (c *conn) confirm(ctx context.Context, r *via.ConnRequest) (via.ViAttributes, error) {
	attrs := r.Attributes()
	if attrs.Reliability == via.UnreliableDelivery {
		return attrs, errors.New("a connection that may lose messages")
	}
	if attrs.MaxTransferSize < leastTransfer {
		return attrs, fmt.Errorf("a connection that carries %d bytes at a time, %d are the least", attrs.MaxTransferSize, leastTransfer)
	}
	attrs.EnableRdmaWrite, attrs.EnableRdmaRead = false, false
	ctx, cancel := c.server.cfg.Scheduler.WithTimeout(ctx, loginTimeout)
	defer cancel()
	return attrs, r.Confirm(ctx, attrs)
}

// refuse rejects a request that has no VI, unless it has ended.
func (c *conn) refuse(r *via.ConnRequest, err error) {
	_ = r.Reject() // fails if the request was answered: the requester is gone
	c.server.refusals.Warn(c.log, "connection not accepted", "event", "connection_refused", "error", err)
}

// Receives that a connection has before it logged in, and what each holds
// beyond its head: any control message.
const (
	controlReceives = 6 // a request, a keepalive, acks of three events, a logout
	controlData     = wire.MaxControlSize - carrier.HeadSize
	controlSends    = 6 // two answers, a keepalive's, three events
	reserveReceives = 4 // beyond the credits: keepalive, logout, spare

	// leastTransfer is the least maximum transfer size that VIA permits, and
	// more than any message without payload.
	leastTransfer = 32 << 10 // bytes
)

// accept sets the connection up with memory for control messages only.
func (w *worker) accept(ctx context.Context, r *via.ConnRequest, attrs via.ViAttributes) error {
	cfg := &w.conn.server.cfg
	bell, err := cfg.Scheduler.NewBell()
	if err != nil {
		return err
	}
	w.sleeper.setBell(bell)
	w.conn.signals.setBell(bell)
	w.carrier, err = carrier.New(cfg.NIC, carrier.Config{
		Attributes: attrs,
		SendDepth:  cfg.Depth + controlSends + wire.MaxSegments,
		RecvDepth:  cfg.Depth + controlReceives + reserveReceives,
		Sealable:   cfg.Security != nil,
	})
	if err == nil {
		w.conn.signals.vi = w.carrier.VI()
		// On an I/O connection the first commands arrive in these receives.
		err = w.carrier.AddReceives(controlReceives, max(controlData, cfg.InlineMax))
	}
	if err == nil {
		err = w.carrier.AddSends(controlSends, max(wire.MaxControlSize, wire.HeaderSize+cfg.InlineMax))
	}
	if err != nil {
		return err
	}
	w.control.carrier, w.exports.carrier = w.carrier, w.carrier
	w.receive.carrier, w.execute.carrier, w.send.carrier = w.carrier, w.carrier, w.carrier
	w.control.scratch = make([]byte, wire.MaxControlSize)
	ctx, cancel := cfg.Scheduler.WithTimeout(ctx, loginTimeout)
	defer cancel()
	return w.carrier.Accept(ctx, r)
}
