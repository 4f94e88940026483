package wire

import (
	"strings"
	"unicode/utf8"
)

// Message is a control message: a header, then a body of fixed fields and, in
// some, text or entries. Each kind is a struct of this package. Its ID is
// chosen by who asks, or tells, and repeated in the answer; its PathEpoch is
// that of the connection.
type Message interface {
	// Encode writes the message to b and returns its length. It returns
	// ErrShort if b is too small, ErrLimit for a name or a list that is too
	// long and ErrMalformed for a name that is not UTF-8; [MaxControlSize]
	// bytes always suffice. Texts for people are clipped instead. It does not
	// allocate, except to make a text UTF-8.
	Encode(b []byte) (int, error)

	// Decode reads the received message b, no more and no less. Strings and
	// lists are copies; nothing else allocates. The result is valid only
	// without an error.
	Decode(b []byte) error
}

// ControlHeader is what all control messages share.
type ControlHeader struct {
	Opcode    Opcode
	Status    Status // 0 in requests and events
	ID        uint32 // the sender's; repeated in the answer
	PathEpoch uint32 // that of the connection
}

// Offsets of the header of a control message.
const (
	controlHeaderAtOpcode       = 0
	controlHeaderAtFlags        = 1  // 0
	controlHeaderAtStatus       = 2  // in responses; 0 in requests and events
	controlHeaderAtMagic        = 4  // the bytes viab
	controlHeaderAtID           = 8  // chosen by the sender, repeated in the answer
	controlHeaderAtPathEpoch    = 12 // of the connection
	controlHeaderAtBodyLength   = 16 // of all that follows the header, ≤ MaxControlSize - 64
	controlHeaderAtBodyCRC      = 20 // CRC32C of the body; 0 if it is empty
	controlHeaderAtReserved     = 24
	controlHeaderAtHeaderLength = 58 // 64
	controlHeaderAtHeaderCRC    = 60
	controlHeaderSize           = 64
)

// magic is "viab" in the order of the bytes on the wire.
const magic = 'v' | 'i'<<8 | 'a'<<16 | 'b'<<24

// Refusals of control messages.
var (
	errMagic         = refusal(ErrCorrupt, "not a control message of this protocol")
	errBodyCRC       = refusal(ErrCorrupt, "wrong body checksum")
	errBodyShort     = refusal(ErrShort, "body ends before its fields do")
	errBodyLength    = refusal(ErrMalformed, "body is longer than its fields")
	errControlLimit  = refusal(ErrLimit, "control message is longer than the limit")
	errRequestStatus = refusal(ErrMalformed, "request or event with a status")
	errNameLimit     = refusal(ErrLimit, "name is longer than the limit")
	errTextLimit     = refusal(ErrLimit, "text is longer than the limit")
	errNameBytes     = refusal(ErrMalformed, "name is not UTF-8 or contains NUL")
	errTextBytes     = refusal(ErrMalformed, "text is not UTF-8")
)

// PeekControl returns the header of a received control message, known or not,
// so that it can be dispatched, matched with a request, or refused with
// [Refused]. The header is verified; the body is not, Decode does that.
func PeekControl(b []byte) (ControlHeader, error) {
	if len(b) < HeaderSize {
		return ControlHeader{}, errShortHeader
	}
	h := (*[HeaderSize]byte)(b)
	extra, err := verifyHeader(h, b[HeaderSize:])
	if err != nil {
		return ControlHeader{}, err
	}
	op := Opcode(h[controlHeaderAtOpcode])
	switch {
	case !op.IsControl() && op.known():
		return ControlHeader{}, errOtherMessage
	case !op.IsControl():
		return ControlHeader{Opcode: op}, errOpcode
	case le.Uint32(h[controlHeaderAtMagic:]) != magic:
		return ControlHeader{}, errMagic
	case extra != 0:
		return ControlHeader{}, errHeaderLength
	}
	header := ControlHeader{
		Opcode:    op,
		Status:    Status(le.Uint16(h[controlHeaderAtStatus:])),
		ID:        le.Uint32(h[controlHeaderAtID:]),
		PathEpoch: le.Uint32(h[controlHeaderAtPathEpoch:]),
	}
	switch {
	case !op.known():
		return header, errOpcode
	case h[controlHeaderAtFlags] != 0:
		return header, errReservedFlags
	case !isZero(h[controlHeaderAtReserved:controlHeaderAtHeaderLength]):
		return header, errReserved
	case !header.Status.known():
		return header, errUnknownStatus
	case header.Status != StatusOK && !op.isResponse():
		return header, errRequestStatus
	}
	return header, nil
}

