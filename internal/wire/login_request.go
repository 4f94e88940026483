package wire

// LoginRequest is the first message of every connection, or the first one
// behind an authentication, and the only one before the LoginResponse. Sets are
// offers: bits that the receiver does not know are ignored. A later version
// only appends fields; a request that offers such a version may be longer than
// this version's.
type LoginRequest struct {
	ID         uint32
	PathEpoch  uint32 // one more at each connect of the path
	MinVersion uint16 // lowest version spoken, ≥ 1
	MaxVersion uint16 // highest version spoken

	Role        Role
	HostID      [16]byte // of the machine; zero: not told
	SessionID   [16]byte // of the session; zero only with RoleDiscover
	SessionGen  uint64   // one more whenever a process takes the session over
	Nonce       uint64   // of the process, random
	ClientNonce [16]byte // of this login, random

	PathID uint16 // which pair of addresses
	Conn   uint16 // index of the connection; see Role
	Conns  uint16 // I/O connections of the path; 0 leaves it to the target
	Depth  uint16 // commands in flight wanted; 0 leaves it to the target

	InlineMax uint32 // bytes, longest inline payload; 0 leaves it to the target
	MaxIO     uint32 // bytes, longest transfer; 0 leaves it to the target

	DataModes   DataModes
	Digest      Digest
	Seal        Seal
	AuthMethods AuthMethods
	Features    Features
	PublicKey   [32]byte // ephemeral X25519 key; zero without authentication
	Proof       [32]byte // HMAC of a connection that joins; else zero
}

// Offsets of a login request.
const (
	loginRequestAtMinVersion  = 64 // ≥ 1, ≤ MaxVersion
	loginRequestAtMaxVersion  = 66 // the range includes 2, else ErrVersion
	loginRequestAtRole        = 68 // 1 control, 2 I/O, 4 discover
	loginRequestAtDigest      = 69 // 1 CRC32C
	loginRequestAtSeal        = 70 // 1 AES-GCM
	loginRequestAtReserved    = 71
	loginRequestAtHostID      = 72  // of the machine; 0 not told
	loginRequestAtSessionID   = 88  // not 0 unless the role is discover
	loginRequestAtSessionGen  = 104 // incremented when a process takes the session over
	loginRequestAtNonce       = 112 // of the process
	loginRequestAtClientNonce = 120 // of this login
	loginRequestAtPathID      = 136 // pair of addresses
	loginRequestAtConn        = 138 // control, discover: 0; I/O: 1 to Conns
	loginRequestAtConns       = 140 // I/O connections of the path, ≤ MaxConns
	loginRequestAtDepth       = 142 // commands in flight, ≤ MaxDepth; 0 is the target's choice
	loginRequestAtInlineMax   = 144 // ≤ MaxInline; 0 is the target's choice
	loginRequestAtMaxIO       = 148 // ≤ MaxIO; 0 is the target's choice
	loginRequestAtDataModes   = 152 // 2 inline, 8 pull, 16 place
	loginRequestAtAuthMethods = 154 // 2 certificates
	loginRequestAtFeatures    = 156 // 1 immediates, 2 events
	loginRequestAtPublicKey   = 160 // ephemeral X25519 key; 0 without authentication
	loginRequestAtProof       = 192 // HMAC of a connection that joins a session; else 0
	loginRequestSize          = 224
)

// Refusals of login requests alone.
var (
	errVersionOrder = refusal(ErrMalformed, "version range is empty or has a zero")
	errVersionRange = refusal(ErrVersion, "the ranges do not overlap")
	errRole         = refusal(ErrMalformed, "unknown role")
	errConn         = refusal(ErrMalformed, "connection index does not fit the role")
	errSessionZero  = refusal(ErrMalformed, "session without an id")
	errConnsLimit   = refusal(ErrLimit, "more connections than the limit")
	errDepthLimit   = refusal(ErrLimit, "more commands in flight than the limit")
	errMaxIOLimit   = refusal(ErrLimit, "longest transfer is above the limit")
)

