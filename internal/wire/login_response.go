package wire

import "math"

// LoginResponse answers a LoginRequest. With StatusOK the connection is open
// and its values are what the session negotiated. With StatusContinue the
// target demands a proof of identity. With any other status the login is
// refused, Reason and Text say why, and the target closes the connection.
type LoginResponse struct {
	ID        uint32
	PathEpoch uint32 // that of the request
	Status    Status
	Reason    LoginReason
	Version   uint16 // chosen; after a refusal the highest the target speaks

	TargetID       [16]byte // of the target, for ever
	TargetInstance [16]byte // of its process; a new one means it restarted
	ServerNonce    [16]byte // of this login, random

	Credits   uint16 // commands that may be in flight
	SlotBase  uint16 // first slot of this connection
	SlotCount uint16 // slots of this connection
	Conns     uint16 // I/O connections granted to the path

	InlineMax       uint32 // bytes, longest inline payload
	MaxIO           uint32 // bytes, longest transfer
	KeepAliveMillis uint32 // ms between keepalives when idle; 0 none
	RetryAfter      uint32 // ms to wait after a refusal; 0 none

	DataModes   DataModes
	Digest      Digest      // none or one
	Seal        Seal        // none or one
	AuthMethod  AuthMethods // none or one
	Features    Features    // a subset of the offer
	PortalState PortalState
	PublicKey   [32]byte // ephemeral X25519 key; zero without authentication
	Proof       [32]byte // HMAC over the login so far; zero without
	Text        string   // reason for people, ≤ MaxReason bytes
}

// Offsets of a login response. The text follows.
const (
	loginResponseAtVersion         = 64
	loginResponseAtReason          = 66
	loginResponseAtDigest          = 68 // none or one, as Seal and AuthMethod
	loginResponseAtSeal            = 69
	loginResponseAtCredits         = 70  // commands that may be in flight, ≤ MaxDepth
	loginResponseAtTargetID        = 72  // of the target, for ever
	loginResponseAtTargetInstance  = 88  // of its process; changes with a restart
	loginResponseAtServerNonce     = 104 // of this login
	loginResponseAtReserved        = 120
	loginResponseAtSlotBase        = 136 // first slot of this connection
	loginResponseAtSlotCount       = 138 // SlotBase + SlotCount ≤ 65536
	loginResponseAtInlineMax       = 140 // ≤ MaxInline
	loginResponseAtMaxIO           = 144 // ≤ MaxIO
	loginResponseAtKeepAliveMillis = 148 // ms between keepalives of an idle connection; 0 none
	loginResponseAtDataModes       = 152
	loginResponseAtAuthMethod      = 154
	loginResponseAtFeatures        = 156 // a subset of the offer
	loginResponseAtPublicKey       = 160 // ephemeral X25519 key; 0 without authentication
	loginResponseAtProof           = 192 // HMAC over the login so far; 0 without
	loginResponseAtRetryAfter      = 224 // ms to wait after a refusal; 0 none
	loginResponseAtConns           = 228 // I/O connections granted, ≤ MaxConns
	loginResponseAtTextLength      = 230 // ≤ MaxReason
	loginResponseAtPortalState     = 232 // 0 optimized, 1 non-optimized, 2 draining, 3 inaccessible
	loginResponseAtReserved2       = 233
	loginResponseAtText            = 236 // for the operator
	loginResponseSize              = 236
)

// Refusals of login responses alone.
var (
	errVersionChoice = refusal(ErrVersion, "the target chose a version we do not speak")
	errChoice        = refusal(ErrMalformed, "the target chose what this version does not know")
	errPortalState   = refusal(ErrMalformed, "unknown portal state")
	errSlotRange     = refusal(ErrMalformed, "slots end beyond the last number")
)

// Encode implements [Message].
func (m *LoginResponse) Encode(b []byte) (int, error) {
	text := clip(m.Text, MaxReason)
	size := loginResponseSize + len(text)
	if err := startControl(b, size); err != nil {
		return 0, err
	}
	b = b[:size]
	le.PutUint16(b[loginResponseAtVersion:], m.Version)
	le.PutUint16(b[loginResponseAtReason:], uint16(m.Reason))
	b[loginResponseAtDigest] = byte(m.Digest)
	b[loginResponseAtSeal] = byte(m.Seal)
	le.PutUint16(b[loginResponseAtCredits:], m.Credits)
	copy(b[loginResponseAtTargetID:], m.TargetID[:])
	copy(b[loginResponseAtTargetInstance:], m.TargetInstance[:])
	copy(b[loginResponseAtServerNonce:], m.ServerNonce[:])
	le.PutUint16(b[loginResponseAtSlotBase:], m.SlotBase)
	le.PutUint16(b[loginResponseAtSlotCount:], m.SlotCount)
	le.PutUint32(b[loginResponseAtInlineMax:], m.InlineMax)
	le.PutUint32(b[loginResponseAtMaxIO:], m.MaxIO)
	le.PutUint32(b[loginResponseAtKeepAliveMillis:], m.KeepAliveMillis)
	le.PutUint16(b[loginResponseAtDataModes:], uint16(m.DataModes))
	le.PutUint16(b[loginResponseAtAuthMethod:], uint16(m.AuthMethod))
	le.PutUint32(b[loginResponseAtFeatures:], uint32(m.Features))
	copy(b[loginResponseAtPublicKey:], m.PublicKey[:])
	copy(b[loginResponseAtProof:], m.Proof[:])
	le.PutUint32(b[loginResponseAtRetryAfter:], m.RetryAfter)
	le.PutUint16(b[loginResponseAtConns:], m.Conns)
	le.PutUint16(b[loginResponseAtTextLength:], uint16(len(text)))
	b[loginResponseAtPortalState] = byte(m.PortalState)
	copy(b[loginResponseAtText:], text)
	return sealControl(b, ControlHeader{
		OpLoginResponse, m.Status, m.ID,
		m.PathEpoch,
	}), nil
}

