package wire

import "strconv"

// REJ rejects a connection or ends its handshake.
type REJ struct {
	TID       uint64 // of the REQ
	LocalID   uint32 // the sender's name for the connection; 0 if it has none
	RemoteID  uint32 // the receiver's
	Answered  Answered
	Reason    Reason
	ARILength uint8 // 7 bits: valid bytes of ARI, at most 72
	ARI       [ariSize]byte
	Private   [rejPrivateSize]byte
}

// Offsets of a REJ, after the header of the MAD.
const (
	rejAtLocalID   = 0
	rejAtRemoteID  = 4
	rejAtAnswered  = 8 // 0xc0
	rejAtARILength = 9 // 0xfe
	rejAtReason    = 10
	rejAtARI       = 12
	rejAtPrivate   = 84
	rejSize        = MADSize - madSize
	rejPrivateSize = rejSize - rejAtPrivate
	ariSize        = rejAtPrivate - rejAtARI
)

// Encode implements [Message].
func (m *REJ) Encode(b []byte) int {
	b = startMAD(b, AttributeREJ, m.TID)
	be.PutUint32(b[rejAtLocalID:], m.LocalID)
	be.PutUint32(b[rejAtRemoteID:], m.RemoteID)
	b[rejAtAnswered] = byte(m.Answered) << 6
	b[rejAtARILength] = m.ARILength << 1
	be.PutUint16(b[rejAtReason:], uint16(m.Reason))
	copy(b[rejAtARI:], m.ARI[:])
	copy(b[rejAtPrivate:], m.Private[:])
	return MADSize
}

// Decode implements [Message].
func (m *REJ) Decode(b []byte) Refusal {
	b, tid, r := openMAD(b, AttributeREJ)
	if r != Accepted {
		return r
	}
	m.TID = tid
	m.LocalID = be.Uint32(b[rejAtLocalID:])
	m.RemoteID = be.Uint32(b[rejAtRemoteID:])
	m.Answered = Answered(b[rejAtAnswered] >> 6)
	m.ARILength = b[rejAtARILength] >> 1
	m.Reason = Reason(be.Uint16(b[rejAtReason:]))
	copy(m.ARI[:], b[rejAtARI:])
	copy(m.Private[:], b[rejAtPrivate:])
	return Accepted
}

// Reason is why a connection is rejected.
type Reason uint16

// The reasons. Numbers in the gaps are unassigned.
const (
	RejectNoQP Reason = 1 + iota
	RejectNoEEC
	RejectNoResources
	RejectTimeout
	RejectUnsupported
	RejectInvalidID
	RejectInvalidInstance
	RejectInvalidServiceID
	RejectInvalidTransport
	RejectStale
	RejectNoRDC
	RejectInvalidGID
	RejectInvalidLID
	RejectInvalidServiceLevel
	RejectInvalidTrafficClass
	RejectInvalidHopLimit
	RejectInvalidRate
	RejectAlternateGID
	RejectAlternateLID
	RejectAlternateServiceLevel
	RejectAlternateTrafficClass
	RejectAlternateHopLimit
	RejectAlternateRate
	RejectPortAndCMRedirect
	RejectPortRedirect
	RejectInvalidMTU
	RejectInsufficientResources
	RejectConsumer
	RejectInvalidRNRRetry
	RejectDuplicateID
	RejectInvalidClassVersion
	RejectInvalidFlowLabel
	RejectAlternateFlowLabel
)

var reasons = [...]string{
	RejectNoQP:                  "no queue pair left",
	RejectNoEEC:                 "no end-to-end context left",
	RejectNoResources:           "no resources left",
	RejectTimeout:               "time-out",
	RejectUnsupported:           "unsupported request",
	RejectInvalidID:             "unknown communication ID",
	RejectInvalidInstance:       "unknown communication instance",
	RejectInvalidServiceID:      "no listener for the service ID",
	RejectInvalidTransport:      "unsupported transport service",
	RejectStale:                 "stale connection",
	RejectNoRDC:                 "no reliable datagram channel",
	RejectInvalidGID:            "invalid GID",
	RejectInvalidLID:            "invalid LID",
	RejectInvalidServiceLevel:   "invalid service level",
	RejectInvalidTrafficClass:   "invalid traffic class",
	RejectInvalidHopLimit:       "invalid hop limit",
	RejectInvalidRate:           "invalid packet rate",
	RejectAlternateGID:          "invalid GID of the alternate path",
	RejectAlternateLID:          "invalid LID of the alternate path",
	RejectAlternateServiceLevel: "invalid service level of the alternate path",
	RejectAlternateTrafficClass: "invalid traffic class of the alternate path",
	RejectAlternateHopLimit:     "invalid hop limit of the alternate path",
	RejectAlternateRate:         "invalid packet rate of the alternate path",
	RejectPortAndCMRedirect:     "redirected to another port and manager",
	RejectPortRedirect:          "redirected to another port",
	RejectInvalidMTU:            "invalid path MTU",
	RejectInsufficientResources: "insufficient responder resources",
	RejectConsumer:              "refused by the consumer",
	RejectInvalidRNRRetry:       "invalid RNR retry count",
	RejectDuplicateID:           "duplicate communication ID",
	RejectInvalidClassVersion:   "unsupported class version",
	RejectInvalidFlowLabel:      "invalid flow label",
	RejectAlternateFlowLabel:    "invalid flow label of the alternate path",
}

// String returns the meaning of the reason, or its number.
func (r Reason) String() string {
	if int(r) < len(reasons) && reasons[r] != "" {
		return reasons[r]
	}
	return "reason-" + strconv.Itoa(int(r))
}
