// Package interop implements one end of a connection to RDMA programs that do
// not use VIA: rping, and the ping-pong examples of libibverbs. It drives a
// provider's links directly, without the user agent and its connect message.
// Only interoperability tests use it.
package interop

import (
	"context"
	"errors"
	"fmt"
	"time"

	"golang.org/x/sys/unix"

	"github.com/viablk/viablk/via"
)

// End is one end of one connection, with one piece of registered memory that
// the peer may read and write. One goroutine uses it.
type End struct {
	Memory *via.Memory
	Link   via.Link

	adapter via.Adapter
	nic     *via.NIC
	tag     via.Ptag
	tagged  bool
	arena   *via.Arena
	cq      via.AdapterCQ
	done    []via.Done
	ready   []via.Done // polled, and not yet returned by Wait
}

// ErrEnded is the error of Wait when the connection has ended.
var ErrEnded = errors.New("the connection has ended")

// Depth bounds the works, and the receives, in flight of an end.
const Depth = 64

// Open opens a device for one connection, with memory of a number of bytes.
func Open(p via.Provider, device string, bytes int) (*End, error) {
	w := &witness{Provider: p}
	nic, err := via.OpenNic(w, device)
	if err != nil {
		return nil, fmt.Errorf("open device %q: %w", device, err)
	}
	e := &End{nic: nic, adapter: w.adapter, done: make([]via.Done, 2*Depth)}
	if err := e.prepare(bytes); err != nil {
		return nil, errors.Join(err, e.Close())
	}
	return e, nil
}

// witness records the adapter that a NIC opens.
type witness struct {
	via.Provider
	adapter via.Adapter
}

func (w *witness) Open(device string) (a via.Adapter, err error) {
	w.adapter, err = w.Provider.Open(device)
	return w.adapter, err
}

func (e *End) prepare(bytes int) error {
	var err error
	if e.tag, err = e.nic.CreatePtag(); err != nil {
		return fmt.Errorf("create a protection tag: %w", err)
	}
	e.tagged = true
	if e.arena, err = e.nic.NewArena(bytes); err != nil {
		return fmt.Errorf("map memory: %w", err)
	}
	e.Memory, err = e.nic.RegisterMem(e.arena.Bytes(), via.MemAttributes{Ptag: e.tag, EnableRdmaWrite: true, EnableRdmaRead: true})
	if err != nil {
		return fmt.Errorf("register memory: %w", err)
	}
	if e.cq, err = e.adapter.NewCQ(2*Depth + 2); err != nil {
		return fmt.Errorf("create a completion queue: %w", err)
	}
	return nil
}

// Config returns the configuration of the link: reliable, with the peer's RDMA
// allowed.
func (e *End) Config() via.LinkConfig {
	return via.LinkConfig{
		Reliability: via.ReliableDelivery, MaxTransferSize: e.adapter.Limits().MaxTransferSize,
		Tag: e.Memory.Tag(), RdmaWrite: true, RdmaRead: true,
		SendDepth: Depth, RecvDepth: Depth, SendCQ: e.cq, RecvCQ: e.cq,
	}
}

// Connect connects to a service; the provider defines the form of a host.
func (e *End) Connect(ctx context.Context, host string, receives ...*via.Work) error {
	link, _, err := e.adapter.Connect(ctx, host, nil, e.Config())
	if err != nil {
		return err
	}
	e.Link = link
	return link.Start(receives)
}

// Accept listens at a host and accepts the first connection. Accept calls
// listening when it can accept one.
func (e *End) Accept(ctx context.Context, host string, listening func(), receives ...*via.Work) error {
	requests := make(chan via.Incoming, 1)
	at, err := e.adapter.Listen(host, func(in via.Incoming) {
		select {
		case requests <- in:
		default:
			_ = in.Refuse(nil) // a second request; the requester may have gone
		}
	})
	if err != nil {
		return err
	}
	defer func() { _ = at.Close() }()
	listening()
	select {
	case in := <-requests:
		if e.Link, err = in.Accept(ctx, nil, e.Config()); err != nil {
			return err
		}
		return e.Link.Start(receives)
	case <-ctx.Done():
		return fmt.Errorf("no connection to %s: %w", host, context.Cause(ctx))
	}
}