// Decode implements [Message]. With ErrVersion, and whenever the status is a
// refusal, all fields are set.
func (m *LoginResponse) Decode(b []byte) error {
	header, err := openControl(b, OpLoginResponse, loginResponseSize)
	if err != nil {
		return err
	}
	*m = LoginResponse{
		ID:              header.ID,
		PathEpoch:       header.PathEpoch,
		Status:          header.Status,
		Reason:          LoginReason(le.Uint16(b[loginResponseAtReason:])),
		Version:         le.Uint16(b[loginResponseAtVersion:]),
		TargetID:        [16]byte(b[loginResponseAtTargetID:]),
		TargetInstance:  [16]byte(b[loginResponseAtTargetInstance:]),
		ServerNonce:     [16]byte(b[loginResponseAtServerNonce:]),
		Credits:         le.Uint16(b[loginResponseAtCredits:]),
		SlotBase:        le.Uint16(b[loginResponseAtSlotBase:]),
		SlotCount:       le.Uint16(b[loginResponseAtSlotCount:]),
		Conns:           le.Uint16(b[loginResponseAtConns:]),
		InlineMax:       le.Uint32(b[loginResponseAtInlineMax:]),
		MaxIO:           le.Uint32(b[loginResponseAtMaxIO:]),
		KeepAliveMillis: le.Uint32(b[loginResponseAtKeepAliveMillis:]),
		RetryAfter:      le.Uint32(b[loginResponseAtRetryAfter:]),
		DataModes:       DataModes(le.Uint16(b[loginResponseAtDataModes:])),
		Digest:          Digest(b[loginResponseAtDigest]),
		Seal:            Seal(b[loginResponseAtSeal]),
		AuthMethod:      AuthMethods(le.Uint16(b[loginResponseAtAuthMethod:])),
		Features:        Features(le.Uint32(b[loginResponseAtFeatures:])),
		PortalState:     PortalState(b[loginResponseAtPortalState]),
		PublicKey:       [32]byte(b[loginResponseAtPublicKey:]),
		Proof:           [32]byte(b[loginResponseAtProof:]),
	}
	t := texts{rest: b[loginResponseAtText:]}
	m.Text = t.text(le.Uint16(b[loginResponseAtTextLength:]), MaxReason)
	if t.err != nil {
		return t.err
	}
	if m.refused() && m.Version > Version {
		return nil // a newer target may say more, and it chose nothing
	}
	switch {
	case len(t.rest) != 0:
		return errBodyLength
	case !isZero(b[loginResponseAtReserved:loginResponseAtSlotBase]),
		!isZero(b[loginResponseAtReserved2:loginResponseAtText]):
		return errReserved
	case m.refused():
		return nil
	case m.Version != Version:
		return errVersionChoice
	}
	return m.check()
}

// refused reports whether the login ends here.
func (m *LoginResponse) refused() bool {
	return m.Status != StatusOK && m.Status != StatusContinue
}

// check verifies the choices of a login that goes on.
func (m *LoginResponse) check() error {
	end := uint32(m.SlotBase) + uint32(m.SlotCount)
	switch {
	case m.Digest&^digestKnown != 0, m.Seal&^sealKnown != 0,
		m.DataModes&^modesKnown != 0, m.AuthMethod&^authKnown != 0,
		m.Features&^featuresKnown != 0:
		return errChoice
	case m.PortalState >= portalEnd:
		return errPortalState
	case end > math.MaxUint16+1:
		return errSlotRange
	case m.InlineMax > MaxInline:
		return errInlineLimit
	case m.MaxIO > MaxIO:
		return errMaxIOLimit
	case m.Credits > MaxDepth:
		return errDepthLimit
	case m.Conns > MaxConns:
		return errConnsLimit
	}
	return nil
}
