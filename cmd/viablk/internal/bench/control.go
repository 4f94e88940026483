package bench

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/viablk/viablk/via"
)

const (
	messageSize  = 4096 // bytes of a message at most
	controlDepth = 4    // messages in flight at most, in each direction
)

// errAsked says that a message waits on the control connection.
var errAsked = errors.New("a message of the other end waits")

// request is a message of the measuring end.
type request struct {
	Hello *hello `json:"hello,omitempty"`
	Step  *step  `json:"step,omitempty"`
	Count bool   `json:"count,omitempty"` // what was received and used so far
	Stop  bool   `json:"stop,omitempty"`  // end the step
}

// hello begins a session.
type hello struct {
	Version int                  `json:"version"`
	Area    int                  `json:"area"` // bytes of each area
	Level   via.ReliabilityLevel `json:"level"`
}

// protocolVersion changes with every change of the messages.
const protocolVersion = 2

// answer is a message of the passive end: one to each request, and one to each
// gathered batch.
type answer struct {
	Error    string        `json:"error,omitempty"`
	Addr     uint64        `json:"addr,omitempty"` // of the area that RDMA may reach
	Handle   uint32        `json:"handle,omitempty"`
	Bells    bool          `json:"bells,omitempty"`   // the end has eventfds
	Network  bool          `json:"network,omitempty"` // the end can measure yardsticks
	Port     uint16        `json:"port,omitempty"`    // of a step on the network
	Received int           `json:"received,omitempty"`
	Process  uint64        `json:"process,omitempty"` // the end's
	CPU      time.Duration `json:"cpu,omitempty"`     // that it has used so far
}

// control is the connection on which the ends agree on what is measured next.
// It is no part of what is measured, and sleeps.
type control struct {
	nic   *via.NIC
	tag   via.Ptag
	arena *via.Arena
	mem   *via.Memory
	cq    *via.CQ
	vi    *via.VI
	out   [controlDepth]*via.Descriptor
	in    [controlDepth]*via.Descriptor

	posted, sent int
	got, read    int
	inbox        [][]byte
	armed        bool
	lost         bool // a descriptor failed
	done         [2 * controlDepth]via.Completion
}

// openControl makes an idle connection.
func openControl(nic *via.NIC) (*control, error) {
	c := &control{nic: nic}
	if err := c.open(); err != nil {
		return nil, errors.Join(err, c.close())
	}
	return c, nil
}

func (c *control) open() error {
	var err error
	if c.tag, err = c.nic.CreatePtag(); err != nil {
		return err
	}
	if c.arena, err = c.nic.NewArena(2 * controlDepth * (messageSize + descriptorSize)); err != nil {
		return err
	}
	if c.mem, err = c.nic.RegisterMem(c.arena.Bytes(), via.MemAttributes{Ptag: c.tag}); err != nil {
		return err
	}
	if c.cq, err = c.nic.CreateCQ(2 * controlDepth); err != nil {
		return err
	}
	attrs := via.ViAttributes{Reliability: controlLevel(c.nic), Ptag: c.tag}
	if c.vi, err = c.nic.CreateVi(attrs, via.ViConfig{
		SendCQ: c.cq, RecvCQ: c.cq, SendDepth: controlDepth, RecvDepth: controlDepth,
	}); err != nil {
		return err
	}
	for i := range controlDepth {
		if c.out[i], err = c.mem.NewDescriptor(c.offset(i)+messageSize, descriptorSize); err != nil {
			return err
		}
		if c.in[i], err = c.mem.NewDescriptor(c.offset(controlDepth+i)+messageSize, descriptorSize); err != nil {
			return err
		}
		if err = c.listen(i); err != nil {
			return err
		}
	}
	return nil
}

// controlLevel is reliable wherever that exists.
func controlLevel(nic *via.NIC) via.ReliabilityLevel {
	levels := nic.Limits().ReliabilityLevels
	for _, l := range []via.ReliabilityLevel{via.ReliableDelivery, via.ReliableReception} {
		if levels&l != 0 {
			return l
		}
	}
	return via.UnreliableDelivery
}

func (c *control) offset(i int) int { return i * (messageSize + descriptorSize) }