// Encode implements [Message].
func (m *LoginRequest) Encode(b []byte) (int, error) {
	if err := startControl(b, loginRequestSize); err != nil {
		return 0, err
	}
	b = b[:loginRequestSize]
	le.PutUint16(b[loginRequestAtMinVersion:], m.MinVersion)
	le.PutUint16(b[loginRequestAtMaxVersion:], m.MaxVersion)
	b[loginRequestAtRole] = byte(m.Role)
	b[loginRequestAtDigest] = byte(m.Digest)
	b[loginRequestAtSeal] = byte(m.Seal)
	copy(b[loginRequestAtHostID:], m.HostID[:])
	copy(b[loginRequestAtSessionID:], m.SessionID[:])
	le.PutUint64(b[loginRequestAtSessionGen:], m.SessionGen)
	le.PutUint64(b[loginRequestAtNonce:], m.Nonce)
	copy(b[loginRequestAtClientNonce:], m.ClientNonce[:])
	le.PutUint16(b[loginRequestAtPathID:], m.PathID)
	le.PutUint16(b[loginRequestAtConn:], m.Conn)
	le.PutUint16(b[loginRequestAtConns:], m.Conns)
	le.PutUint16(b[loginRequestAtDepth:], m.Depth)
	le.PutUint32(b[loginRequestAtInlineMax:], m.InlineMax)
	le.PutUint32(b[loginRequestAtMaxIO:], m.MaxIO)
	le.PutUint16(b[loginRequestAtDataModes:], uint16(m.DataModes))
	le.PutUint16(b[loginRequestAtAuthMethods:], uint16(m.AuthMethods))
	le.PutUint32(b[loginRequestAtFeatures:], uint32(m.Features))
	copy(b[loginRequestAtPublicKey:], m.PublicKey[:])
	copy(b[loginRequestAtProof:], m.Proof[:])
	return sealControl(b, ControlHeader{OpLogin, 0, m.ID, m.PathEpoch}), nil
}

// Decode implements [Message]. With ErrVersion all fields are set as well, so
// that the refusal can name what the peer wanted.
func (m *LoginRequest) Decode(b []byte) error {
	header, err := openControl(b, OpLogin, loginRequestSize)
	if err != nil {
		return err
	}
	*m = LoginRequest{
		ID:          header.ID,
		PathEpoch:   header.PathEpoch,
		MinVersion:  le.Uint16(b[loginRequestAtMinVersion:]),
		MaxVersion:  le.Uint16(b[loginRequestAtMaxVersion:]),
		Role:        Role(b[loginRequestAtRole]),
		HostID:      [16]byte(b[loginRequestAtHostID:]),
		SessionID:   [16]byte(b[loginRequestAtSessionID:]),
		SessionGen:  le.Uint64(b[loginRequestAtSessionGen:]),
		Nonce:       le.Uint64(b[loginRequestAtNonce:]),
		ClientNonce: [16]byte(b[loginRequestAtClientNonce:]),
		PathID:      le.Uint16(b[loginRequestAtPathID:]),
		Conn:        le.Uint16(b[loginRequestAtConn:]),
		Conns:       le.Uint16(b[loginRequestAtConns:]),
		Depth:       le.Uint16(b[loginRequestAtDepth:]),
		InlineMax:   le.Uint32(b[loginRequestAtInlineMax:]),
		MaxIO:       le.Uint32(b[loginRequestAtMaxIO:]),
		DataModes:   DataModes(le.Uint16(b[loginRequestAtDataModes:])),
		Digest:      Digest(b[loginRequestAtDigest]),
		Seal:        Seal(b[loginRequestAtSeal]),
		AuthMethods: AuthMethods(le.Uint16(b[loginRequestAtAuthMethods:])),
		Features:    Features(le.Uint32(b[loginRequestAtFeatures:])),
		PublicKey:   [32]byte(b[loginRequestAtPublicKey:]),
		Proof:       [32]byte(b[loginRequestAtProof:]),
	}
	switch {
	case m.MinVersion == 0 || m.MinVersion > m.MaxVersion:
		return errVersionOrder
	case m.MinVersion > Version || m.MaxVersion < Version:
		return errVersionRange
	case m.MaxVersion == Version && len(b) != loginRequestSize:
		return errBodyLength
	case b[loginRequestAtReserved] != 0:
		return errReserved
	}
	return m.check()
}

// check verifies what the fields say together.
func (m *LoginRequest) check() error {
	conn, conns := uint32(m.Conn), uint32(m.Conns)
	switch {
	case m.Role == 0 || m.Role >= roleEnd:
		return errRole
	case m.Role != RoleDiscover && m.SessionID == [16]byte{}:
		return errSessionZero
	case m.Conns > MaxConns:
		return errConnsLimit
	case (m.Role == RoleControl || m.Role == RoleDiscover) && conn != 0,
		m.Role == RoleIO && (conn < 1 || conn > conns):
		return errConn
	case m.Depth > MaxDepth:
		return errDepthLimit
	case m.InlineMax > MaxInline:
		return errInlineLimit
	case m.MaxIO > MaxIO:
		return errMaxIOLimit
	}
	return nil
}
