package wire

// OpenMode is how an export is opened. The zero OpenMode is invalid.
type OpenMode uint8

// The modes.
const (
	OpenReadOnly  OpenMode = 1 + iota // no writes
	OpenReadWrite                     // the only writer
	OpenExclusive                     // the only user
	OpenMigrate                       // a second writer, until the first ends
	openEnd
)

// OpenRequest asks for an export. It is idempotent: the same OpenID in the same
// session gives the same handle.
type OpenRequest struct {
	ID        uint32
	PathEpoch uint32
	OpenID    uint32 // chosen by the initiator, unique in the session
	Mode      OpenMode
	WantUUID  [16]byte // refuse any other disk of that name; zero: any
	Name      string   // ≤ MaxName bytes; empty: the default export
}

// Offsets of an open request. The name follows.
const (
	openRequestAtOpenID     = 64
	openRequestAtMode       = 68
	openRequestAtReserved   = 69
	openRequestAtNameLength = 70
	openRequestAtWantUUID   = 72
	openRequestAtName       = 88
	openRequestSize         = 88
)

var errOpenMode = refusal(ErrMalformed, "unknown open mode")

// Encode implements [Message].
func (m *OpenRequest) Encode(b []byte) (int, error) {
	if err := checkName(m.Name); err != nil {
		return 0, err
	}
	size := openRequestSize + len(m.Name)
	if err := startControl(b, size); err != nil {
		return 0, err
	}
	b = b[:size]
	le.PutUint32(b[openRequestAtOpenID:], m.OpenID)
	b[openRequestAtMode] = byte(m.Mode)
	le.PutUint16(b[openRequestAtNameLength:], uint16(len(m.Name)))
	copy(b[openRequestAtWantUUID:], m.WantUUID[:])
	copy(b[openRequestAtName:], m.Name)
	return sealControl(b, ControlHeader{OpOpen, 0, m.ID, m.PathEpoch}), nil
}

// Decode implements [Message].
func (m *OpenRequest) Decode(b []byte) error {
	header, err := openControl(b, OpOpen, openRequestSize)
	if err != nil {
		return err
	}
	*m = OpenRequest{
		ID:        header.ID,
		PathEpoch: header.PathEpoch,
		OpenID:    le.Uint32(b[openRequestAtOpenID:]),
		Mode:      OpenMode(b[openRequestAtMode]),
		WantUUID:  [16]byte(b[openRequestAtWantUUID:]),
	}
	switch {
	case m.Mode == 0 || m.Mode >= openEnd:
		return errOpenMode
	case b[openRequestAtReserved] != 0:
		return errReserved
	}
	t := texts{rest: b[openRequestAtName:]}
	m.Name = t.name(le.Uint16(b[openRequestAtNameLength:]))
	return t.end()
}
