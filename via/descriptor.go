package via

import (
	"encoding/binary"
	"fmt"
)

// Layout of a descriptor (VIA 1.0, descriptors): a control segment, for RDMA an
// address segment, then data segments; little-endian.
const (
	ControlSegmentSize  = 32 // bytes
	SegmentSize         = 16 // bytes of an address or data segment
	DescriptorAlignment = 64 // bytes

	offNext       = 0  // u64, the provider's
	offNextHandle = 8  // u32, the provider's
	offSegCount   = 12 // u16, segments after the control segment
	offControl    = 14 // u16
	offReserved   = 16 // u32, zero
	offImmediate  = 20 // u32
	offLength     = 24 // u32, bytes of all data segments; at completion bytes moved
	offStatus     = 28 // u32

	offSegAddr   = 0  // u64
	offSegHandle = 8  // u32
	offSegLength = 12 // u32; reserved in an address segment
)

// Control bits (VIP_CONTROL_*).
const (
	ControlOpMask    uint16 = 0x3 // an Opcode: send/receive, RDMA Write, RDMA Read
	ControlImmediate uint16 = 0x4
	ControlFence     uint16 = 0x8 // starts when earlier RDMA Reads of the queue are done
	controlReserved  uint16 = 0xfff0
)

// DescriptorSize returns the bytes of a descriptor with the given number of
// segments, the address segment included, rounded up to the alignment.
func DescriptorSize(segments int) int {
	n := ControlSegmentSize + segments*SegmentSize
	return (n + DescriptorAlignment - 1) &^ (DescriptorAlignment - 1)
}

// Descriptor is a descriptor in registered memory. It belongs to the consumer
// until it is posted and again once its status is done. It is not safe for
// concurrent use.
//
// It is gone with the region that it lies in, whose memory may be unmapped
// then: its methods change nothing any more and return zeroes. The result of a
// posted one is in its completion.
type Descriptor struct {
	mem  *Memory
	b    []byte // the control segment and room for segments
	addr uint64

	User uint64 // the consumer's
}

// NewDescriptor returns the descriptor at [off, off+size) of registered memory;
// size decides how many segments fit. It returns ErrInvalidParameter for what
// does not lie in the region, and for a region that is not registered any more.
func (m *Memory) NewDescriptor(off, size int) (*Descriptor, error) {
	if !m.Live() {
		return nil, fmt.Errorf("descriptor in a region that is not registered: %w", ErrInvalidParameter)
	}
	if size < ControlSegmentSize || off < 0 || off > len(m.bytes)-size {
		return nil, fmt.Errorf("descriptor at [%d, +%d) of a region of %d bytes: %w", off, size, len(m.bytes), ErrInvalidParameter)
	}
	d := &Descriptor{mem: m, b: m.bytes[off : off+size : off+size], addr: m.addr + uint64(off)}
	return d, nil
}

// live reports whether there is a descriptor and its memory is registered.
func (d *Descriptor) live() bool { return d != nil && d.mem != nil && d.mem.live.Load() }

// Reset clears the descriptor and sets its opcode; OpRecv for a receive.
func (d *Descriptor) Reset(op Opcode) {
	if !d.live() {
		return
	}
	clear(d.b[:ControlSegmentSize])
	if op != OpRecv {
		binary.LittleEndian.PutUint16(d.b[offControl:], uint16(op)&ControlOpMask)
	}
}

// SetImmediate adds immediate data.
func (d *Descriptor) SetImmediate(v uint32) {
	if !d.live() {
		return
	}
	binary.LittleEndian.PutUint32(d.b[offImmediate:], v)
	d.setControl(ControlImmediate)
}

// SetFence delays the descriptor until earlier RDMA Reads of its queue are
// done.
func (d *Descriptor) SetFence() {
	if d.live() {
		d.setControl(ControlFence)
	}
}

func (d *Descriptor) setControl(bit uint16) {
	c := binary.LittleEndian.Uint16(d.b[offControl:])
	binary.LittleEndian.PutUint16(d.b[offControl:], c|bit)
}

// SetRemote sets the address segment. It comes before any AddSegment. It
// returns false if the descriptor has no room for it.
func (d *Descriptor) SetRemote(addr uint64, handle uint32) bool {
	if !d.live() || len(d.b) < ControlSegmentSize+SegmentSize {
		return false
	}
	s := d.b[ControlSegmentSize : ControlSegmentSize+SegmentSize]
	binary.LittleEndian.PutUint64(s[offSegAddr:], addr)
	binary.LittleEndian.PutUint32(s[offSegHandle:], handle)
	binary.LittleEndian.PutUint32(s[offSegLength:], 0)
	binary.LittleEndian.PutUint16(d.b[offSegCount:], 1)
	return true
}

// AddSegment appends a data segment. It returns false if the descriptor has no
// room for it.
func (d *Descriptor) AddSegment(addr uint64, handle, length uint32) bool {
	if !d.live() {
		return false
	}
	count := int(binary.LittleEndian.Uint16(d.b[offSegCount:]))
	off := ControlSegmentSize + count*SegmentSize
	if off+SegmentSize > len(d.b) {
		return false
	}
	s := d.b[off : off+SegmentSize]
	binary.LittleEndian.PutUint64(s[offSegAddr:], addr)
	binary.LittleEndian.PutUint32(s[offSegHandle:], handle)
	binary.LittleEndian.PutUint32(s[offSegLength:], length)
	binary.LittleEndian.PutUint16(d.b[offSegCount:], uint16(count+1))
	total := binary.LittleEndian.Uint32(d.b[offLength:])
	binary.LittleEndian.PutUint32(d.b[offLength:], total+length)
	return true
}

