// Package carrier carries the messages of the block protocol over one VI: it
// owns the VI, its completion queue and the registered memory of headers and
// receives, and stages Sends, RDMA Writes and RDMA Reads. It knows no message;
// target and initiator both stand on it.
//
// A carrier is driven by one goroutine at a time, from New to Close.
package carrier

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/viablk/viablk/internal/seal"
	"github.com/viablk/viablk/via"
)

// HeadSize is how much of an arriving message lands in Receive.Head; the rest
// lands, page-aligned, in Receive.Data, so that payload can go on without a
// copy.
const HeadSize = 64 // bytes

// Config describes a carrier. Depths bound what AddReceives and AddSends may
// add in all.
type Config struct {
	Attributes           via.ViAttributes // the tag is the carrier's to choose
	SendDepth, RecvDepth int              // descriptors

	// Sealable lays messages out so that Seal can have them sealed and opened
	// in place: one segment each, with room for what a seal adds.
	Sealable bool
}

// Carrier is one VI with its memory.
type Carrier struct {
	nic *via.NIC
	tag via.Ptag
	cq  *via.CQ
	vi  *via.VI

	memories []memory
	receives []Receive
	sends    []Send
	free     []uint32 // sends
	past     Traffic  // of earlier connections

	digestErrors uint64

	sealable    bool
	sealer      *seal.Sealer // nil while messages are in clear
	opener      *seal.Opener
	generation  uint64    // of the sealer, since began
	began       time.Time // zero: not known
	sealedBytes uint64
	forged      uint64
}

// memory is an arena that is registered for local use only.
type memory struct {
	arena *via.Arena
	mem   *via.Memory
}

// Receive is a buffer for one arriving message.
type Receive struct {
	Head []byte // first HeadSize bytes
	Data []byte // the rest of the message; all of it is capacity

	desc     *via.Descriptor
	headAddr uint64
	dataAddr uint64
	handle   uint32

	// Of a carrier that is Sealable.
	region []byte // prefix, Head, Data and tag
	clear  bool   // posted for a message in clear: it arrives in Head
}

// Send is a descriptor with room for a header, acquired with AcquireSend and
// given back with FreeSend.
type Send struct {
	Head []byte

	// User and Step are the owner's, found again at completion.
	User uint32
	Step uint32

	desc     *via.Descriptor
	index    uint32
	headAddr uint64
	handle   uint32
	room     []byte // Head with the room for a seal; nil unless Sealable
}

// Span is registered local memory.
type Span struct {
	Addr   uint64
	Handle uint32
	Length uint32 // bytes
}

// New creates an idle carrier with a protection tag of its own: memory
// registered under the tag is this connection's alone.
func New(nic *via.NIC, cfg Config) (*Carrier, error) {
	c := &Carrier{nic: nic, sealable: cfg.Sealable}
	if err := c.open(cfg); err != nil {
		return nil, errors.Join(err, c.release())
	}
	return c, nil
}

func (c *Carrier) open(cfg Config) error {
	var err error
	if c.tag, err = c.nic.CreatePtag(); err != nil {
		return err
	}
	if c.cq, err = c.nic.CreateCQ(cfg.SendDepth + cfg.RecvDepth); err != nil {
		return err
	}
	cfg.Attributes.Ptag = c.tag
	c.vi, err = c.nic.CreateVi(cfg.Attributes, via.ViConfig{
		SendCQ: c.cq, RecvCQ: c.cq, SendDepth: cfg.SendDepth, RecvDepth: cfg.RecvDepth,
	})
	return err
}

// Tag returns the connection's protection tag.
func (c *Carrier) Tag() via.Ptag { return c.tag }

// VI returns the VI, for its state and statistics.
func (c *Carrier) VI() *via.VI { return c.vi }

// map registers size bytes for local use.
func (c *Carrier) mapMemory(size int) (*via.Memory, error) {
	arena, err := c.nic.NewArena(size)
	if err != nil {
		return nil, err
	}
	mem, err := c.nic.RegisterMem(arena.Bytes(), via.MemAttributes{Ptag: c.tag})
	if err != nil {
		return nil, errors.Join(err, arena.Close())
	}
	c.memories = append(c.memories, memory{arena, mem})
	return mem, nil
}

