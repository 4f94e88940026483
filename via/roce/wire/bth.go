package wire

// BTH is the base transport header, the start of every packet.
type BTH struct {
	Opcode     Opcode
	Solicited  bool // requests a solicited event at the receiver
	Migrated   bool // path migration state; hardware sets it, nothing reads it
	FECN       bool // congestion on the path to the receiver
	BECN       bool // congestion on the reverse path; set in a CNP
	AckRequest bool // requests an acknowledgement
	Pad        uint8
	PKey       uint16
	DestQP     uint32 // 24 bits
	PSN        PSN
}

// Offsets of a BTH.
const (
	bthAtOpcode     = 0 // service in bits 7 to 5, operation in bits 4 to 0
	bthAtFlags      = 1 // 0x80 solicited event, 0x40 migrated, 0x30 pad, 0x0f version
	bthAtPKey       = 2 // partition
	bthAtCongestion = 4 // 0x80 FECN, 0x40 BECN; not covered by the ICRC
	bthAtDestQP     = 5 // 3 bytes; never 0
	bthAtAck        = 8 // 0x80 asks for an acknowledgement
	bthAtPSN        = 9 // 3 bytes

	// BTHSize is the length of a BTH, bytes.
	BTHSize = 12
)

// Bits of a BTH.
const (
	bthSolicited  = 0x80 // in Flags
	bthMigrated   = 0x40
	bthPadShift   = 4
	bthVersion    = 0x0f
	bthFECN       = 0x80 // in Congestion
	bthBECN       = 0x40
	bthAckRequest = 0x80 // in Ack
)

// Encode writes the header to b and returns [BTHSize]. It panics if b is
// shorter.
func (h *BTH) Encode(b []byte) int {
	_ = b[BTHSize-1]
	b[bthAtOpcode] = byte(h.Opcode)
	b[bthAtFlags] = bit(h.Solicited, bthSolicited) | bit(h.Migrated, bthMigrated) | h.Pad&3<<bthPadShift
	be.PutUint16(b[bthAtPKey:], h.PKey)
	b[bthAtCongestion] = bit(h.FECN, bthFECN) | bit(h.BECN, bthBECN)
	putUint24(b[bthAtDestQP:], h.DestQP)
	b[bthAtAck] = bit(h.AckRequest, bthAckRequest)
	putUint24(b[bthAtPSN:], uint32(h.PSN))
	return BTHSize
}

// Decode reads the header from b without validation and ignores reserved bits.
// It panics if b is shorter than [BTHSize].
func (h *BTH) Decode(b []byte) {
	_ = b[BTHSize-1]
	flags, congestion := b[bthAtFlags], b[bthAtCongestion]
	h.Opcode = Opcode(b[bthAtOpcode])
	h.Solicited = flags&bthSolicited != 0
	h.Migrated = flags&bthMigrated != 0
	h.Pad = flags >> bthPadShift & 3
	h.PKey = be.Uint16(b[bthAtPKey:])
	h.FECN = congestion&bthFECN != 0
	h.BECN = congestion&bthBECN != 0
	h.DestQP = uint24(b[bthAtDestQP:])
	h.AckRequest = b[bthAtAck]&bthAckRequest != 0
	h.PSN = PSN(uint24(b[bthAtPSN:]))
}

// MatchPKey reports whether two partition keys match: the same partition, which
// is not 0, and at least one full member.
func MatchPKey(a, b uint16) bool {
	const full = 0x8000
	return (a^b)&^full == 0 && a&^full != 0 && (a|b)&full != 0
}

// bit returns mask if set, else 0.
func bit(set bool, mask byte) byte {
	if set {
		return mask
	}
	return 0
}
