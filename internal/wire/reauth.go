package wire

// Reauth proves a key: it ends a login that was answered with StatusContinue,
// and changes keys of a session that lives.
type Reauth struct {
	ID        uint32
	PathEpoch uint32
	Method    AuthMethods // exactly one
	Step      uint8       // of the method, from 1
	Nonce     [16]byte    // random; zero where the step has none
	PublicKey [32]byte    // ephemeral X25519 key; zero where the step has none
	Proof     [32]byte    // HMAC over the exchange so far; zero where none
}

// Offsets of a reauth and of its response, which are alike.
const (
	reauthAtMethod    = 64
	reauthAtStep      = 66
	reauthAtReserved  = 67
	reauthAtNonce     = 68
	reauthAtPublicKey = 84
	reauthAtProof     = 116
	reauthSize        = 148
)

var errAuthMethod = refusal(ErrMalformed, "not one known way to authenticate")

// Encode implements [Message].
func (m *Reauth) Encode(b []byte) (int, error) {
	return m.encode(b, OpReauth, StatusOK)
}

// Decode implements [Message].
func (m *Reauth) Decode(b []byte) error {
	_, err := m.decode(b, OpReauth)
	return err
}

// ReauthResponse answers a Reauth: StatusOK ends the exchange, StatusContinue
// asks for the next step, anything else refuses.
type ReauthResponse struct {
	Status Status
	Reauth // the target's part of the exchange; ID is that of the request
}

// Encode implements [Message].
func (m *ReauthResponse) Encode(b []byte) (int, error) {
	return m.encode(b, OpReauthResponse, m.Status)
}

// Decode implements [Message].
func (m *ReauthResponse) Decode(b []byte) error {
	status, err := m.decode(b, OpReauthResponse)
	m.Status = status
	return err
}

func (m *Reauth) encode(b []byte, op Opcode, s Status) (int, error) {
	if err := startControl(b, reauthSize); err != nil {
		return 0, err
	}
	b = b[:reauthSize]
	le.PutUint16(b[reauthAtMethod:], uint16(m.Method))
	b[reauthAtStep] = m.Step
	copy(b[reauthAtNonce:], m.Nonce[:])
	copy(b[reauthAtPublicKey:], m.PublicKey[:])
	copy(b[reauthAtProof:], m.Proof[:])
	return sealControl(b, ControlHeader{op, s, m.ID, m.PathEpoch}), nil
}

func (m *Reauth) decode(b []byte, op Opcode) (Status, error) {
	header, err := openFixed(b, op, reauthSize)
	if err != nil {
		return 0, err
	}
	*m = Reauth{
		ID:        header.ID,
		PathEpoch: header.PathEpoch,
		Method:    AuthMethods(le.Uint16(b[reauthAtMethod:])),
		Step:      b[reauthAtStep],
		Nonce:     [16]byte(b[reauthAtNonce:]),
		PublicKey: [32]byte(b[reauthAtPublicKey:]),
		Proof:     [32]byte(b[reauthAtProof:]),
	}
	switch {
	case m.Method == 0 || m.Method&^authKnown != 0 || m.Method&(m.Method-1) != 0:
		return header.Status, errAuthMethod
	case b[reauthAtReserved] != 0:
		return header.Status, errReserved
	}
	return header.Status, nil
}
