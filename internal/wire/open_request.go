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
	Return    bool     // the initiator had the disk before, in this Generation
	Preempt   bool     // end the clients that are in the way
	WantUUID  [16]byte // refuse any other disk of that name; zero: any

	// Writer identifies the initiator's use of the disk over all its sessions:
	// it is kept with the disk as the last writer. Zero: the session.
	Writer     [16]byte
	Generation uint64 // that of the last OpenResponse; with Return
	Name       string // ≤ MaxName bytes; empty: the default export
}

// Offsets of an open request. The name follows.
const (
	openRequestAtOpenID = 64 // unique in the session; a repeated ID returns the same handle
	openRequestAtMode   = 68 // 1 read-only, 2 read-write, 3 exclusive, 4 migrate
	// 1 return: the initiator had the disk in Generation; 2 preempt: end the
	// clients in the way
	openRequestAtFlags      = 69
	openRequestAtNameLength = 70 // ≤ MaxName
	openRequestAtWantUUID   = 72 // 0 any disk
	// of the initiator's use of the disk, over all its sessions; 0 the session
	openRequestAtWriter     = 88
	openRequestAtGeneration = 104 // with the flag return
	openRequestAtName       = 112 // empty: the default export
	openRequestSize         = 112
)

// Flags of an open request.
const (
	openReturn  = 1
	openPreempt = 2
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
	if m.Return {
		b[openRequestAtFlags] |= openReturn
	}
	if m.Preempt {
		b[openRequestAtFlags] |= openPreempt
	}
	copy(b[openRequestAtWriter:], m.Writer[:])
	le.PutUint64(b[openRequestAtGeneration:], m.Generation)
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
		Return:    b[openRequestAtFlags]&openReturn != 0,
		Preempt:   b[openRequestAtFlags]&openPreempt != 0,
		WantUUID:  [16]byte(b[openRequestAtWantUUID:]),

		Writer:     [16]byte(b[openRequestAtWriter:]),
		Generation: le.Uint64(b[openRequestAtGeneration:]),
	}
	switch {
	case m.Mode == 0 || m.Mode >= openEnd:
		return errOpenMode
	case b[openRequestAtFlags]&^(openReturn|openPreempt) != 0:
		return errReservedFlags
	}
	t := texts{rest: b[openRequestAtName:]}
	m.Name = t.name(le.Uint16(b[openRequestAtNameLength:]))
	return t.end()
}