// openControl verifies that b is an intact message of kind op whose fixed part
// ends at size. Whether more may follow is for the caller.
func openControl(b []byte, op Opcode, size int) (ControlHeader, error) {
	header, err := PeekControl(b)
	if err != nil {
		return header, err
	}
	if header.Opcode != op {
		return header, errOtherMessage
	}
	body := b[HeaderSize:]
	switch n := uint64(le.Uint32(b[controlHeaderAtBodyLength:])); {
	case n > MaxControlSize-HeaderSize:
		return header, errControlLimit
	case n > uint64(len(body)):
		return header, errShortMessage
	case n < uint64(len(body)):
		return header, errMessageLength
	}
	if DataCRC(body) != le.Uint32(b[controlHeaderAtBodyCRC:]) {
		return header, errBodyCRC
	}
	if len(b) < size {
		return header, errBodyShort
	}
	return header, nil
}

// openFixed is openControl for a message that ends with its fixed part.
func openFixed(b []byte, op Opcode, size int) (ControlHeader, error) {
	header, err := openControl(b, op, size)
	if err == nil && len(b) != size {
		err = errBodyLength
	}
	return header, err
}

// startControl clears the first size bytes of b, where a message is encoded.
func startControl(b []byte, size int) error {
	if size > MaxControlSize {
		return errControlLimit
	}
	if len(b) < size {
		return errShortBuffer
	}
	clear(b[:size])
	return nil
}

// sealControl writes the header of the message whose body is in b, all of it,
// and returns its length.
func sealControl(b []byte, header ControlHeader) int {
	h := (*[HeaderSize]byte)(b)
	h[controlHeaderAtOpcode] = byte(header.Opcode)
	le.PutUint16(h[controlHeaderAtStatus:], uint16(header.Status))
	le.PutUint32(h[controlHeaderAtMagic:], magic)
	le.PutUint32(h[controlHeaderAtID:], header.ID)
	le.PutUint32(h[controlHeaderAtPathEpoch:], header.PathEpoch)
	le.PutUint32(h[controlHeaderAtBodyLength:], uint32(len(b)-HeaderSize))
	le.PutUint32(h[controlHeaderAtBodyCRC:], DataCRC(b[HeaderSize:]))
	le.PutUint16(h[controlHeaderAtHeaderLength:], HeaderSize)
	le.PutUint32(h[controlHeaderAtHeaderCRC:], headerCRC(h, nil))
	return len(b)
}

// checkName verifies a name that identifies something: it is never changed, so
// one that does not fit is an error.
func checkName(s string) error {
	switch {
	case len(s) > MaxName:
		return errNameLimit
	case !utf8.ValidString(s) || strings.IndexByte(s, 0) >= 0:
		return errNameBytes
	}
	return nil
}

// checkText verifies a received text for people.
func checkText(b []byte, limit int) error {
	switch {
	case len(b) > limit:
		return errTextLimit
	case !utf8.Valid(b):
		return errTextBytes
	}
	return nil
}

// clip makes a text valid UTF-8 of at most limit bytes, cut between characters.
func clip(s string, limit int) string {
	if !utf8.ValidString(s) {
		s = strings.ToValidUTF8(s, "\uFFFD")
	}
	if len(s) <= limit {
		return s
	}
	for limit > 0 && !utf8.RuneStart(s[limit]) {
		limit--
	}
	return s[:limit]
}

// encodeBare writes a message without a body.
func encodeBare(b []byte, header ControlHeader) (int, error) {
	if err := startControl(b, HeaderSize); err != nil {
		return 0, err
	}
	return sealControl(b[:HeaderSize], header), nil
}
