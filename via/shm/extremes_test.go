package shm_test

import (
	"bytes"
	"testing"
	"time"

	"github.com/viablk/viablk/via"
	"github.com/viablk/viablk/via/shm"
)

// limitsOf returns the limits of the provider.
func limitsOf(t *testing.T) via.Limits {
	t.Helper()
	nic, err := via.OpenNic(shm.New(shm.Options{}), "")
	must(t, err)
	defer func() { must(t, nic.Close()) }()
	return nic.Limits()
}

// The largest arena that the limits allow is one region, to the last byte of
// which a peer writes; there is no larger one, and nothing more is registered
// beside it.
func TestLargestArena(t *testing.T) {
	l := limitsOf(t)
	if l.MaxRegisterBytes != l.MaxRegisterBlockBytes {
		t.Fatalf("%d bytes in all, %d in a region", l.MaxRegisterBytes, l.MaxRegisterBlockBytes)
	}
	size := int(l.MaxRegisterBlockBytes)
	c, s := connectedPair(t, 8, size) // sparse
	want := bytes.Repeat([]byte("the end."), 8)
	copy(c.mem.Bytes()[size-64:], want)
	w := c.descriptor(t, 0)
	w.Reset(via.OpRdmaWrite)
	w.SetRemote(s.mem.Addr()+uint64(size)-64, s.mem.Handle())
	w.AddSegment(c.mem.Addr()+uint64(size)-64, c.mem.Handle(), 64)
	must(t, c.vi.PostSend(w))
	if e := c.await(t); e.Status.Failed() || e.Length != 64 {
		t.Fatalf("write to the end: %v, %d bytes", e.Status, e.Length)
	}
	if got := s.mem.Bytes()[size-64:]; !bytes.Equal(got, want) {
		t.Fatalf("the last bytes are %q", got)
	}
	if _, err := s.nic.NewArena(size + 1); codeOf(err) != via.ErrInvalidParameter {
		t.Errorf("a larger arena: %v", err)
	}
	if _, err := s.nic.RegisterMem(s.mem.Bytes()[:64], via.MemAttributes{Ptag: s.tag}); codeOf(err) != via.ErrResource {
		t.Errorf("a region more: %v", err)
	}
}

// gigabyte is a transfer of as many bytes and segments as the limits allow. All
// segments of an end are the same memory.
type gigabyte struct {
	c, s    *end
	bytes   uint32
	count   int
	segment uint32 // bytes of each
}

const (
	gigabyteDescriptor = 32 << 10 // bytes, room for all segments
	gigabyteData       = 1 << 20  // where the memory of the segments begins
)

func newGigabyte(t *testing.T, room int) *gigabyte {
	t.Helper()
	l := limitsOf(t)
	g := &gigabyte{bytes: l.MaxTransferSize, count: l.MaxSegmentsPerDesc}
	if g.bytes != 1<<30 {
		t.Fatalf("the provider transfers %d bytes, not a gigabyte", g.bytes)
	}
	g.segment = g.bytes / uint32(g.count)
	g.c, g.s = connectedPair(t, 2, room)
	return g
}

// descriptor describes an operation over all segments. The last one is extra
// bytes longer, which makes the transfer too long.
func (g *gigabyte) descriptor(t *testing.T, e *end, place int, op via.Opcode, remote *via.Memory, extra uint32) *via.Descriptor {
	t.Helper()
	d, err := e.mem.NewDescriptor(place*gigabyteDescriptor, gigabyteDescriptor)
	must(t, err)
	d.Reset(op)
	if remote != nil {
		d.SetRemote(remote.Addr()+2*gigabyteData, remote.Handle())
	}
	for i := range g.count {
		n := g.segment
		if i == g.count-1 {
			n += extra
		}
		if !d.AddSegment(e.mem.Addr()+gigabyteData, e.mem.Handle(), n) {
			t.Fatal("no room for all segments")
		}
	}
	return d
}

// data is the memory of the segments.
func (g *gigabyte) data(e *end) []byte { return e.mem.Bytes()[gigabyteData:][:g.segment] }

