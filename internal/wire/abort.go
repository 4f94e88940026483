package wire

// Abort asks to drop one command. The command is still answered, with
// StatusAborted if it was dropped; the AbortResponse says what became of it.
type Abort struct {
	ID        uint32
	PathEpoch uint32
	Seq       uint32 // of the command
	Slot      uint16 // of the command
}

// Offsets of an abort.
const (
	abortAtSeq      = 64 // of the command
	abortAtSlot     = 68 // of the command
	abortAtReserved = 70
	abortSize       = 72
)

// Encode implements [Message].
func (m *Abort) Encode(b []byte) (int, error) {
	if err := startControl(b, abortSize); err != nil {
		return 0, err
	}
	b = b[:abortSize]
	le.PutUint32(b[abortAtSeq:], m.Seq)
	le.PutUint16(b[abortAtSlot:], m.Slot)
	return sealControl(b, ControlHeader{OpAbort, 0, m.ID, m.PathEpoch}), nil
}

// Decode implements [Message].
func (m *Abort) Decode(b []byte) error {
	header, err := openFixed(b, OpAbort, abortSize)
	if err != nil {
		return err
	}
	*m = Abort{
		ID:        header.ID,
		PathEpoch: header.PathEpoch,
		Seq:       le.Uint32(b[abortAtSeq:]),
		Slot:      le.Uint16(b[abortAtSlot:]),
	}
	if le.Uint16(b[abortAtReserved:]) != 0 {
		return errReserved
	}
	return nil
}

// AbortOutcome is what became of a command to abort. The zero AbortOutcome is
// invalid.
type AbortOutcome uint8

// The outcomes.
const (
	AbortUnknown AbortOutcome = 1 + iota // never seen, or its slot moved on
	AbortDropped                         // never started; its reply says so
	AbortRunning                         // in the backing store; its reply comes
	AbortDone                            // already answered
	abortEnd
)

// AbortResponse answers an Abort.
type AbortResponse struct {
	ID        uint32
	PathEpoch uint32
	Status    Status
	Seq       uint32 // of the command
	Slot      uint16 // of the command
	Outcome   AbortOutcome
	AgeMillis uint32 // ms since the command arrived; 0 unless running
}

// Offsets of an abort response.
const (
	abortResponseAtSeq       = 64 // of the command
	abortResponseAtSlot      = 68 // of the command
	abortResponseAtOutcome   = 70 // 1 unknown, 2 dropped, 3 running, 4 done
	abortResponseAtReserved  = 71
	abortResponseAtAgeMillis = 72 // ms since the command arrived; 0 unless running
	abortResponseSize        = 76
)

var errAbortOutcome = refusal(ErrMalformed, "unknown outcome of an abort")

// Encode implements [Message].
func (m *AbortResponse) Encode(b []byte) (int, error) {
	if err := startControl(b, abortResponseSize); err != nil {
		return 0, err
	}
	b = b[:abortResponseSize]
	le.PutUint32(b[abortResponseAtSeq:], m.Seq)
	le.PutUint16(b[abortResponseAtSlot:], m.Slot)
	b[abortResponseAtOutcome] = byte(m.Outcome)
	le.PutUint32(b[abortResponseAtAgeMillis:], m.AgeMillis)
	return sealControl(b, ControlHeader{
		OpAbortResponse, m.Status, m.ID,
		m.PathEpoch,
	}), nil
}

// Decode implements [Message].
func (m *AbortResponse) Decode(b []byte) error {
	header, err := openFixed(b, OpAbortResponse, abortResponseSize)
	if err != nil {
		return err
	}
	*m = AbortResponse{
		ID:        header.ID,
		PathEpoch: header.PathEpoch,
		Status:    header.Status,
		Seq:       le.Uint32(b[abortResponseAtSeq:]),
		Slot:      le.Uint16(b[abortResponseAtSlot:]),
		Outcome:   AbortOutcome(b[abortResponseAtOutcome]),
		AgeMillis: le.Uint32(b[abortResponseAtAgeMillis:]),
	}
	switch {
	case m.Outcome == 0 || m.Outcome >= abortEnd:
		return errAbortOutcome
	case b[abortResponseAtReserved] != 0:
		return errReserved
	}
	return nil
}
