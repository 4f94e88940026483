package wire

// What every node knows of its peers: where the connection manager listens.
const (
	SMI     = 0           // queue pair of subnet management, which RoCE has not: whatever is for it is dropped
	GSI     = 1           // queue pair of the general services interface
	GSIQKey = 0x8001_0000 // Q_Key of its datagrams
)

// MADSize is the length of a management datagram, bytes.
const MADSize = 256

// Attribute says which message of the connection manager a MAD is.
type Attribute uint16

// The attributes that are understood.
const (
	AttributeREQ  Attribute = 0x10 // connect
	AttributeMRA  Attribute = 0x11 // wait longer for the answer
	AttributeREJ  Attribute = 0x12 // no
	AttributeREP  Attribute = 0x13 // yes
	AttributeRTU  Attribute = 0x14 // the yes has arrived
	AttributeDREQ Attribute = 0x15 // disconnect
	AttributeDREP Attribute = 0x16 // disconnected
)

// Message is a message of the connection manager: [*REQ], [*REP], [*RTU],
// [*REJ], [*MRA], [*DREQ] or [*DREP].
type Message interface {
	// Encode writes the message to b and returns MADSize. It panics if b is
	// shorter.
	Encode(b []byte) int

	// Decode reads the message from b, the whole payload of a datagram to GSI. It
	// refuses what is not this message; values are not judged, since a value that
	// will not do is answered by a REJ that says so. Reserved bits are ignored.
	Decode(b []byte) Refusal
}

// Offsets of the header of a MAD.
const (
	madAtBaseVersion  = 0
	madAtClass        = 1
	madAtClassVersion = 2
	madAtMethod       = 3
	madAtStatus       = 4
	madAtSpecific     = 6
	madAtTID          = 8
	madAtAttribute    = 16
	madAtModifier     = 20
	madSize           = 24
)

// The header of all messages, up to the status.
const (
	madBaseVersion    = 1
	classConnection   = 7 // communication management
	classVersion      = 2
	methodSend        = 3
	connectionMADWord = madBaseVersion<<24 | classConnection<<16 | classVersion<<8 | methodSend
)

// PeekMAD returns which message of the connection manager b is and which
// transaction it belongs to.
func PeekMAD(b []byte) (attribute Attribute, tid uint64, r Refusal) {
	if len(b) != MADSize || be.Uint32(b[madAtBaseVersion:]) != connectionMADWord {
		return 0, 0, RefusedMAD
	}
	attribute = Attribute(be.Uint16(b[madAtAttribute:]))
	if attribute < AttributeREQ || attribute > AttributeDREP {
		return 0, 0, RefusedAttribute
	}
	return attribute, be.Uint64(b[madAtTID:]), Accepted
}

// startMAD writes the header and returns the body, cleared.
func startMAD(b []byte, attribute Attribute, tid uint64) []byte {
	b = b[:MADSize]
	clear(b)
	be.PutUint32(b[madAtBaseVersion:], connectionMADWord)
	be.PutUint64(b[madAtTID:], tid)
	be.PutUint16(b[madAtAttribute:], uint16(attribute))
	return b[madSize:]
}

// openMAD checks that b is the message of an attribute and returns its body.
func openMAD(b []byte, want Attribute) (body []byte, tid uint64, r Refusal) {
	attribute, tid, r := PeekMAD(b)
	if r == Accepted && attribute != want {
		r = RefusedAttribute
	}
	if r != Accepted {
		return nil, 0, r
	}
	return b[madSize:], tid, Accepted
}
