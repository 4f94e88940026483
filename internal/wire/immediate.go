package wire

// Immediate is the 32 bits that travel with the last RDMA Write or Send of an
// answer: type 4 bits, epoch 4, sequence 8, slot 16, from the top. Only success
// travels as an immediate; errors need words.
type Immediate uint32

// ImmediateType says what an immediate means.
type ImmediateType uint8

// The types. Others are reserved, see [Immediate.Valid].
const (
	ImmOK           ImmediateType = iota // the command of the slot succeeded
	ImmOKData                            // the same, and its data has been placed
	ImmKeepAlive                         // are you there
	ImmKeepAliveAck                      // I am
	ImmCredit                            // Slot more credits
	immEnd
)

// Layout of an immediate.
const (
	immediateTypeShift  = 28
	immediateEpochShift = 24
	immediateSeqShift   = 16
	immediateEpochMask  = 0xf
	immediateSeqMask    = 0xff
)

// MakeImmediate packs an immediate. Of epoch and seq the low bits travel:
// enough to reject an immediate of an earlier path or an earlier use of the
// slot.
func MakeImmediate(t ImmediateType, epoch, seq uint32, slot uint16) Immediate {
	return Immediate(uint32(t)<<immediateTypeShift |
		epoch&immediateEpochMask<<immediateEpochShift |
		seq&immediateSeqMask<<immediateSeqShift | uint32(slot))
}

// Type returns what the immediate means.
func (i Immediate) Type() ImmediateType { return ImmediateType(i >> immediateTypeShift) }

// Valid reports whether the type is known. An immediate that is not valid is a
// protocol error.
func (i Immediate) Valid() bool { return i.Type() < immEnd }

// Epoch returns the low 4 bits of the path epoch.
func (i Immediate) Epoch() uint32 { return uint32(i) >> immediateEpochShift & immediateEpochMask }

// Seq returns the low 8 bits of the command's sequence number.
func (i Immediate) Seq() uint32 { return uint32(i) >> immediateSeqShift & immediateSeqMask }

// Slot returns the command's slot, or for ImmCredit the number of credits.
func (i Immediate) Slot() uint16 { return uint16(i) }

// Matches reports whether the immediate belongs to a command with this path
// epoch and sequence number, as far as the bits that travel can tell.
func (i Immediate) Matches(epoch, seq uint32) bool {
	return i.Epoch() == epoch&immediateEpochMask && i.Seq() == seq&immediateSeqMask
}
