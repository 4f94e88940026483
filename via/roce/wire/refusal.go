package wire

import "strconv"

// Refusal is the rule that a packet or message breaks. It is a number, so that
// the caller can count refusals in an array of [NumRefusals]. It is not an
// error, because a refused packet is dropped, not reported.
type Refusal uint8

// The refusals. The zero Refusal means accepted.
const (
	Accepted Refusal = iota

	// Any packet: dropped.
	RefusedShort
	RefusedLong
	RefusedAlignment
	RefusedOpcode
	RefusedVersion
	RefusedPartition
	RefusedQueuePair
	RefusedSyndrome
	RefusedNotification
	RefusedICRC

	// Whole packet: an invalid request.
	RefusedPad
	RefusedPayload
	RefusedEmpty
	RefusedPathMTU
	RefusedMessage

	// Messages of the connection manager: dropped.
	RefusedMAD
	RefusedAttribute
	RefusedPrivate

	// NumRefusals bounds the refusals, Accepted included.
	NumRefusals
)

var refusalRules = [NumRefusals]string{
	Accepted:            "accepted",
	RefusedShort:        "shorter than headers, pad and ICRC",
	RefusedLong:         "longer than any packet",
	RefusedAlignment:    "length is not a multiple of four",
	RefusedOpcode:       "unknown opcode",
	RefusedVersion:      "transport version is not 0",
	RefusedPartition:    "partition key of another partition",
	RefusedQueuePair:    "queue pair 0, which Ethernet does not have",
	RefusedSyndrome:     "syndrome is reserved or does not fit the opcode",
	RefusedNotification: "congestion notification of another length",
	RefusedICRC:         "wrong ICRC",
	RefusedPad:          "pad in a packet that is not the end of a payload",
	RefusedPayload:      "payload where none belongs",
	RefusedEmpty:        "last packet of several without payload",
	RefusedPathMTU:      "payload of a first or middle packet is no path MTU, or any is longer than the largest",
	RefusedMessage:      "message length contradicts the payload or exceeds the limit",
	RefusedMAD:          "not a MAD of the connection manager",
	RefusedAttribute:    "another attribute is expected",
	RefusedPrivate:      "private data does not start with an address header",
}

// String returns the rule, or the number of an unknown refusal.
func (r Refusal) String() string {
	if r < NumRefusals {
		return refusalRules[r]
	}
	return "refusal-" + strconv.Itoa(int(r))
}

// IsInvalidRequest reports whether the BTH of the refused packet is valid, so
// that a request on a reliable connection is answered by [NAKInvalidRequest]
// once ICRC and PSN are found right. Other refused packets are dropped.
func (r Refusal) IsInvalidRequest() bool { return r >= RefusedPad && r <= RefusedMessage }
