package wire

import "math"

// FenceEntry says what became of the last command of a slot.
type FenceEntry struct {
	Seq      uint32 // of the command
	Slot     uint16
	Executed bool   // false: it never will be on the fenced path
	Status   Status // of the command, if executed; else StatusOK
}

// Offsets within an entry of a fence response.
const (
	fenceEntryAtSeq      = 0 // of the command
	fenceEntryAtSlot     = 4 // of the command
	fenceEntryAtStatus   = 6 // of the command; 0 unless executed
	fenceEntryAtFlags    = 8 // 1 executed
	fenceEntryAtReserved = 9
	fenceEntrySize       = 12
)

// fenceEntryExecuted is the only flag of an entry.
const fenceEntryExecuted = 1

// FenceResponse answers a Fence. With StatusOK the fence holds. The pages, from
// Cursor 0 until Next is 0, may name commands that were on the path; version 2
// names none. With StatusBusy connections of the path have not left: ask again.
type FenceResponse struct {
	ID           uint32
	PathEpoch    uint32
	Status       Status
	Epoch        uint32       // fenced up to here
	PathID       uint16       // the fenced path
	Next         uint32       // cursor of the next page; 0: this is the last
	Busy         uint32       // connections of the path that have not left
	OldestMillis uint32       // ms, age of the oldest command in the backing store; 0: not told
	Entries      []FenceEntry // by ascending Slot
}

// Offsets of a fence response. The entries follow.
const (
	fenceResponseAtEpoch  = 64 // fenced up to here
	fenceResponseAtPathID = 68 // the fenced path
	fenceResponseAtCount  = 70 // entries
	// cursor of the next page, above every slot of this one; 0 this is the
	// last
	fenceResponseAtNext         = 72
	fenceResponseAtBusy         = 76 // connections that have not left
	fenceResponseAtOldestMillis = 80 // ms, of the oldest command; 0 not told
	fenceResponseAtReserved     = 84
	fenceResponseAtEntries      = 88 // Count times FenceEntry, by ascending slot
	fenceResponseSize           = 88
)

// Refusals of fence responses alone.
var (
	errFenceOrder  = refusal(ErrMalformed, "slots are not in ascending order")
	errFenceStatus = refusal(ErrMalformed, "status of a command not executed")
)

// Paginate cuts m.Entries to what fits a message of size bytes (0 means
// MaxControlSize) and sets m.Next, given that m.Entries has everything from the
// cursor on, by ascending Slot. It returns ErrShort if not one entry fits.
func (m *FenceResponse) Paginate(size int) error {
	if size <= 0 || size > MaxControlSize {
		size = MaxControlSize
	}
	fits := (size - fenceResponseSize) / fenceEntrySize
	m.Next = 0
	if size < fenceResponseSize || fits == 0 && len(m.Entries) > 0 {
		return errShortBuffer
	}
	if len(m.Entries) > fits {
		m.Next = uint32(m.Entries[fits].Slot)
		m.Entries = m.Entries[:fits]
	}
	return nil
}

// Encode implements [Message]. It encodes all entries; see Paginate.
func (m *FenceResponse) Encode(b []byte) (int, error) {
	size := fenceResponseSize + len(m.Entries)*fenceEntrySize
	if err := startControl(b, size); err != nil {
		return 0, err
	}
	b = b[:size]
	le.PutUint32(b[fenceResponseAtEpoch:], m.Epoch)
	le.PutUint16(b[fenceResponseAtPathID:], m.PathID)
	le.PutUint16(b[fenceResponseAtCount:], uint16(len(m.Entries)))
	le.PutUint32(b[fenceResponseAtNext:], m.Next)
	le.PutUint32(b[fenceResponseAtBusy:], m.Busy)
	le.PutUint32(b[fenceResponseAtOldestMillis:], m.OldestMillis)
	rest := b[fenceResponseAtEntries:]
	for i := range m.Entries {
		e := &m.Entries[i]
		le.PutUint32(rest[fenceEntryAtSeq:], e.Seq)
		le.PutUint16(rest[fenceEntryAtSlot:], e.Slot)
		le.PutUint16(rest[fenceEntryAtStatus:], uint16(e.Status))
		if e.Executed {
			rest[fenceEntryAtFlags] = fenceEntryExecuted
		}
		rest = rest[fenceEntrySize:]
	}
	return sealControl(b, ControlHeader{
		OpFenceResponse, m.Status, m.ID,
		m.PathEpoch,
	}), nil
}

// Decode implements [Message]. It reuses the memory of m.Entries.
func (m *FenceResponse) Decode(b []byte) error {
	header, err := openControl(b, OpFenceResponse, fenceResponseSize)
	if err != nil {
		return err
	}
	*m = FenceResponse{
		ID:           header.ID,
		PathEpoch:    header.PathEpoch,
		Status:       header.Status,
		Epoch:        le.Uint32(b[fenceResponseAtEpoch:]),
		PathID:       le.Uint16(b[fenceResponseAtPathID:]),
		Next:         le.Uint32(b[fenceResponseAtNext:]),
		Busy:         le.Uint32(b[fenceResponseAtBusy:]),
		OldestMillis: le.Uint32(b[fenceResponseAtOldestMillis:]),
		Entries:      m.Entries[:0],
	}
	if !isZero(b[fenceResponseAtReserved:fenceResponseAtEntries]) {
		return errReserved
	}
	rest := b[fenceResponseAtEntries:]
	switch n := int(le.Uint16(b[fenceResponseAtCount:])) * fenceEntrySize; {
	case n > len(rest):
		return errBodyShort
	case n < len(rest):
		return errBodyLength
	}
	last := -1
	for ; len(rest) > 0; rest = rest[fenceEntrySize:] {
		var e FenceEntry
		if err := e.decode(rest[:fenceEntrySize]); err != nil {
			return err
		}
		if int(e.Slot) <= last {
			return errFenceOrder
		}
		last = int(e.Slot)
		m.Entries = append(m.Entries, e)
	}
	if m.Next != 0 && (m.Next > math.MaxUint16 || int(m.Next) <= last) {
		return errFenceCursor
	}
	return nil
}

// decode reads an entry from b.
func (e *FenceEntry) decode(b []byte) error {
	*e = FenceEntry{
		Seq:      le.Uint32(b[fenceEntryAtSeq:]),
		Slot:     le.Uint16(b[fenceEntryAtSlot:]),
		Executed: b[fenceEntryAtFlags]&fenceEntryExecuted != 0,
		Status:   Status(le.Uint16(b[fenceEntryAtStatus:])),
	}
	switch {
	case b[fenceEntryAtFlags]&^fenceEntryExecuted != 0:
		return errReservedFlags
	case !isZero(b[fenceEntryAtReserved:fenceEntrySize]):
		return errReserved
	case !e.Status.known():
		return errUnknownStatus
	case !e.Executed && e.Status != StatusOK:
		return errFenceStatus
	}
	return nil
}
