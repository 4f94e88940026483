package wire

// DREQ ends a connection.
type DREQ struct {
	TID      uint64 // of a new transaction
	LocalID  uint32 // the sender's name for the connection
	RemoteID uint32 // the receiver's
	RemoteQP uint32 // 24 bits: the receiver's queue pair
	Private  [dreqPrivateSize]byte
}

// Offsets of a DREQ, after the header of the MAD.
const (
	dreqAtLocalID   = 0
	dreqAtRemoteID  = 4
	dreqAtRemoteQP  = 8 // 3 bytes
	dreqAtPrivate   = 12
	dreqSize        = MADSize - madSize
	dreqPrivateSize = dreqSize - dreqAtPrivate
)

// Encode implements [Message].
func (m *DREQ) Encode(b []byte) int {
	b = startMAD(b, AttributeDREQ, m.TID)
	be.PutUint32(b[dreqAtLocalID:], m.LocalID)
	be.PutUint32(b[dreqAtRemoteID:], m.RemoteID)
	putUint24(b[dreqAtRemoteQP:], m.RemoteQP)
	copy(b[dreqAtPrivate:], m.Private[:])
	return MADSize
}

// Decode implements [Message].
func (m *DREQ) Decode(b []byte) Refusal {
	b, tid, r := openMAD(b, AttributeDREQ)
	if r != Accepted {
		return r
	}
	m.TID = tid
	m.LocalID = be.Uint32(b[dreqAtLocalID:])
	m.RemoteID = be.Uint32(b[dreqAtRemoteID:])
	m.RemoteQP = uint24(b[dreqAtRemoteQP:])
	copy(m.Private[:], b[dreqAtPrivate:])
	return Accepted
}

// DREP answers a DREQ.
type DREP struct {
	TID      uint64 // of the DREQ
	LocalID  uint32 // the sender's name for the connection
	RemoteID uint32 // the receiver's
	Private  [drepPrivateSize]byte
}

// Offsets of a DREP, after the header of the MAD.
const (
	drepAtLocalID   = 0
	drepAtRemoteID  = 4
	drepAtPrivate   = 8
	drepSize        = MADSize - madSize
	drepPrivateSize = drepSize - drepAtPrivate
)

// Encode implements [Message].
func (m *DREP) Encode(b []byte) int {
	b = startMAD(b, AttributeDREP, m.TID)
	be.PutUint32(b[drepAtLocalID:], m.LocalID)
	be.PutUint32(b[drepAtRemoteID:], m.RemoteID)
	copy(b[drepAtPrivate:], m.Private[:])
	return MADSize
}

// Decode implements [Message].
func (m *DREP) Decode(b []byte) Refusal {
	b, tid, r := openMAD(b, AttributeDREP)
	if r != Accepted {
		return r
	}
	m.TID = tid
	m.LocalID = be.Uint32(b[drepAtLocalID:])
	m.RemoteID = be.Uint32(b[drepAtRemoteID:])
	copy(m.Private[:], b[drepAtPrivate:])
	return Accepted
}
