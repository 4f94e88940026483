package via

import (
	"encoding/binary"
	"testing"
)

// Every refusal of the translation, and what is just allowed.
func TestTranslate(t *testing.T) {
	b := newBench(t, ReliableDelivery)
	le := binary.LittleEndian
	other, err := b.nic.CreatePtag()
	b.must(err)
	part := func(tag Ptag) *Memory {
		m, err := b.nic.RegisterMem(b.mem.Bytes()[1000:1100], MemAttributes{Ptag: tag})
		b.must(err)
		return m
	}
	small, foreign, gone, moved := part(b.tag), part(other), part(b.tag), part(b.tag)
	b.must(gone.Deregister())
	b.must(moved.SetAttributes(MemAttributes{Ptag: other}))

	segment := func(d *Descriptor, i int, addr uint64, handle, n uint32) {
		s := d.b[ControlSegmentSize+i*SegmentSize:]
		le.PutUint64(s, addr)
		le.PutUint32(s[8:], handle)
		le.PutUint32(s[12:], n)
	}
	over := func(m *Memory, from int, n uint32) func(*Descriptor) {
		return func(d *Descriptor) {
			segment(d, 0, m.Addr()+uint64(from), m.Handle(), n)
			le.PutUint32(d.b[offLength:], n)
		}
	}
	control := func(bits uint16) func(*Descriptor) {
		return func(d *Descriptor) { le.PutUint16(d.b[offControl:], le.Uint16(d.b[offControl:])|bits) }
	}
	count := func(n uint16) func(*Descriptor) { return func(d *Descriptor) { le.PutUint16(d.b[offSegCount:], n) } }
	length := func(n uint32) func(*Descriptor) { return func(d *Descriptor) { le.PutUint32(d.b[offLength:], n) } }
	max := b.vi.attrs.MaxTransferSize

	for _, c := range []struct {
		name  string
		op    Opcode
		bytes int
		spoil func(*Descriptor)
		want  Status
	}{
		{"send", OpSend, 8, nil, 0},
		{"send of nothing", OpSend, 0, nil, 0},
		{"fenced send", OpSend, 8, control(ControlFence), 0},
		{"receive", OpRecv, 8, nil, 0},
		{"receive of nothing", OpRecv, 0, nil, 0},
		{"write", OpRdmaWrite, 8, nil, 0},
		{"write of nothing", OpRdmaWrite, 0, nil, 0},
		{"write with immediate", OpRdmaWrite, 8, control(ControlImmediate), 0},
		{"read", OpRdmaRead, 8, nil, 0},
		{"whole region", OpSend, 8, over(small, 0, 100), 0},
		{"empty segment at the end", OpSend, 8, over(small, 100, 0), 0},
		{"maximum transfer", OpSend, 8, over(b.mem, 0, max), 0},

		{"each reserved bit 4", OpSend, 8, control(0x10), StatusFormatError},
		{"each reserved bit 9", OpSend, 8, control(0x200), StatusFormatError},
		{"each reserved bit 15", OpSend, 8, control(0x8000), StatusFormatError},
		{"reserved opcode", OpSend, 8, control(3), StatusFormatError},
		{"reserved word", OpSend, 8, func(d *Descriptor) { d.b[offReserved+3] = 1 }, StatusFormatError},
		{"segments beyond the memory", OpSend, 8, count(7), StatusFormatError},
		{"most segments", OpSend, 8, count(0xffff), StatusFormatError},
		{"receive with opcode", OpRecv, 8, control(1), StatusFormatError},
		{"receive with immediate", OpRecv, 8, control(ControlImmediate), StatusFormatError},
		{"receive with fence", OpRecv, 8, control(ControlFence), StatusFormatError},
		{"write without address", OpRdmaWrite, 0, count(0), StatusFormatError},
		{"read without data", OpRdmaRead, 0, nil, StatusFormatError},
		{"read with immediate", OpRdmaRead, 8, control(ControlImmediate), StatusFormatError},

		{"length too small", OpSend, 8, length(7), StatusLengthError},
		{"length too big", OpSend, 8, length(9), StatusLengthError},
		{"length of nothing", OpSend, 0, length(1), StatusLengthError},
		{"receive length", OpRecv, 8, length(9), StatusLengthError},
		{"beyond the transfer size", OpSend, 8, over(b.mem, 0, max+1), StatusLengthError},
		{"sum beyond the transfer size", OpSend, 8, func(d *Descriptor) {
			for i := range 2 {
				segment(d, i, b.mem.Addr(), b.mem.Handle(), max)
			}
			count(2)(d)
			length(2 * max)(d)
		}, StatusLengthError},

		{"handle 0", OpSend, 8, func(d *Descriptor) { segment(d, 0, b.mem.Addr(), 0, 8) }, StatusProtectionError},
		{"unknown handle", OpSend, 8, func(d *Descriptor) { segment(d, 0, b.mem.Addr(), b.mem.Handle()+7, 8) }, StatusProtectionError},
		{"other generation", OpSend, 8, func(d *Descriptor) { segment(d, 0, b.mem.Addr(), b.mem.Handle()^1<<20, 8) }, StatusProtectionError},
		{"deregistered", OpSend, 8, over(gone, 0, 8), StatusProtectionError},
		{"another tag", OpSend, 8, over(foreign, 0, 8), StatusProtectionError},
		{"moved to another tag", OpSend, 8, over(moved, 0, 8), StatusProtectionError},
		{"one byte past the end", OpSend, 8, over(small, 0, 101), StatusProtectionError},
		{"at the end", OpSend, 8, over(small, 100, 1), StatusProtectionError},
		{"empty beyond the end", OpSend, 8, over(small, 101, 0), StatusProtectionError},
		{"one byte before", OpSend, 8, over(small, -1, 8), StatusProtectionError},
		{"end of the address space", OpSend, 8, func(d *Descriptor) { segment(d, 0, ^uint64(0), small.Handle(), 8) }, StatusProtectionError},
		{"length of all bits", OpSend, 8, func(d *Descriptor) { segment(d, 0, small.Addr(), small.Handle(), ^uint32(0)) }, StatusProtectionError},
		{"receive past the end", OpRecv, 8, over(small, 0, 101), StatusProtectionError},
		{"write from another tag", OpRdmaWrite, 8, func(d *Descriptor) { segment(d, 1, foreign.Addr(), foreign.Handle(), 8) }, StatusProtectionError},
		{"read into another tag", OpRdmaRead, 8, func(d *Descriptor) { segment(d, 1, foreign.Addr(), foreign.Handle(), 8) }, StatusProtectionError},
	} {
		d := b.desc(c.op, c.bytes)
		if c.spoil != nil {
			c.spoil(d)
		}
		var w Work
		w.Segments = w.inline[:0]
		if got := d.load(&w, b.vi.queue(c.op == OpRecv)); got != c.want {
			t.Errorf("%s: %v, want %v", c.name, got|StatusDone, c.want|StatusDone)
		} else if got == 0 && w.Op != c.op {
			t.Errorf("%s: opcode %v became %v", c.name, c.op, w.Op)
		}
	}
}

