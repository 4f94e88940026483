package wire

import "math"

// Bits of OpenResponse.Features and ExportEntry.Features: the features of an
// export, in the order of the device contract. Receivers ignore unknown bits.
const (
	ExportFlush       uint32 = 1 << iota // Flush
	ExportFUA                            // FlagFUA
	ExportTrim                           // Trim
	ExportWriteZeroes                    // WriteZeroes
	ExportFastZero                       // FlagFastZero
	ExportMultiConn                      // Flush covers writes of every connection
	ExportReadOnly                       // nothing that writes
	ExportRotational                     // seeks are expensive
	ExportStatus                         // BlockStatus
	ExportPrefetch                       // Prefetch
)

// OpenResponse answers an OpenRequest. With another status than StatusOK only
// ID, PathEpoch, Status and Reason count.
type OpenResponse struct {
	ID             uint32
	PathEpoch      uint32
	Status         Status
	Export         uint16   // handle for Command.Export
	ExportUUID     [16]byte // of the disk, for ever
	SizeGen        uint32   // one more at each resize
	Size           uint64   // bytes
	MinimumBlock   uint32   // bytes, power of two
	PreferredBlock uint32   // bytes, power of two, ≥ MinimumBlock
	Features       uint32   // Export bits
	Verifier       uint64   // changes when writes not flushed may be lost
	Generation     uint64   // of the writer; advances when another takes over
	Name           string   // ≤ MaxName bytes, the export's canonical name
	Description    string   // for people, ≤ MaxDescription bytes
	Reason         string   // why it was refused, for people, ≤ MaxReason bytes
}

// Offsets of an open response. Name, description and reason follow.
const (
	openResponseAtExport         = 64 // handle for commands
	openResponseAtReserved       = 66
	openResponseAtSizeGen        = 68  // incremented by each resize
	openResponseAtExportUUID     = 72  // of the disk, for ever
	openResponseAtSize           = 88  // bytes, < 2^63
	openResponseAtVerifier       = 96  // changes if unflushed writes may be lost
	openResponseAtMinimumBlock   = 104 // power of two
	openResponseAtPreferredBlock = 108 // power of two, ≥ MinimumBlock
	// 1 flush, 2 FUA, 4 trim, 8 write zeroes, 16 fast zero, 32 multi conn, 64
	// read-only, 128 rotational, 256 block status, 512 prefetch; others are
	// ignored
	openResponseAtFeatures          = 112
	openResponseAtNameLength        = 116 // ≤ MaxName
	openResponseAtDescriptionLength = 118 // ≤ MaxDescription
	openResponseAtReasonLength      = 120 // ≤ MaxReason
	openResponseAtReserved2         = 122
	openResponseAtGeneration        = 128 // of the writer: advances when another takes over
	openResponseAtTexts             = 136 // name, description, reason
	openResponseSize                = 136
)

// Refusals of descriptions of exports alone.
var (
	errExportSize  = refusal(ErrLimit, "export is larger than an offset can be")
	errExportBlock = refusal(ErrMalformed, "block sizes are not ordered powers of two")
)

// Encode implements [Message].
func (m *OpenResponse) Encode(b []byte) (int, error) {
	if err := checkName(m.Name); err != nil {
		return 0, err
	}
	description, reason := clip(m.Description, MaxDescription), clip(m.Reason, MaxReason)
	size := openResponseSize + len(m.Name) + len(description) + len(reason)
	if err := startControl(b, size); err != nil {
		return 0, err
	}
	b = b[:size]
	le.PutUint16(b[openResponseAtExport:], m.Export)
	le.PutUint32(b[openResponseAtSizeGen:], m.SizeGen)
	copy(b[openResponseAtExportUUID:], m.ExportUUID[:])
	le.PutUint64(b[openResponseAtSize:], m.Size)
	le.PutUint64(b[openResponseAtVerifier:], m.Verifier)
	le.PutUint32(b[openResponseAtMinimumBlock:], m.MinimumBlock)
	le.PutUint32(b[openResponseAtPreferredBlock:], m.PreferredBlock)
	le.PutUint32(b[openResponseAtFeatures:], m.Features)
	le.PutUint16(b[openResponseAtNameLength:], uint16(len(m.Name)))
	le.PutUint16(b[openResponseAtDescriptionLength:], uint16(len(description)))
	le.PutUint16(b[openResponseAtReasonLength:], uint16(len(reason)))
	le.PutUint64(b[openResponseAtGeneration:], m.Generation)
	n := openResponseAtTexts + copy(b[openResponseAtTexts:], m.Name)
	n += copy(b[n:], description)
	copy(b[n:], reason)
	return sealControl(b, ControlHeader{
		OpOpenResponse, m.Status, m.ID,
		m.PathEpoch,
	}), nil
}

// Decode implements [Message].
func (m *OpenResponse) Decode(b []byte) error {
	header, err := openControl(b, OpOpenResponse, openResponseSize)
	if err != nil {
		return err
	}
	*m = OpenResponse{
		ID:             header.ID,
		PathEpoch:      header.PathEpoch,
		Status:         header.Status,
		Export:         le.Uint16(b[openResponseAtExport:]),
		ExportUUID:     [16]byte(b[openResponseAtExportUUID:]),
		SizeGen:        le.Uint32(b[openResponseAtSizeGen:]),
		Size:           le.Uint64(b[openResponseAtSize:]),
		MinimumBlock:   le.Uint32(b[openResponseAtMinimumBlock:]),
		PreferredBlock: le.Uint32(b[openResponseAtPreferredBlock:]),
		Features:       le.Uint32(b[openResponseAtFeatures:]),
		Verifier:       le.Uint64(b[openResponseAtVerifier:]),
		Generation:     le.Uint64(b[openResponseAtGeneration:]),
	}
	if le.Uint16(b[openResponseAtReserved:]) != 0 ||
		!isZero(b[openResponseAtReserved2:openResponseAtGeneration]) {
		return errReserved
	}
	t := texts{rest: b[openResponseAtTexts:]}
	m.Name = t.name(le.Uint16(b[openResponseAtNameLength:]))
	m.Description = t.text(le.Uint16(b[openResponseAtDescriptionLength:]),
		MaxDescription)
	m.Reason = t.text(le.Uint16(b[openResponseAtReasonLength:]), MaxReason)
	if err := t.end(); err != nil || m.Status != StatusOK {
		return err
	}
	if m.Size > math.MaxInt64 {
		return errExportSize
	}
	minimum, preferred := m.MinimumBlock, m.PreferredBlock
	if minimum == 0 || minimum&(minimum-1) != 0 ||
		preferred < minimum || preferred&(preferred-1) != 0 {
		return errExportBlock
	}
	return nil
}
