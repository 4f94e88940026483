package wire

import "math"

// DiscoverRequest asks for a page of the list of exports. Cursor 0 is the first
// page; then Next of the page before.
type DiscoverRequest struct {
	ID         uint32
	PathEpoch  uint32
	Cursor     uint32
	MaxMessage uint32 // bytes, longest response wanted; 0: MaxControlSize
}

// Offsets of a discover request.
const (
	discoverRequestAtCursor     = 64 // 0, then Next of the page before
	discoverRequestAtMaxMessage = 68 // longest response wanted, ≤ MaxControlSize; 0 is that
	discoverRequestSize         = 72
)

// Encode implements [Message].
func (m *DiscoverRequest) Encode(b []byte) (int, error) {
	if err := startControl(b, discoverRequestSize); err != nil {
		return 0, err
	}
	b = b[:discoverRequestSize]
	le.PutUint32(b[discoverRequestAtCursor:], m.Cursor)
	le.PutUint32(b[discoverRequestAtMaxMessage:], m.MaxMessage)
	return sealControl(b, ControlHeader{OpDiscover, 0, m.ID, m.PathEpoch}), nil
}

// Decode implements [Message].
func (m *DiscoverRequest) Decode(b []byte) error {
	header, err := openFixed(b, OpDiscover, discoverRequestSize)
	if err != nil {
		return err
	}
	*m = DiscoverRequest{
		ID:         header.ID,
		PathEpoch:  header.PathEpoch,
		Cursor:     le.Uint32(b[discoverRequestAtCursor:]),
		MaxMessage: le.Uint32(b[discoverRequestAtMaxMessage:]),
	}
	if m.MaxMessage > MaxControlSize {
		return errControlLimit
	}
	return nil
}

// EntryKind is what an entry of the list is.
type EntryKind uint8

// The kinds.
const (
	EntryExport   EntryKind = iota // a disk; Name opens it
	EntryPortal                    // an address of this target; Name is its URI
	EntryReferral                  // another target; Name is its URI
	entryEnd
)

// ExportEntry is one entry of the list: what this host may see. Portals and
// referrals have a Name, a Description and a State only.
type ExportEntry struct {
	Kind        EntryKind
	Default     bool // the export of the empty name
	State       PortalState
	UUID        [16]byte
	Size        uint64 // bytes
	Features    uint32 // Export bits
	Name        string // ≤ MaxName bytes
	Description string // for people, ≤ MaxDescription bytes
}

// Offsets within an entry. Name and description follow.
const (
	exportEntryAtUUID              = 0  // of the disk
	exportEntryAtSize              = 16 // bytes, < 2^63
	exportEntryAtFeatures          = 24 // as in OpenResponse
	exportEntryAtKind              = 28 // 0 export, 1 portal, 2 referral to another target
	exportEntryAtFlags             = 29 // 1 default
	exportEntryAtState             = 30 // portal state as in LoginResponse
	exportEntryAtReserved          = 31
	exportEntryAtNameLength        = 32 // ≤ MaxName
	exportEntryAtDescriptionLength = 34 // ≤ MaxDescription
	exportEntryAtTexts             = 36 // name (a URI unless an export), description
	exportEntrySize                = 36
)

// exportEntryDefault is the only flag of an entry.
const exportEntryDefault = 1

// DiscoverResponse is a page of the list of exports. Generation changes
// whenever the list does: a reader that sees it change between pages starts
// again.
type DiscoverResponse struct {
	ID         uint32
	PathEpoch  uint32
	Status     Status
	Generation uint32
	Next       uint32 // cursor of the next page; 0: this is the last
	Entries    []ExportEntry
}

// Offsets of a discover response. The entries follow.
const (
	discoverResponseAtGeneration = 64 // of the list; if it changes, start again
	discoverResponseAtNext       = 68 // cursor of the next page; 0 this is the last
	discoverResponseAtCount      = 72
	discoverResponseAtReserved   = 74
	discoverResponseAtEntries    = 80 // Count times ExportEntry
	discoverResponseSize         = 80
)

var errEntryKind = refusal(ErrMalformed, "unknown kind of entry")

// encodedSize returns the bytes that e takes in a page.
func (e *ExportEntry) encodedSize() int {
	return exportEntrySize + len(e.Name) + len(clip(e.Description, MaxDescription))
}