// AddReceives adds and posts n receives for messages of HeadSize+data bytes.
func (c *Carrier) AddReceives(n, data int) error {
	l := c.layOut(n, data)
	mem, err := c.mapMemory(l.size)
	if err != nil {
		return fmt.Errorf("memory for %d receives of %d bytes: %w", n, data, err)
	}
	first := len(c.receives)
	for i := range n {
		desc, err := mem.NewDescriptor(i*l.fixed, via.DescriptorAlignment)
		if err != nil {
			return err
		}
		desc.User = uint64(first + i)
		at := l.begin + i*l.stride
		head := at - HeadSize
		if !c.sealable {
			head = i*l.fixed + via.DescriptorAlignment
		}
		r := Receive{
			Head: mem.Bytes()[head : head+HeadSize], Data: mem.Bytes()[at : at+data : at+data],
			desc: desc, handle: mem.Handle(), headAddr: mem.Addr() + uint64(head), dataAddr: mem.Addr() + uint64(at),
		}
		if c.sealable {
			r.region = mem.Bytes()[head-prefix : at+data+sealTail]
		}
		c.receives = append(c.receives, r)
	}
	for i := first; i < len(c.receives); i++ {
		if err := c.Post(&c.receives[i]); err != nil {
			return err
		}
	}
	return nil
}

// layout is where the parts of receives are in their memory.
type layout struct {
	fixed  int // bytes of a descriptor, with the head unless that is before its data
	begin  int // of the first data
	stride int // from data to data
	size   int
}

// layOut lays out n receives. The heads are apart from the data, which is
// page-aligned if it is a page or more; a carrier that is Sealable has each
// head directly before its data.
func (c *Carrier) layOut(n, data int) layout {
	l := layout{fixed: via.DescriptorAlignment + HeadSize, stride: data}
	before := 0
	if c.sealable {
		l.fixed, before = via.DescriptorAlignment, prefix+HeadSize
		l.stride += before + sealTail
	}
	unit := 64
	if data >= 4096 {
		unit = 4096
	}
	l.stride = (l.stride + unit - 1) &^ (unit - 1)
	l.begin = (n*l.fixed + before + 4095) &^ 4095
	l.size = l.begin + n*l.stride
	return l
}

// AddSends adds n sends with room for a header of head bytes.
func (c *Carrier) AddSends(n, head int) error {
	at, size := via.DescriptorAlignment, head
	if c.sealable {
		at, size = at+64, head+seal.TagSize // the prefix ends where the head begins
	}
	stride := at + (size+63)&^63
	mem, err := c.mapMemory(n * stride)
	if err != nil {
		return fmt.Errorf("memory for %d sends: %w", n, err)
	}
	first := len(c.sends)
	for i := range n {
		desc, err := mem.NewDescriptor(i*stride, via.DescriptorAlignment)
		if err != nil {
			return err
		}
		desc.User = uint64(first + i)
		at := i*stride + at
		s := Send{
			Head: mem.Bytes()[at : at+head : at+head], desc: desc, index: uint32(first + i),
			handle: mem.Handle(), headAddr: mem.Addr() + uint64(at),
		}
		if c.sealable {
			s.room = mem.Bytes()[at-prefix : at+head+seal.TagSize]
		}
		c.sends = append(c.sends, s)
	}
	for i := len(c.sends) - 1; i >= first; i-- {
		c.free = append(c.free, uint32(i))
	}
	return nil
}

// Connect connects to a listener. Receives that must be there for the first
// answer were added before.
func (c *Carrier) Connect(ctx context.Context, addr via.Address) error {
	before := trafficOf(c.vi.Stats())
	_, err := c.vi.Connect(ctx, addr)
	if err == nil {
		c.past.Add(&before)
	}
	return err
}

