package wire

// KeepAlive asks whether the peer is alive, or with Ack says that it is. It is
// for connections whose provider has no immediates, and has no body.
type KeepAlive struct {
	ID        uint32
	PathEpoch uint32
	Ack       bool // the answer; ID is that of the question
}

// opcode returns which of the two messages h is.
func (m *KeepAlive) opcode() Opcode {
	if m.Ack {
		return OpKeepAliveAck
	}
	return OpKeepAlive
}

// Encode implements [Message].
func (m *KeepAlive) Encode(b []byte) (int, error) {
	return encodeBare(b, ControlHeader{m.opcode(), 0, m.ID, m.PathEpoch})
}

// Decode implements [Message]. It takes both messages.
func (m *KeepAlive) Decode(b []byte) error {
	op := OpKeepAlive
	if RawOpcode(b) == OpKeepAliveAck {
		op = OpKeepAliveAck
	}
	header, err := openFixed(b, op, HeaderSize)
	if err != nil {
		return err
	}
	if header.Status != StatusOK {
		return errRequestStatus
	}
	*m = KeepAlive{header.ID, header.PathEpoch, op == OpKeepAliveAck}
	return nil
}
