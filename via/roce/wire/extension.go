package wire

// Extensions is the set of headers between BTH and payload, whose order is that
// of the bits.
type Extensions uint8

// The extension headers.
const (
	ExtDETH         Extensions = 1 << iota // datagram: DETH
	ExtRETH                                // RDMA: RETH
	ExtAtomicETH                           // atomic request; not decoded
	ExtAETH                                // acknowledgement: AETH
	ExtAtomicAckETH                        // atomic response; not decoded
	ExtImmDt                               // immediate data
	ExtIETH                                // key to invalidate
)

// RETH is the remote memory of an RDMA operation. Its range is that of the
// whole message.
type RETH struct {
	Addr   uint64 // virtual address
	Key    uint32 // R_Key, a remote memory handle
	Length uint32 // bytes of the whole message
}

// Offsets of a RETH.
const (
	rethAtAddr   = 0
	rethAtKey    = 8  // R_Key
	rethAtLength = 12 // of the whole message

	// RETHSize is the length of a RETH, bytes.
	RETHSize = 16
)

// Encode writes the header to b and returns [RETHSize]. It panics if b is
// shorter.
func (h *RETH) Encode(b []byte) int {
	_ = b[RETHSize-1]
	be.PutUint64(b[rethAtAddr:], h.Addr)
	be.PutUint32(b[rethAtKey:], h.Key)
	be.PutUint32(b[rethAtLength:], h.Length)
	return RETHSize
}

// Decode reads the header from b. It panics if b is shorter than [RETHSize].
func (h *RETH) Decode(b []byte) {
	_ = b[RETHSize-1]
	h.Addr = be.Uint64(b[rethAtAddr:])
	h.Key = be.Uint32(b[rethAtKey:])
	h.Length = be.Uint32(b[rethAtLength:])
}

// AETH acknowledges requests or refuses one.
type AETH struct {
	Syndrome Syndrome
	MSN      MSN // messages that the responder has completed
}

// Offsets of an AETH.
const (
	aethAtSyndrome = 0
	aethAtMSN      = 1 // 3 bytes

	// AETHSize is the length of an AETH, bytes.
	AETHSize = 4
)

// Encode writes the header to b and returns [AETHSize]. It panics if b is
// shorter.
func (h *AETH) Encode(b []byte) int {
	be.PutUint32(b, uint32(h.Syndrome)<<24|uint32(h.MSN)&mask24)
	return AETHSize
}

// Decode reads the header from b. It panics if b is shorter than [AETHSize].
func (h *AETH) Decode(b []byte) {
	_ = b[AETHSize-1]
	h.Syndrome = Syndrome(b[aethAtSyndrome])
	h.MSN = MSN(uint24(b[aethAtMSN:]))
}

// DETH identifies the sender of a datagram and holds the Q_Key.
type DETH struct {
	QKey     uint32
	SourceQP uint32 // 24 bits
}

// Offsets of a DETH.
const (
	dethAtQKey     = 0
	dethAtSourceQP = 5 // 3 bytes

	// DETHSize is the length of a DETH, bytes.
	DETHSize = 8
)

// Encode writes the header to b and returns [DETHSize]. It panics if b is
// shorter.
func (h *DETH) Encode(b []byte) int {
	_ = b[DETHSize-1]
	be.PutUint32(b[dethAtQKey:], h.QKey)
	b[dethAtQKey+4] = 0 // reserved
	putUint24(b[dethAtSourceQP:], h.SourceQP)
	return DETHSize
}

// Decode reads the header from b. It panics if b is shorter than [DETHSize].
func (h *DETH) Decode(b []byte) {
	_ = b[DETHSize-1]
	h.QKey = be.Uint32(b[dethAtQKey:])
	h.SourceQP = uint24(b[dethAtSourceQP:])
}

// Lengths of the extension headers that are one number each, and of the two of
// atomics, which are skipped: the opcode suffices to refuse them.
const (
	ImmDtSize        = 4
	IETHSize         = 4
	AtomicETHSize    = 28
	AtomicAckETHSize = 8
)
