package wire

import "strconv"

// MaxAuthData is the longest part of a flight in one message, bytes.
const MaxAuthData = 7 << 10

// AuthVersion is the version of authentication that this package speaks.
const AuthVersion = 1

// AuthKind is what an Auth is for. The zero AuthKind is invalid.
type AuthKind uint8

// The kinds. An answer has the kind of its request.
const (
	AuthHello  AuthKind = 1 + iota // offers, and the first part of a handshake
	AuthFlight                     // more of the handshake
	AuthJoin                       // a connection joins an authenticated session
	AuthRekey                      // a handshake inside a sealed connection
	authKindEnd
)

var authKindNames = [authKindEnd]string{
	AuthHello: "hello", AuthFlight: "flight", AuthJoin: "join", AuthRekey: "rekey",
}

// String returns the name, or the number of a kind this version does not know.
func (k AuthKind) String() string {
	if k < authKindEnd && authKindNames[k] != "" {
		return authKindNames[k]
	}
	return "auth-" + strconv.FormatUint(uint64(k), 10)
}

// Auth authenticates the ends of a connection before the login, or again inside
// a sealed connection. Only the first initiator message and its answer have
// offers and a choice. Sets of a request are offers: bits that the receiver
// does not know are ignored.
type Auth struct {
	ID        uint32
	PathEpoch uint32
	Answer    bool
	Status    Status // of an answer: continue, ok, or a refusal
	Kind      AuthKind
	Methods   AuthMethods // an answer has one; only 8 bits are sent
	Seals     Seal        // an answer has one
	Last      bool        // the sender's handshake is complete
	Version   uint16

	Conn       uint16   // of a join
	Session    [16]byte // name of the keys: of a join, and of the answer that is ok
	RetryAfter uint32   // ms, of an answer
	Nonce      [32]byte // random in each message
	Proof      [32]byte // of a join, HMAC-SHA-256
	Data       []byte   // part of a flight, ≤ MaxAuthData
}

// Offsets of an authentication. The data follows.
const (
	authAtKind       = 64 // 1 hello, 2 flight, 3 join, 4 rekey
	authAtMethods    = 65 // 2 certificates
	authAtSeals      = 66 // 1 AES-256-GCM
	authAtFlags      = 67 // 1 last
	authAtVersion    = 68 // AuthVersion
	authAtConn       = 70 // of a join; else 0
	authAtSession    = 72 // of a join or an answer; else 0
	authAtPathEpoch  = 88 // of a join: that of the header; else 0
	authAtRetryAfter = 92 // answer: ms
	authAtNonce      = 96
	authAtProof      = 128 // of a join; else 0
	authAtDataLength = 160 // ≤ MaxAuthData
	authAtReserved   = 162
	authAtData       = 168 // TLS records
	authSize         = 168

	authLast = 1 << 0
)

// Refusals of authentications alone.
var (
	errAuthKind    = refusal(ErrMalformed, "unknown kind of authentication")
	errAuthVersion = refusal(ErrVersion, "the peer authenticates by another version")
	errAuthJoin    = refusal(ErrMalformed, "fields of a join outside of one, or another epoch in it")
	errAuthAnswer  = refusal(ErrMalformed, "request with the fields of an answer")
	errAuthData    = refusal(ErrLimit, "part of a flight is longer than the limit")
)

// Encode implements [Message].
func (m *Auth) Encode(b []byte) (int, error) {
	if len(m.Data) > MaxAuthData {
		return 0, errAuthData
	}
	size := authSize + len(m.Data)
	if err := startControl(b, size); err != nil {
		return 0, err
	}
	b = b[:size]
	b[authAtKind] = byte(m.Kind)
	b[authAtMethods] = byte(m.Methods)
	b[authAtSeals] = byte(m.Seals)
	if m.Last {
		b[authAtFlags] = authLast
	}
	le.PutUint16(b[authAtVersion:], m.Version)
	le.PutUint16(b[authAtConn:], m.Conn)
	copy(b[authAtSession:], m.Session[:])
	if m.Kind == AuthJoin {
		le.PutUint32(b[authAtPathEpoch:], m.PathEpoch)
	}
	le.PutUint32(b[authAtRetryAfter:], m.RetryAfter)
	copy(b[authAtNonce:], m.Nonce[:])
	copy(b[authAtProof:], m.Proof[:])
	le.PutUint16(b[authAtDataLength:], uint16(len(m.Data)))
	copy(b[authAtData:], m.Data)
	op := OpAuth
	if m.Answer {
		op = OpAuthResponse
	}
	return sealControl(b, ControlHeader{op, m.Status, m.ID, m.PathEpoch}), nil
}

// Decode implements [Message]. With ErrVersion all fields are set as well. Data
// is a copy.
func (m *Auth) Decode(b []byte) error {
	op := OpAuth
	if len(b) > 0 && RawOpcode(b) == OpAuthResponse {
		op = OpAuthResponse
	}
	header, err := openControl(b, op, authSize)
	if err != nil {
		return err
	}
	*m = Auth{
		ID: header.ID, PathEpoch: header.PathEpoch, Status: header.Status, Answer: op == OpAuthResponse,
		Kind:       AuthKind(b[authAtKind]),
		Methods:    AuthMethods(b[authAtMethods]),
		Seals:      Seal(b[authAtSeals]),
		Last:       b[authAtFlags]&authLast != 0,
		Version:    le.Uint16(b[authAtVersion:]),
		Conn:       le.Uint16(b[authAtConn:]),
		Session:    [16]byte(b[authAtSession:]),
		RetryAfter: le.Uint32(b[authAtRetryAfter:]),
		Nonce:      [32]byte(b[authAtNonce:]),
		Proof:      [32]byte(b[authAtProof:]),
	}
	switch n := int(le.Uint16(b[authAtDataLength:])); {
	case n > MaxAuthData:
		return errAuthData
	case len(b)-authSize < n:
		return errBodyShort
	case len(b)-authSize > n:
		return errBodyLength
	case n > 0:
		m.Data = append([]byte(nil), b[authAtData:]...)
	}
	return m.check(b)
}

// check verifies what the fields say together.
func (m *Auth) check(b []byte) error {
	epoch := le.Uint32(b[authAtPathEpoch:])
	join := m.Kind == AuthJoin
	switch {
	case m.Version != AuthVersion:
		return errAuthVersion
	case m.Kind == 0 || m.Kind >= authKindEnd:
		return errAuthKind
	case b[authAtFlags]&^authLast != 0:
		return errReservedFlags
	case !isZero(b[authAtReserved:authAtData]):
		return errReserved
	case join && epoch != m.PathEpoch,
		!join && (epoch != 0 || m.Conn != 0 || m.Proof != [32]byte{}):
		return errAuthJoin
	case !m.Answer && (m.RetryAfter != 0 || !join && m.Session != [16]byte{}):
		return errAuthAnswer
	case m.Answer && (m.Methods&^authKnown != 0 || m.Seals&^sealKnown != 0):
		return errChoice
	}
	return nil
}

// AppendFields appends what the proof of a join is about: the fields from Kind
// to Nonce as they are sent.
func (m *Auth) AppendFields(b []byte) []byte {
	var buf [authSize]byte
	fields := *m
	fields.Data = nil
	if _, err := fields.Encode(buf[:]); err != nil { // it has room
		return b
	}
	return append(b, buf[authAtKind:authAtProof]...)
}