// Paginate cuts m.Entries to what fits a message of size bytes (0 means
// MaxControlSize) and sets m.Next, given that m.Entries is the list from cursor
// to its end. At least one entry stays: if it does not fit otherwise its
// description is shortened, in a copy. It returns ErrShort if that does not
// suffice, which size MaxControlSize excludes.
func (m *DiscoverResponse) Paginate(cursor uint32, size int) error {
	if size <= 0 || size > MaxControlSize {
		size = MaxControlSize
	}
	m.Next = 0
	left := size - discoverResponseSize
	for i := range m.Entries {
		left -= m.Entries[i].encodedSize()
		if left >= 0 {
			continue
		}
		if i == 0 {
			first := m.Entries[0]
			room := left + len(clip(first.Description, MaxDescription))
			if room < 0 {
				return errShortBuffer
			}
			first.Description = clip(first.Description, room)
			if len(m.Entries) > 1 {
				m.Next = cursor + 1
			}
			m.Entries = []ExportEntry{first}
			return nil
		}
		m.Entries = m.Entries[:i]
		m.Next = cursor + uint32(i)
		return nil
	}
	if left < 0 {
		return errShortBuffer
	}
	return nil
}

// Encode implements [Message]. It encodes all entries; see Paginate.
func (m *DiscoverResponse) Encode(b []byte) (int, error) {
	size := discoverResponseSize
	for i := range m.Entries {
		e := &m.Entries[i]
		if err := checkName(e.Name); err != nil {
			return 0, err
		}
		size += e.encodedSize()
	}
	if err := startControl(b, size); err != nil {
		return 0, err
	}
	b = b[:size]
	le.PutUint32(b[discoverResponseAtGeneration:], m.Generation)
	le.PutUint32(b[discoverResponseAtNext:], m.Next)
	le.PutUint16(b[discoverResponseAtCount:], uint16(len(m.Entries)))
	rest := b[discoverResponseAtEntries:]
	for i := range m.Entries {
		rest = rest[m.Entries[i].encode(rest):]
	}
	return sealControl(b, ControlHeader{
		OpDiscoverResponse, m.Status, m.ID,
		m.PathEpoch,
	}), nil
}

// encode writes e to b, which is clear and large enough.
func (e *ExportEntry) encode(b []byte) int {
	description := clip(e.Description, MaxDescription)
	copy(b[exportEntryAtUUID:], e.UUID[:])
	le.PutUint64(b[exportEntryAtSize:], e.Size)
	le.PutUint32(b[exportEntryAtFeatures:], e.Features)
	b[exportEntryAtKind] = byte(e.Kind)
	if e.Default {
		b[exportEntryAtFlags] = exportEntryDefault
	}
	b[exportEntryAtState] = byte(e.State)
	le.PutUint16(b[exportEntryAtNameLength:], uint16(len(e.Name)))
	le.PutUint16(b[exportEntryAtDescriptionLength:], uint16(len(description)))
	n := exportEntryAtTexts + copy(b[exportEntryAtTexts:], e.Name)
	return n + copy(b[n:], description)
}

// Decode implements [Message]. It reuses the memory of m.Entries.
func (m *DiscoverResponse) Decode(b []byte) error {
	header, err := openControl(b, OpDiscoverResponse, discoverResponseSize)
	if err != nil {
		return err
	}
	*m = DiscoverResponse{
		ID:         header.ID,
		PathEpoch:  header.PathEpoch,
		Status:     header.Status,
		Generation: le.Uint32(b[discoverResponseAtGeneration:]),
		Next:       le.Uint32(b[discoverResponseAtNext:]),
		Entries:    m.Entries[:0],
	}
	if !isZero(b[discoverResponseAtReserved:discoverResponseAtEntries]) {
		return errReserved
	}
	t := texts{rest: b[discoverResponseAtEntries:]}
	count := int(le.Uint16(b[discoverResponseAtCount:]))
	if count*exportEntrySize > len(t.rest) {
		return errBodyShort
	}
	for range count {
		var e ExportEntry
		if err := e.decode(&t); err != nil {
			return err
		}
		m.Entries = append(m.Entries, e)
	}
	return t.end()
}

// decode takes an entry off t.
func (e *ExportEntry) decode(t *texts) error {
	b := t.next(exportEntrySize)
	if t.err != nil {
		return t.err
	}
	*e = ExportEntry{
		Kind:     EntryKind(b[exportEntryAtKind]),
		Default:  b[exportEntryAtFlags]&exportEntryDefault != 0,
		State:    PortalState(b[exportEntryAtState]),
		UUID:     [16]byte(b[exportEntryAtUUID:]),
		Size:     le.Uint64(b[exportEntryAtSize:]),
		Features: le.Uint32(b[exportEntryAtFeatures:]),
	}
	switch {
	case e.Kind >= entryEnd:
		return errEntryKind
	case b[exportEntryAtFlags]&^exportEntryDefault != 0:
		return errReservedFlags
	case e.State >= portalEnd:
		return errPortalState
	case b[exportEntryAtReserved] != 0:
		return errReserved
	case e.Size > math.MaxInt64:
		return errExportSize
	}
	e.Name = t.name(le.Uint16(b[exportEntryAtNameLength:]))
	e.Description = t.text(le.Uint16(b[exportEntryAtDescriptionLength:]),
		MaxDescription)
	return t.err
}
