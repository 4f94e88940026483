package wire

import "math"

// Fence asks the target to end a path for good: nothing that came on it with an
// epoch up to Epoch may touch the disk or the initiator's memory any more.
type Fence struct {
	ID         uint32
	PathEpoch  uint32 // of the connection that carries the request
	Epoch      uint32 // highest epoch of the path to be fenced
	PathID     uint16 // the path to be fenced
	Force      bool   // do not wait for the backing store; a person's decision
	Cursor     uint32 // first slot of the page wanted; 0, then Next
	MaxMessage uint32 // bytes, longest response wanted; 0: MaxControlSize
}

// Offsets of a fence.
const (
	fenceAtEpoch      = 64 // highest epoch of the path to be fenced
	fenceAtPathID     = 68 // the path to be fenced
	fenceAtFlags      = 70 // 1 force: do not wait for the backing store
	fenceAtReserved   = 71
	fenceAtCursor     = 72 // first slot of the page, ≤ 65535
	fenceAtMaxMessage = 76 // longest response wanted, ≤ MaxControlSize; 0 is that
	fenceSize         = 80
)

// fenceForce is the only flag of a fence.
const fenceForce = 1

var errFenceCursor = refusal(ErrMalformed, "cursor is beyond the last slot")

// Encode implements [Message].
func (m *Fence) Encode(b []byte) (int, error) {
	if err := startControl(b, fenceSize); err != nil {
		return 0, err
	}
	b = b[:fenceSize]
	le.PutUint32(b[fenceAtEpoch:], m.Epoch)
	le.PutUint16(b[fenceAtPathID:], m.PathID)
	if m.Force {
		b[fenceAtFlags] = fenceForce
	}
	le.PutUint32(b[fenceAtCursor:], m.Cursor)
	le.PutUint32(b[fenceAtMaxMessage:], m.MaxMessage)
	return sealControl(b, ControlHeader{OpFence, 0, m.ID, m.PathEpoch}), nil
}

// Decode implements [Message].
func (m *Fence) Decode(b []byte) error {
	header, err := openFixed(b, OpFence, fenceSize)
	if err != nil {
		return err
	}
	*m = Fence{
		ID:         header.ID,
		PathEpoch:  header.PathEpoch,
		Epoch:      le.Uint32(b[fenceAtEpoch:]),
		PathID:     le.Uint16(b[fenceAtPathID:]),
		Force:      b[fenceAtFlags]&fenceForce != 0,
		Cursor:     le.Uint32(b[fenceAtCursor:]),
		MaxMessage: le.Uint32(b[fenceAtMaxMessage:]),
	}
	switch {
	case b[fenceAtFlags]&^fenceForce != 0:
		return errReservedFlags
	case b[fenceAtReserved] != 0:
		return errReserved
	case m.Cursor > math.MaxUint16:
		return errFenceCursor
	case m.MaxMessage > MaxControlSize:
		return errControlLimit
	}
	return nil
}
