package wire

// CloseRequest gives an export back. It is idempotent, so it names the OpenID
// as well: a handle that was given to another open since is not closed.
type CloseRequest struct {
	ID        uint32
	PathEpoch uint32
	OpenID    uint32 // that of the OpenRequest
	Export    uint16 // handle from the OpenResponse
}

// Offsets of a close request.
const (
	closeRequestAtOpenID   = 64 // of the OpenRequest
	closeRequestAtExport   = 68 // handle of the OpenResponse
	closeRequestAtReserved = 70
	closeRequestSize       = 72
)

// Encode implements [Message].
func (m *CloseRequest) Encode(b []byte) (int, error) {
	if err := startControl(b, closeRequestSize); err != nil {
		return 0, err
	}
	b = b[:closeRequestSize]
	le.PutUint32(b[closeRequestAtOpenID:], m.OpenID)
	le.PutUint16(b[closeRequestAtExport:], m.Export)
	return sealControl(b, ControlHeader{OpClose, 0, m.ID, m.PathEpoch}), nil
}

// Decode implements [Message].
func (m *CloseRequest) Decode(b []byte) error {
	header, err := openFixed(b, OpClose, closeRequestSize)
	if err != nil {
		return err
	}
	*m = CloseRequest{
		ID:        header.ID,
		PathEpoch: header.PathEpoch,
		OpenID:    le.Uint32(b[closeRequestAtOpenID:]),
		Export:    le.Uint16(b[closeRequestAtExport:]),
	}
	if !isZero(b[closeRequestAtReserved:closeRequestSize]) {
		return errReserved
	}
	return nil
}

// CloseResponse answers a CloseRequest. It has no body.
type CloseResponse struct {
	ID        uint32
	PathEpoch uint32
	Status    Status
}

// Encode implements [Message].
func (m *CloseResponse) Encode(b []byte) (int, error) {
	return encodeBare(b, ControlHeader{OpCloseResponse, m.Status, m.ID, m.PathEpoch})
}

// Decode implements [Message].
func (m *CloseResponse) Decode(b []byte) error {
	header, err := openFixed(b, OpCloseResponse, HeaderSize)
	if err != nil {
		return err
	}
	*m = CloseResponse{header.ID, header.PathEpoch, header.Status}
	return nil
}