// Start uses a link that the caller has connected, with [End.Config].
func (e *End) Start(l via.Link, receives ...*via.Work) error {
	e.Link = l
	return l.Start(receives)
}

// Close ends the connection and closes the device.
func (e *End) Close() error {
	var errs []error
	if e.Link != nil {
		errs = append(errs, e.Link.Close())
	}
	if e.cq != nil {
		errs = append(errs, e.cq.Close())
	}
	if e.Memory != nil {
		errs = append(errs, e.Memory.Deregister())
	}
	if e.arena != nil {
		errs = append(errs, e.arena.Close())
	}
	if e.tagged {
		errs = append(errs, e.nic.DestroyPtag(e.tag))
	}
	return errors.Join(append(errs, e.nic.Close())...)
}

// Work returns a work on a piece of the memory.
func (e *End) Work(op via.Opcode, at, length int) *via.Work {
	w := &via.Work{Op: op, Length: uint32(length)}
	if length > 0 {
		w.Segments = []via.Segment{{Bytes: e.Memory.Bytes()[at : at+length : at+length], Memory: e.Memory}}
	}
	return w
}

// Post posts works, receives among them, and rings the doorbell once.
func (e *End) Post(works ...*via.Work) error {
	for _, w := range works {
		if w.Op == via.OpRecv {
			e.Link.PostRecv(w)
		} else if !e.Link.PostSend(w) {
			return errors.New("the link is full")
		}
	}
	e.Link.Doorbell()
	return nil
}

// Wait returns the next completed work. It returns an error for a failed work,
// or the end of the connection.
func (e *End) Wait(ctx context.Context) (*via.Work, error) {
	for len(e.ready) == 0 {
		if n := e.cq.Poll(e.done); n > 0 {
			e.ready = e.done[:n]
			break
		}
		if err := ctx.Err(); err != nil {
			return nil, fmt.Errorf("wait for a completion: %w", context.Cause(ctx))
		}
		if e.cq.Arm() {
			fds := []unix.PollFd{{Fd: int32(e.cq.FD()), Events: unix.POLLIN}}
			if _, err := unix.Poll(fds, int(sleepTimeout.Milliseconds())); err != nil && err != unix.EINTR {
				return nil, fmt.Errorf("sleep on a completion queue: %w", err)
			}
		}
	}
	d := e.ready[0]
	e.ready = e.ready[1:]
	switch {
	case d.Event != nil && d.Event.Broken:
		return nil, fmt.Errorf("%w: %v: %w", ErrEnded, d.Event.Code, d.Event.Cause)
	case d.Event != nil:
		return nil, fmt.Errorf("event %v: %w", d.Event.Code, d.Event.Cause)
	case d.Work.Status&via.StatusErrorMask == via.StatusFlushed:
		return d.Work, fmt.Errorf("%w: work was flushed", ErrEnded)
	case d.Work.Status&via.StatusErrorMask != 0:
		return d.Work, fmt.Errorf("work ended with status %#x", uint32(d.Work.Status))
	}
	return d.Work, nil
}

// sleepTimeout is how long an end sleeps between checks of its context.
const sleepTimeout = 100 * time.Millisecond

// Await waits until works complete, in any order.
func (e *End) Await(ctx context.Context, works ...*via.Work) error {
	missing := make(map[*via.Work]struct{}, len(works))
	for _, w := range works {
		missing[w] = struct{}{}
	}
	for len(missing) > 0 {
		w, err := e.Wait(ctx)
		if err != nil {
			return err
		}
		if _, ok := missing[w]; !ok {
			return errors.New("an unexpected work completed")
		}
		delete(missing, w)
	}
	return nil
}
