package wire

// RTU confirms the REP: both ends may use the connection.
type RTU struct {
	TID      uint64 // of the REQ
	LocalID  uint32 // the sender's name for the connection
	RemoteID uint32 // the receiver's
	Private  [rtuPrivateSize]byte
}

// Offsets of an RTU, after the header of the MAD.
const (
	rtuAtLocalID   = 0
	rtuAtRemoteID  = 4
	rtuAtPrivate   = 8
	rtuSize        = MADSize - madSize
	rtuPrivateSize = rtuSize - rtuAtPrivate
)

// Encode implements [Message].
func (m *RTU) Encode(b []byte) int {
	b = startMAD(b, AttributeRTU, m.TID)
	be.PutUint32(b[rtuAtLocalID:], m.LocalID)
	be.PutUint32(b[rtuAtRemoteID:], m.RemoteID)
	copy(b[rtuAtPrivate:], m.Private[:])
	return MADSize
}

// Decode implements [Message].
func (m *RTU) Decode(b []byte) Refusal {
	b, tid, r := openMAD(b, AttributeRTU)
	if r != Accepted {
		return r
	}
	m.TID = tid
	m.LocalID = be.Uint32(b[rtuAtLocalID:])
	m.RemoteID = be.Uint32(b[rtuAtRemoteID:])
	copy(m.Private[:], b[rtuAtPrivate:])
	return Accepted
}