// drive polls both ends until they have that many completions.
func (g *gigabyte) drive(t *testing.T, atClient, atServer int) (c, s []via.Completion) {
	t.Helper()
	var got [2]via.Completion
	for deadline := time.Now().Add(3 * time.Minute); len(c) < atClient || len(s) < atServer; {
		if time.Now().After(deadline) {
			t.Fatalf("%d and %d completions, want %d and %d", len(c), len(s), atClient, atServer)
		}
		c = append(c, got[:g.c.cq.Poll(got[:])]...)
		s = append(s, got[:g.s.cq.Poll(got[:])]...)
	}
	return c, s
}

// A Send of the maximum transfer size arrives; one byte more is too long.
func TestSendGigabyte(t *testing.T) {
	g := newGigabyte(t, 2*gigabyteData+4096)
	for i := range g.data(g.c) {
		g.data(g.c)[i] = byte(i * 5)
	}
	must(t, g.s.vi.PostRecv(g.descriptor(t, g.s, 0, via.OpRecv, nil, 0)))
	send := g.descriptor(t, g.c, 0, via.OpSend, nil, 0)
	must(t, g.c.vi.PostSend(send))
	sent, received := g.drive(t, 1, 1)
	for _, e := range append(sent, received...) {
		if e.Status.Failed() || e.Length != g.bytes {
			t.Fatalf("completed with %v, %d bytes (receive: %v)", e.Status, e.Length, e.Recv)
		}
	}
	if !bytes.Equal(g.data(g.s), g.data(g.c)) {
		t.Error("other bytes arrived than were sent")
	}
	must(t, g.c.vi.PostSend(g.descriptor(t, g.c, 1, via.OpSend, nil, 1)))
	if c, _ := g.drive(t, 1, 0); c[0].Status&via.StatusErrorMask != via.StatusLengthError {
		t.Errorf("a send of one byte more completed with %v", c[0].Status)
	}
}

// RDMA of the maximum transfer size writes and reads a gigabyte in one piece at
// the peer; one byte more is too long.
func TestRdmaGigabyte(t *testing.T) {
	g := newGigabyte(t, 2*gigabyteData+1<<30)
	for i := range g.data(g.c) {
		g.data(g.c)[i] = byte(i*3 + 1)
	}
	want := bytes.Clone(g.data(g.c))
	far := g.s.mem.Bytes()[2*gigabyteData:]
	defer func() { // the memory is back at once
		if err := g.s.mem.Arena().Discard(2*gigabyteData, len(far)); err != nil {
			t.Error(err)
		}
	}()
	for _, op := range []via.Opcode{via.OpRdmaWrite, via.OpRdmaRead} {
		must(t, g.c.vi.PostSend(g.descriptor(t, g.c, 0, op, g.s.mem, 0)))
		if c, _ := g.drive(t, 1, 0); c[0].Status.Failed() || c[0].Length != g.bytes {
			t.Fatalf("operation %d completed with %v, %d bytes", op, c[0].Status, c[0].Length)
		}
		if op == via.OpRdmaWrite {
			for off := 0; off < len(far); off += len(want) { // the ends: each page looked at is mapped
				piece, n := far[off:][:len(want)], len(want)-64
				if !bytes.Equal(piece[:64], want[:64]) || !bytes.Equal(piece[n:], want[n:]) {
					t.Fatalf("other bytes were written in the piece at %d", off)
				}
			}
			for i := range want { // what is read last lies over the rest
				far[len(far)-len(want)+i] ^= 0xff
			}
			continue
		}
		for i, b := range g.data(g.c) {
			if b != want[i]^0xff {
				t.Fatalf("byte %d read is %#x, want %#x", i, b, want[i]^0xff)
			}
		}
	}
	must(t, g.c.vi.PostSend(g.descriptor(t, g.c, 1, via.OpRdmaWrite, g.s.mem, 1)))
	if c, _ := g.drive(t, 1, 0); c[0].Status&via.StatusErrorMask != via.StatusLengthError {
		t.Errorf("a write of one byte more completed with %v", c[0].Status)
	}
}