// Accept connects to a requester.
func (c *Carrier) Accept(ctx context.Context, r *via.ConnRequest) error {
	return r.Accept(ctx, c.vi)
}

// Renew readies a carrier that is disconnected for another connection, whose
// messages are in clear again: all sends are free, and all receives are posted
// but those at the indexes in kept, where the owner still uses what arrived.
func (c *Carrier) Renew(kept []uint32) error {
	c.detachKeys()
	c.sealer, c.opener = nil, nil
	c.free = c.free[:0]
	for i := len(c.sends) - 1; i >= 0; i-- {
		c.free = append(c.free, uint32(i))
	}
	for i := range c.receives {
		if slices.Contains(kept, uint32(i)) {
			continue
		}
		if err := c.Post(&c.receives[i]); err != nil {
			return err
		}
	}
	return nil
}

// Connected reports whether the connection stands.
func (c *Carrier) Connected() bool { return c.vi.State() == via.StateConnected }

// Life changes when the peer shows that it is alive, see [via.VI.Life].
func (c *Carrier) Life() uint64 { return c.vi.Life() }

// KeepAlive shows the peer that this end is alive, see [via.VI.KeepAlive].
func (c *Carrier) KeepAlive() bool { return c.vi.KeepAlive() }

// AnswerTime is how long an answer of the peer may take, see
// [via.VI.AnswerTime].
func (c *Carrier) AnswerTime() time.Duration { return c.vi.AnswerTime() }

// Poll returns what is finished, see [via.CQ.Poll].
func (c *Carrier) Poll(dst []via.Completion) int { return c.cq.Poll(dst) }

// Arm prepares a sleep on FD, see [via.CQ.Arm].
func (c *Carrier) Arm() bool { return c.cq.Arm() }

// Edges reports whether ArmEdge saves system calls; see [via.CQ.ArmEdge].
func (c *Carrier) Edges() bool { return c.cq.Edges() }

// ArmEdge is Arm for an owner that watches FD for edges.
func (c *Carrier) ArmEdge() bool { return c.cq.ArmEdge() }

// Share and Pending are for an owner whose thread has a sleep flag, see
// [via.CQ.Share].
func (c *Carrier) Share(flag int) bool { return c.cq.Share(flag) }

// Pending reports whether Poll has something to do.
func (c *Carrier) Pending() bool { return c.cq.Pending() }

// Disarm says that the consumer is awake, see [via.CQ.Disarm].
func (c *Carrier) Disarm() { c.cq.Disarm() }

// FD returns the file descriptor to sleep on.
func (c *Carrier) FD() int { return c.cq.FD() }

// Doorbell makes what was staged visible to the peer.
func (c *Carrier) Doorbell() { c.vi.Doorbell() }

// Close disconnects and releases everything. Nothing of the carrier's memory
// may be in use elsewhere.
func (c *Carrier) Close() error {
	err := c.vi.Disconnect()
	c.drain()
	c.detachKeys()
	return errors.Join(err, c.release())
}

// drain takes the flushed completions off the queue.
func (c *Carrier) drain() {
	var done [64]via.Completion
	for c.cq.Poll(done[:]) > 0 {
	}
}

// Disconnect ends the connection; the memory stays until Close. Nothing that
// was staged is in flight any more when it returns. An error that wraps
// via.ErrStillAccessed says that the peer may be inside memory of the
// connection's tag, see [via.VI.Disconnect]; the connection has ended.
func (c *Carrier) Disconnect() error {
	err := c.vi.Disconnect()
	c.drain()
	return err
}

func (c *Carrier) release() error {
	var errs []error
	if c.vi != nil {
		errs = append(errs, c.vi.Destroy())
	}
	if c.cq != nil {
		errs = append(errs, c.cq.Destroy())
	}
	for _, m := range c.memories {
		errs = append(errs, m.mem.Deregister(), m.arena.Close())
	}
	if c.tag != (via.Ptag{}) {
		errs = append(errs, c.nic.DestroyPtag(c.tag))
	}
	return errors.Join(errs...)
}