func (c *control) buffer(i int) []byte {
	return c.mem.Bytes()[c.offset(i):][:messageSize]
}

// listen posts receive i.
func (c *control) listen(i int) error {
	d := c.in[i]
	d.Reset(via.OpRecv)
	d.AddSegment(c.mem.Addr()+uint64(c.offset(controlDepth+i)), c.mem.Handle(), messageSize)
	return c.vi.PostRecv(d)
}

// send sends a message.
func (c *control) send(message any) error {
	b, err := json.Marshal(message)
	if err != nil {
		return fmt.Errorf("encode a message: %w", err)
	}
	if len(b) > messageSize {
		return fmt.Errorf("a message of %d bytes is longer than %d", len(b), messageSize)
	}
	for c.posted-c.sent == controlDepth {
		c.poll()
		if err := c.alive(); err != nil {
			return err
		}
	}
	i := c.posted % controlDepth
	c.posted++
	copy(c.buffer(i), b)
	d := c.out[i]
	d.Reset(via.OpSend)
	d.AddSegment(c.mem.Addr()+uint64(c.offset(i)), c.mem.Handle(), uint32(len(b)))
	return c.vi.PostSend(d)
}

// await waits until there is a message, for timeout at most unless that is 0.
func (c *control) await(ctx context.Context, timeout time.Duration) error {
	w := waiter{ctx: ctx, source: c.cq, mode: Sleep, hangTimeout: timeout, alive: c.alive}
	for len(c.inbox) == 0 {
		before := c.got + c.sent
		c.poll()
		if c.got+c.sent != before {
			w.busy()
			continue
		}
		if err := c.alive(); err != nil {
			return err
		}
		if err := w.idle(); err != nil {
			return err
		}
	}
	return nil
}

// receive waits for a message and takes it.
func (c *control) receive(ctx context.Context, timeout time.Duration, message any) error {
	if err := c.await(ctx, timeout); err != nil {
		return err
	}
	b := c.inbox[0]
	c.inbox = c.inbox[1:]
	// The receive goes back only now, so that the peer cannot fill the inbox.
	if err := c.listen(c.read % controlDepth); err != nil {
		return err
	}
	c.read++
	d := json.NewDecoder(bytes.NewReader(b))
	d.DisallowUnknownFields()
	if err := d.Decode(message); err != nil {
		return fmt.Errorf("the other end sent what is no message: %w", err)
	}
	return nil
}

// poll takes what arrived.
func (c *control) poll() {
	c.armed = false
	n := c.cq.Poll(c.done[:])
	for i := range c.done[:n] {
		e := &c.done[i]
		switch {
		case e.Status.Failed():
			c.lost = true // what came before counts
		case !e.Recv:
			c.sent++
		default:
			i := c.got % controlDepth
			c.got++
			c.inbox = append(c.inbox, bytes.Clone(c.buffer(controlDepth + i)[:min(e.Length, messageSize)]))
		}
	}
}

// arm prepares to sleep beside another queue, once for several sleeps. It
// returns false if there is something to look at.
func (c *control) arm() bool {
	if !c.armed {
		c.armed = c.cq.Arm()
	}
	return c.armed
}

// check returns errAsked if a message waits.
func (c *control) check() error {
	c.poll()
	if len(c.inbox) > 0 {
		return errAsked
	}
	return c.alive()
}

// stands is alive for an end that polls nothing else: it looks first.
func (c *control) stands() error {
	c.poll()
	return c.alive()
}

// alive returns an error if the connection is gone.
func (c *control) alive() error {
	if c.lost || c.vi.State() != via.StateConnected {
		return ErrLost
	}
	return nil
}

func (c *control) close() error {
	var errs []error
	if c.vi != nil {
		errs = append(errs, c.vi.Disconnect())
		for c.cq.Poll(c.done[:]) > 0 {
		}
		errs = append(errs, c.vi.Destroy())
	}
	if c.cq != nil {
		errs = append(errs, c.cq.Destroy())
	}
	if c.mem != nil {
		errs = append(errs, c.mem.Deregister())
	}
	if c.arena != nil {
		errs = append(errs, c.arena.Close())
	}
	return errors.Join(append(errs, c.nic.DestroyPtag(c.tag))...)
}
