package wire

// Refused answers a control request that was not understood or not allowed
// where it came, in place of the request's own response.
type Refused struct {
	ID        uint32 // that of the request
	PathEpoch uint32 // that of the request
	Status    Status // StatusNotSupported for an unknown opcode
	Request   Opcode // what was asked
	Text      string // reason for people, ≤ MaxReason bytes
}

// Offsets of a refusal. The text follows.
const (
	refusedAtRequest    = 64 // opcode of the request
	refusedAtReserved   = 65
	refusedAtTextLength = 66 // ≤ MaxReason
	refusedAtText       = 68 // for the operator
	refusedSize         = 68
)

var errRefusedOK = refusal(ErrMalformed, "refusal with status ok")

// Encode implements [Message].
func (m *Refused) Encode(b []byte) (int, error) {
	text := clip(m.Text, MaxReason)
	size := refusedSize + len(text)
	if err := startControl(b, size); err != nil {
		return 0, err
	}
	b = b[:size]
	b[refusedAtRequest] = byte(m.Request)
	le.PutUint16(b[refusedAtTextLength:], uint16(len(text)))
	copy(b[refusedAtText:], text)
	return sealControl(b, ControlHeader{OpRefused, m.Status, m.ID, m.PathEpoch}), nil
}

// Decode implements [Message].
func (m *Refused) Decode(b []byte) error {
	header, err := openControl(b, OpRefused, refusedSize)
	if err != nil {
		return err
	}
	*m = Refused{
		ID:        header.ID,
		PathEpoch: header.PathEpoch,
		Status:    header.Status,
		Request:   Opcode(b[refusedAtRequest]),
	}
	switch {
	case m.Status == StatusOK:
		return errRefusedOK
	case b[refusedAtReserved] != 0:
		return errReserved
	}
	t := texts{rest: b[refusedAtText:]}
	m.Text = t.text(le.Uint16(b[refusedAtTextLength:]), MaxReason)
	return t.end()
}
