package wire

import "math"

// EventKind is what an event tells. The zero EventKind is invalid.
type EventKind uint8

// The kinds, each with the fields of Event that it uses.
const (
	EventResize        EventKind = 1 + iota // Export, UUID, SizeGen, Size
	EventExportAdded                        // UUID, Size, Name
	EventExportRemoved                      // Export if open, UUID, Name
	EventPortalState                        // PortalState
	EventGoAway                             // RetryAfter: finish and come back then
	EventVerifier                           // Export, UUID, Verifier: writes were lost
	EventRekey                              // ask for new keys: FeatureRekey
	eventEnd
)

// Event is what the target tells unasked. At most one of a kind is on its way;
// the next waits for the EventAck. Fields that a kind does not use are zero.
type Event struct {
	ID          uint32 // of the event; the ack repeats it
	PathEpoch   uint32
	Kind        EventKind
	PortalState PortalState
	Export      uint16 // handle from OpenResponse
	SizeGen     uint32
	RetryAfter  uint32 // ms
	UUID        [16]byte
	Size        uint64 // bytes
	Verifier    uint64
	Name        string // ≤ MaxName bytes
}

// Offsets of an event. The name follows.
const (
	// 1 resize, 2 export added, 3 export removed, 4 portal state, 5 go away, 6
	// verifier, 7 rekey
	eventAtKind        = 64
	eventAtPortalState = 65 // kind 4; as in LoginResponse
	eventAtExport      = 66 // kinds 1, 3, 6
	eventAtSizeGen     = 68 // kind 1
	eventAtRetryAfter  = 72 // kind 5; ms
	eventAtNameLength  = 76 // kinds 2, 3; ≤ MaxName
	eventAtReserved    = 78
	eventAtUUID        = 80  // kinds 1, 2, 3, 6
	eventAtSize        = 96  // kinds 1, 2; bytes, < 2^63
	eventAtVerifier    = 104 // kind 6
	eventAtName        = 112 // kinds 2, 3
	eventSize          = 112
)

var errEventKind = refusal(ErrMalformed, "unknown kind of event")

// Encode implements [Message].
func (m *Event) Encode(b []byte) (int, error) {
	if err := checkName(m.Name); err != nil {
		return 0, err
	}
	size := eventSize + len(m.Name)
	if err := startControl(b, size); err != nil {
		return 0, err
	}
	b = b[:size]
	b[eventAtKind] = byte(m.Kind)
	b[eventAtPortalState] = byte(m.PortalState)
	le.PutUint16(b[eventAtExport:], m.Export)
	le.PutUint32(b[eventAtSizeGen:], m.SizeGen)
	le.PutUint32(b[eventAtRetryAfter:], m.RetryAfter)
	le.PutUint16(b[eventAtNameLength:], uint16(len(m.Name)))
	copy(b[eventAtUUID:], m.UUID[:])
	le.PutUint64(b[eventAtSize:], m.Size)
	le.PutUint64(b[eventAtVerifier:], m.Verifier)
	copy(b[eventAtName:], m.Name)
	return sealControl(b, ControlHeader{OpEvent, 0, m.ID, m.PathEpoch}), nil
}

// Decode implements [Message].
func (m *Event) Decode(b []byte) error {
	header, err := openControl(b, OpEvent, eventSize)
	if err != nil {
		return err
	}
	*m = Event{
		ID:          header.ID,
		PathEpoch:   header.PathEpoch,
		Kind:        EventKind(b[eventAtKind]),
		PortalState: PortalState(b[eventAtPortalState]),
		Export:      le.Uint16(b[eventAtExport:]),
		SizeGen:     le.Uint32(b[eventAtSizeGen:]),
		RetryAfter:  le.Uint32(b[eventAtRetryAfter:]),
		UUID:        [16]byte(b[eventAtUUID:]),
		Size:        le.Uint64(b[eventAtSize:]),
		Verifier:    le.Uint64(b[eventAtVerifier:]),
	}
	switch {
	case m.Kind == 0 || m.Kind >= eventEnd:
		return errEventKind
	case m.PortalState >= portalEnd:
		return errPortalState
	case le.Uint16(b[eventAtReserved:]) != 0:
		return errReserved
	case m.Size > math.MaxInt64:
		return errExportSize
	}
	t := texts{rest: b[eventAtName:]}
	m.Name = t.name(le.Uint16(b[eventAtNameLength:]))
	return t.end()
}

// EventAck says that an event was handled. It has no answer.
type EventAck struct {
	ID        uint32 // that of the event
	PathEpoch uint32
	Kind      EventKind // that of the event
}

// Offsets of an event ack.
const (
	eventAckAtKind     = 64 // that of the event
	eventAckAtReserved = 65
	eventAckSize       = 68
)

// Encode implements [Message].
func (m *EventAck) Encode(b []byte) (int, error) {
	if err := startControl(b, eventAckSize); err != nil {
		return 0, err
	}
	b = b[:eventAckSize]
	b[eventAckAtKind] = byte(m.Kind)
	return sealControl(b, ControlHeader{OpEventAck, 0, m.ID, m.PathEpoch}), nil
}

// Decode implements [Message].
func (m *EventAck) Decode(b []byte) error {
	header, err := openFixed(b, OpEventAck, eventAckSize)
	if err != nil {
		return err
	}
	*m = EventAck{header.ID, header.PathEpoch, EventKind(b[eventAckAtKind])}
	switch {
	case m.Kind == 0 || m.Kind >= eventEnd:
		return errEventKind
	case !isZero(b[eventAckAtReserved:eventAckSize]):
		return errReserved
	}
	return nil
}
