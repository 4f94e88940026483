package bench

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/viablk/viablk/via"
)

// ErrLost is the error of a measurement whose other end has ended, or has
// broken the connection.
var ErrLost = errors.New("the connection is lost: the peer ended or broke it")

// shape is what the VIs of a circuit are made for.
type shape struct {
	VIs            int
	Sends          int // descriptors of each VI
	Receives       int // of each VI
	SendSize       int // bytes
	ReceiveSize    int // bytes
	Op             via.Opcode
	RemoteAddr     uint64 // RDMA: area of the peer
	RemoteHandle   uint32
	ImmediateSends bool // sends carry immediate data
}

// circuit is VIs on one completion queue, connected or to be connected to those
// of the other end, with their descriptors.
type circuit struct {
	st      *station
	cq      *via.CQ
	streams []viStream
	arena   *via.Arena // of the descriptors
	mem     *via.Memory
	used    int // bytes of mem
	wait    waiter
	done    [64]via.Completion

	allowance int // credit of a stream at most
	credited  int // credit that came back in a flow

	got  int // receives taken
	sent int // sends taken
}

// descriptorSize has room for an address and a data segment.
var descriptorSize = via.DescriptorSize(2)

// openCircuit makes the VIs and posts their receives.
func openCircuit(st *station, s shape) (*circuit, error) {
	c := &circuit{st: st, streams: make([]viStream, s.VIs)}
	if err := c.open(s); err != nil {
		return nil, errors.Join(err, c.close())
	}
	return c, nil
}

func (c *circuit) open(s shape) error {
	nic, depth := c.st.nic, s.Sends+s.Receives+1
	var err error
	if c.arena, err = nic.NewArena(s.VIs * depth * descriptorSize); err != nil {
		return err
	}
	if c.mem, err = nic.RegisterMem(c.arena.Bytes(), via.MemAttributes{Ptag: c.st.tag}); err != nil {
		return err
	}
	if c.cq, err = nic.CreateCQ(s.VIs * depth); err != nil {
		return err
	}
	attrs := via.ViAttributes{
		Reliability: c.st.level, Ptag: c.st.tag,
		EnableRdmaWrite: true, EnableRdmaRead: c.st.reads(),
	}
	config := via.ViConfig{SendCQ: c.cq, RecvCQ: c.cq, SendDepth: s.Sends, RecvDepth: s.Receives}
	for i := range c.streams {
		l := &c.streams[i]
		if l.vi, err = nic.CreateVi(attrs, config); err != nil {
			return err
		}
		l.vi.Context = l
		l.credit = unlimited
		if err = c.furnish(l, i, s); err != nil {
			return err
		}
	}
	return nil
}

// furnish builds the descriptors of stream number n and posts its receives.
func (c *circuit) furnish(l *viStream, n int, s shape) error {
	for i := range s.Receives {
		d, err := c.descriptor()
		if err != nil {
			return err
		}
		d.Reset(via.OpRecv)
		c.segment(d, c.st.area, s.ReceiveSize, n*s.Receives+i, s.VIs*s.Receives)
		if err := l.vi.PostRecv(d); err != nil {
			return err
		}
		l.in = append(l.in, d)
	}
	for i := range s.Sends + 1 {
		d, err := c.descriptor()
		if err != nil {
			return err
		}
		k := n + i*s.VIs // VIs take turns
		d.Reset(s.Op)
		if s.Op != via.OpSend {
			k %= c.st.buffers(s.SendSize, s.VIs*s.Sends)
			d.SetRemote(s.RemoteAddr+uint64(k*bufferSize(s.SendSize)), s.RemoteHandle)
		}
		c.segment(d, 0, s.SendSize, k, s.VIs*s.Sends)
		if i == s.Sends {
			d.SetImmediate(1)
			l.flush = d
			continue
		}
		l.out = append(l.out, d)
	}
	return nil
}

// descriptor returns a new one.
func (c *circuit) descriptor() (*via.Descriptor, error) {
	d, err := c.mem.NewDescriptor(c.used, descriptorSize)
	c.used += descriptorSize
	return d, err
}

// segment adds buffer k, of n of a size, in the area at base; nothing if there
// are no bytes.
func (c *circuit) segment(d *via.Descriptor, base, size, k, n int) {
	if size == 0 {
		return
	}
	off := base + k%c.st.buffers(size, n)*bufferSize(size)
	d.AddSegment(c.st.mem.Addr()+uint64(off), c.st.mem.Handle(), uint32(size))
}

// waitAs says how the circuit waits for completions.
func (c *circuit) waitAs(ctx context.Context, mode Wait, budget, timeout time.Duration, aside *control) {
	c.wait = newWaiter(ctx, c.cq, mode, budget)
	c.wait.hangTimeout, c.wait.aside, c.wait.alive = timeout, aside, c.alive
}

// alive returns an error if a connection of the circuit is gone.
func (c *circuit) alive() error {
	for i := range c.streams {
		if c.streams[i].vi.State() != via.StateConnected {
			return ErrLost
		}
	}
	return nil
}

// receive polls once, books what completed and returns how many that were. When
// there are none it waits.
func (c *circuit) receive() (int, error) {
	n, err := c.poll(c.done[:])
	if err != nil {
		return 0, err
	}
	return n, c.book(c.done[:n])
}

// poll polls once and returns how many completions that brought. When there are
// none it waits.
func (c *circuit) poll(dst []via.Completion) (int, error) {
	if err := c.wait.step(); err != nil {
		return 0, err
	}
	n := c.cq.Poll(dst)
	if n == 0 {
		return 0, c.wait.idle()
	}
	c.wait.busy()
	return n, nil
}

// book counts what completed, for its streams and for all.
func (c *circuit) book(done []via.Completion) error {
	for i := range done {
		e := &done[i]
		if e.Status.Failed() {
			return c.failure(e)
		}
		l := e.VI.Context.(*viStream)
		if e.Recv {
			l.spent++
			c.got++
		} else {
			l.sent++
			c.sent++
		}
	}
	return nil
}

// failure says what a failed completion means.
func (c *circuit) failure(e *via.Completion) error {
	if err := c.alive(); err != nil {
		return fmt.Errorf("%w (%v)", err, e.Status)
	}
	return fmt.Errorf("a descriptor completed with %v: %w", e.Status, via.ErrDescriptor)
}

// stats adds up the counters of the links.
func (c *circuit) stats() via.LinkStats {
	var sum via.LinkStats
	for i := range c.streams {
		s := c.streams[i].vi.Stats()
		sum.Sends += s.Sends
		sum.Receives += s.Receives
		sum.RdmaWrites += s.RdmaWrites
		sum.RdmaReads += s.RdmaReads
		sum.Records += s.Records
		sum.Doorbells += s.Doorbells
		sum.BytesCopied += s.BytesCopied
		sum.Stalls += s.Stalls
		sum.Dropped += s.Dropped
	}
	return sum
}

// close disconnects and destroys everything, whatever is posted.
func (c *circuit) close() error {
	var errs []error
	for i := range c.streams {
		if vi := c.streams[i].vi; vi != nil {
			errs = append(errs, vi.Disconnect())
		}
	}
	if c.cq != nil {
		for c.cq.Poll(c.done[:]) > 0 {
		}
	}
	for i := range c.streams {
		if vi := c.streams[i].vi; vi != nil {
			errs = append(errs, vi.Destroy())
		}
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
	return errors.Join(errs...)
}