// Status returns the status; StatusDone says whether the rest is valid.
func (d *Descriptor) Status() Status {
	if !d.live() {
		return 0
	}
	return loadStatus(d.b)
}

// Length returns, at completion, the bytes transferred.
func (d *Descriptor) Length() uint32 {
	if !d.live() {
		return 0
	}
	return binary.LittleEndian.Uint32(d.b[offLength:])
}

// Immediate returns the immediate data, valid with StatusImmediate.
func (d *Descriptor) Immediate() uint32 {
	if !d.live() {
		return 0
	}
	return binary.LittleEndian.Uint32(d.b[offImmediate:])
}

// Memory returns the region that the descriptor lies in.
func (d *Descriptor) Memory() *Memory {
	if d == nil {
		return nil
	}
	return d.mem
}

// Bytes returns the descriptor's memory in VIA's layout, or nil if it is gone.
func (d *Descriptor) Bytes() []byte {
	if !d.live() {
		return nil
	}
	return d.b
}

// complete writes the result; the status goes last, with StatusDone.
func (d *Descriptor) complete(s Status, length, immediate uint32) {
	binary.LittleEndian.PutUint32(d.b[offLength:], length)
	if s&StatusImmediate != 0 {
		binary.LittleEndian.PutUint32(d.b[offImmediate:], immediate)
	}
	storeStatus(d.b, s|StatusDone)
}

// op returns the operation that the control field names.
func (d *Descriptor) op() Opcode {
	if !d.mem.live.Load() {
		return OpSend
	}
	return Opcode(binary.LittleEndian.Uint16(d.b[offControl:]) & ControlOpMask)
}

// fenced reports whether the descriptor waits for earlier RDMA Reads. Its
// memory is live.
func (d *Descriptor) fenced() bool { return d.b[offControl]&byte(ControlFence) != 0 }

// load checks a descriptor against its queue's VI and fills w. Every field is
// read once. It returns 0 or the error bits the descriptor completes with (VIA
// 1.0 error table; for protection: handle live, range inside the region, tag of
// the VI). The descriptor may have waited since its post: its own memory is
// checked first.
func (d *Descriptor) load(w *Work, q *workQueue) Status {
	w.Op, w.HasImmediate, w.Immediate = OpSend, false, 0
	if q.recv {
		w.Op = OpRecv
	}
	w.Moved, w.Status, w.place = 0, 0, uint16(q.next)
	w.Segments = w.Segments[:0]
	if !d.mem.live.Load() {
		return StatusProtectionError
	}
	b := d.b
	count := int(binary.LittleEndian.Uint16(b[offSegCount:]))
	control := binary.LittleEndian.Uint16(b[offControl:])
	w.Length = binary.LittleEndian.Uint32(b[offLength:])
	if control&controlReserved != 0 || binary.LittleEndian.Uint32(b[offReserved:]) != 0 ||
		ControlSegmentSize+count*SegmentSize > len(b) {
		return StatusFormatError
	}
	first := 0
	if q.recv {
		if control != 0 {
			return StatusFormatError
		}
	} else if op := Opcode(control & ControlOpMask); op != OpSend {
		if s := d.loadRemote(w, q.vi, op, count, control); s != 0 {
			return s
		}
		first = 1
	}
	if control&ControlImmediate != 0 {
		w.HasImmediate, w.Immediate = true, binary.LittleEndian.Uint32(b[offImmediate:])
	}
	if count-first > q.vi.nic.limits.MaxSegmentsPerDesc {
		return StatusFormatError
	}
	return d.loadSegments(w, q, first, count)
}

// loadRemote checks what only RDMA has: the address segment.
func (d *Descriptor) loadRemote(w *Work, vi *VI, op Opcode, count int, control uint16) Status {
	if op == OpRecv || count < 1 { // OpRecv is the reserved opcode here
		return StatusFormatError
	}
	w.Op = op
	if op == OpRdmaRead && (control&ControlImmediate != 0 || count < 2 ||
		vi.nic.limits.RdmaReadLevels&vi.attrs.Reliability == 0) {
		return StatusFormatError
	}
	s := d.b[ControlSegmentSize : ControlSegmentSize+SegmentSize]
	w.RemoteAddr = binary.LittleEndian.Uint64(s[offSegAddr:])
	w.RemoteHandle = binary.LittleEndian.Uint32(s[offSegHandle:])
	return 0
}

// loadSegments checks the data segments and turns them into memory.
func (d *Descriptor) loadSegments(w *Work, q *workQueue, first, count int) Status {
	var total uint64
	tag := q.vi.attrs.Ptag.id
	for i := first; i < count; i++ {
		off := ControlSegmentSize + i*SegmentSize
		s := d.b[off : off+SegmentSize]
		addr := binary.LittleEndian.Uint64(s[offSegAddr:])
		length := uint64(binary.LittleEndian.Uint32(s[offSegLength:]))
		m := q.memory(binary.LittleEndian.Uint32(s[offSegHandle:]), tag)
		if m == nil {
			return StatusProtectionError
		}
		at := addr - m.addr
		if addr < m.addr || at > uint64(len(m.bytes)) || length > uint64(len(m.bytes))-at {
			return StatusProtectionError
		}
		total += length
		w.Segments = append(w.Segments, Segment{Bytes: m.bytes[at : at+length], Memory: m})
	}
	if total > uint64(q.vi.attrs.MaxTransferSize) || total != uint64(w.Length) {
		return StatusLengthError
	}
	return 0
}
