package wire

// Answered is the message that a REJ or MRA answers, 2 bits.
type Answered uint8

// The messages that a REJ or MRA can answer.
const (
	AnsweredREQ   Answered = 0
	AnsweredREP   Answered = 1
	AnsweredOther Answered = 2 // in an MRA a LAP; in a REJ no message: a timeout
)

// MRA asks the sender of a REQ or REP to wait: the answer takes ServiceTimeout.
type MRA struct {
	TID            uint64 // of the REQ
	LocalID        uint32 // the sender's name for the connection
	RemoteID       uint32 // the receiver's
	Answered       Answered
	ServiceTimeout Timeout
	Private        [mraPrivateSize]byte
}

// Offsets of an MRA, after the header of the MAD.
const (
	mraAtLocalID        = 0
	mraAtRemoteID       = 4
	mraAtAnswered       = 8 // 0xc0
	mraAtServiceTimeout = 9 // 0xf8
	mraAtPrivate        = 10
	mraSize             = MADSize - madSize
	mraPrivateSize      = mraSize - mraAtPrivate
)

// Encode implements [Message].
func (m *MRA) Encode(b []byte) int {
	b = startMAD(b, AttributeMRA, m.TID)
	be.PutUint32(b[mraAtLocalID:], m.LocalID)
	be.PutUint32(b[mraAtRemoteID:], m.RemoteID)
	b[mraAtAnswered] = byte(m.Answered) << 6
	b[mraAtServiceTimeout] = byte(m.ServiceTimeout) << 3
	copy(b[mraAtPrivate:], m.Private[:])
	return MADSize
}

// Decode implements [Message].
func (m *MRA) Decode(b []byte) Refusal {
	b, tid, r := openMAD(b, AttributeMRA)
	if r != Accepted {
		return r
	}
	m.TID = tid
	m.LocalID = be.Uint32(b[mraAtLocalID:])
	m.RemoteID = be.Uint32(b[mraAtRemoteID:])
	m.Answered = Answered(b[mraAtAnswered] >> 6)
	m.ServiceTimeout = Timeout(b[mraAtServiceTimeout] >> 3)
	copy(m.Private[:], b[mraAtPrivate:])
	return Accepted
}
