package wire

// Logout leaves in order: nothing of this session is in flight any more.
type Logout struct {
	ID          uint32
	PathEpoch   uint32
	KeepSession bool // only this path ends; slots and opens stay
}

// Offsets of a logout.
const (
	logoutAtFlags    = 64 // 1 keep the session: only this path ends
	logoutAtReserved = 65
	logoutSize       = 68
)

// logoutKeepSession is the only flag of a logout.
const logoutKeepSession = 1

// Encode implements [Message].
func (m *Logout) Encode(b []byte) (int, error) {
	if err := startControl(b, logoutSize); err != nil {
		return 0, err
	}
	b = b[:logoutSize]
	if m.KeepSession {
		b[logoutAtFlags] = logoutKeepSession
	}
	return sealControl(b, ControlHeader{OpLogout, 0, m.ID, m.PathEpoch}), nil
}

// Decode implements [Message].
func (m *Logout) Decode(b []byte) error {
	header, err := openFixed(b, OpLogout, logoutSize)
	if err != nil {
		return err
	}
	*m = Logout{header.ID, header.PathEpoch, b[logoutAtFlags]&logoutKeepSession != 0}
	switch {
	case b[logoutAtFlags]&^logoutKeepSession != 0:
		return errReservedFlags
	case !isZero(b[logoutAtReserved:logoutSize]):
		return errReserved
	}
	return nil
}

// LogoutResponse answers a Logout; the initiator disconnects.
type LogoutResponse struct {
	ID        uint32
	PathEpoch uint32
	Status    Status
	Durable   bool // every write that the session was answered is durable
}

// Offsets of a logout response.
const (
	logoutResponseAtFlags    = 64 // 1 durable: every write that the session was answered is durable
	logoutResponseAtReserved = 65
	logoutResponseSize       = 68
)

// logoutResponseDurable is the only flag of a logout response.
const logoutResponseDurable = 1

// Encode implements [Message].
func (m *LogoutResponse) Encode(b []byte) (int, error) {
	if err := startControl(b, logoutResponseSize); err != nil {
		return 0, err
	}
	b = b[:logoutResponseSize]
	if m.Durable {
		b[logoutResponseAtFlags] = logoutResponseDurable
	}
	return sealControl(b, ControlHeader{OpLogoutResponse, m.Status, m.ID, m.PathEpoch}), nil
}

// Decode implements [Message].
func (m *LogoutResponse) Decode(b []byte) error {
	header, err := openFixed(b, OpLogoutResponse, logoutResponseSize)
	if err != nil {
		return err
	}
	*m = LogoutResponse{header.ID, header.PathEpoch, header.Status, b[logoutResponseAtFlags]&logoutResponseDurable != 0}
	switch {
	case b[logoutResponseAtFlags]&^logoutResponseDurable != 0:
		return errReservedFlags
	case !isZero(b[logoutResponseAtReserved:logoutResponseSize]):
		return errReserved
	}
	return nil
}
