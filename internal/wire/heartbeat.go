package wire

// Heartbeat asks whether the peer is alive, or with Ack says that it is. It is
// for connections whose provider has no immediates, and has no body.
type Heartbeat struct {
	ID        uint32
	PathEpoch uint32
	Ack       bool // the answer; ID is that of the question
}

// opcode returns which of the two messages h is.
func (m *Heartbeat) opcode() Opcode {
	if m.Ack {
		return OpHeartbeatAck
	}
	return OpHeartbeat
}

// Encode implements [Message].
func (m *Heartbeat) Encode(b []byte) (int, error) {
	return encodeBare(b, ControlHeader{m.opcode(), 0, m.ID, m.PathEpoch})
}

// Decode implements [Message]. It takes both messages.
func (m *Heartbeat) Decode(b []byte) error {
	op := OpHeartbeat
	if RawOpcode(b) == OpHeartbeatAck {
		op = OpHeartbeatAck
	}
	header, err := openFixed(b, op, HeaderSize)
	if err != nil {
		return err
	}
	if header.Status != StatusOK {
		return errRequestStatus
	}
	*m = Heartbeat{header.ID, header.PathEpoch, op == OpHeartbeatAck}
	return nil
}