func TestTranslateSegmentLimit(t *testing.T) {
	b := newBench(t, ReliableDelivery)
	for _, c := range []struct {
		op       Opcode
		segments int
		want     Status
	}{{OpSend, 252, 0}, {OpSend, 253, StatusFormatError}, {OpRdmaWrite, 252, 0}, {OpRdmaWrite, 253, StatusFormatError}} {
		d, err := b.mem.NewDescriptor(0, DescriptorSize(254))
		b.must(err)
		d.Reset(c.op)
		if c.op == OpRdmaWrite {
			d.SetRemote(1, 2)
		}
		for range c.segments {
			d.AddSegment(b.mem.Addr()+1<<16, b.mem.Handle(), 3)
		}
		var w Work
		if got := d.load(&w, b.vi.queue(false)); got != c.want {
			t.Errorf("opcode %d with %d segments: %v, want %v", c.op, c.segments, got|StatusDone, c.want|StatusDone)
		}
		if c.want == 0 && (len(w.Segments) != c.segments || int(w.Length) != 3*c.segments) {
			t.Errorf("translated to %d segments, %d bytes", len(w.Segments), w.Length)
		}
	}
}

func TestTranslateReadNeedsItsLevel(t *testing.T) {
	for level, want := range map[ReliabilityLevel]Status{
		UnreliableDelivery: StatusFormatError, ReliableDelivery: 0, ReliableReception: 0,
	} {
		b := newBench(t, level)
		var w Work
		if got := b.desc(OpRdmaRead, 8).load(&w, b.vi.queue(false)); got != want {
			t.Errorf("%v: %v, want %v", level, got|StatusDone, want|StatusDone)
		}
	}
}

func TestDescriptorWithoutRoom(t *testing.T) {
	b := newBench(t, ReliableDelivery)
	d, err := b.mem.NewDescriptor(0, ControlSegmentSize)
	b.must(err)
	d.Reset(OpRdmaWrite)
	if d.SetRemote(1, 2) || d.AddSegment(1, 2, 3) {
		t.Error("a control segment alone has room for more")
	}
	var w Work
	if got := d.load(&w, b.vi.queue(false)); got != StatusFormatError {
		t.Errorf("an RDMA Write without its address: %v", got|StatusDone)
	}
}
