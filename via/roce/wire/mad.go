package wire

// Well-known queue pairs and Q_Key.
const (
	// queue pair of subnet management, which RoCE lacks: packets to it are
	// dropped
	SMI     = 0
	GSI     = 1           // queue pair of the general services interface
	GSIQKey = 0x8001_0000 // Q_Key of its datagrams
)

// MADSize is the length of a management datagram, bytes.
const MADSize = 256

// Attribute is the kind of a connection manager message.
type Attribute uint16

// The attributes that are understood.
const (
	AttributeREQ  Attribute = 0x10 // connect
	AttributeMRA  Attribute = 0x11 // wait longer for the answer
	AttributeREJ  Attribute = 0x12 // reject
	AttributeREP  Attribute = 0x13 // accept
	AttributeRTU  Attribute = 0x14 // ready to use: the REP has arrived
	AttributeDREQ Attribute = 0x15 // disconnect
	AttributeDREP Attribute = 0x16 // disconnected
)

// Message is a message of the connection manager: [*REQ], [*REP], [*RTU],
// [*REJ], [*MRA], [*DREQ] or [*DREP].
type Message interface {
	// Encode writes the message to b and returns MADSize. It panics if b is
	// shorter.
	Encode(b []byte) int

	// Decode reads the message from b, the whole payload of a datagram to GSI.
	// It refuses other messages. It does not validate values, because the
	// receiver answers a bad one by a REJ that names it. It ignores reserved
	// bits.
	Decode(b []byte) Refusal
}

// Offsets of the header of a MAD.
const (
	madAtBaseVersion  = 0 // 1
	madAtClass        = 1 // 7, communication management
	madAtClassVersion = 2 // 2
	madAtMethod       = 3 // 3, send
	madAtStatus       = 4 // 0; not read
	madAtSpecific     = 6 // 0; not read
	madAtTID          = 8
	madAtAttribute    = 16
	madAtModifier     = 20 // 0; not read
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

// PeekMAD returns the kind and the transaction of the connection manager
// message b.
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
