package wire

import "strconv"

// Opcode is the first byte of a packet: the service in its three high bits, the
// operation in the others.
type Opcode uint8

// Opcodes of the reliable connection.
const (
	RCSendFirst            Opcode = 0x00
	RCSendMiddle           Opcode = 0x01
	RCSendLast             Opcode = 0x02
	RCSendLastImmediate    Opcode = 0x03
	RCSendOnly             Opcode = 0x04
	RCSendOnlyImmediate    Opcode = 0x05
	RCWriteFirst           Opcode = 0x06
	RCWriteMiddle          Opcode = 0x07
	RCWriteLast            Opcode = 0x08
	RCWriteLastImmediate   Opcode = 0x09
	RCWriteOnly            Opcode = 0x0a
	RCWriteOnlyImmediate   Opcode = 0x0b
	RCReadRequest          Opcode = 0x0c
	RCReadResponseFirst    Opcode = 0x0d
	RCReadResponseMiddle   Opcode = 0x0e
	RCReadResponseLast     Opcode = 0x0f
	RCReadResponseOnly     Opcode = 0x10
	RCAcknowledge          Opcode = 0x11
	RCAtomicAcknowledge    Opcode = 0x12
	RCCompareSwap          Opcode = 0x13
	RCFetchAdd             Opcode = 0x14
	RCSendLastInvalidate   Opcode = 0x16
	RCSendOnlyInvalidate   Opcode = 0x17
	UCSendFirst            Opcode = 0x20
	UCSendMiddle           Opcode = 0x21
	UCSendLast             Opcode = 0x22
	UCSendLastImmediate    Opcode = 0x23
	UCSendOnly             Opcode = 0x24
	UCSendOnlyImmediate    Opcode = 0x25
	UCWriteFirst           Opcode = 0x26
	UCWriteMiddle          Opcode = 0x27
	UCWriteLast            Opcode = 0x28
	UCWriteLastImmediate   Opcode = 0x29
	UCWriteOnly            Opcode = 0x2a
	UCWriteOnlyImmediate   Opcode = 0x2b
	UDSendOnly             Opcode = 0x64
	UDSendOnlyImmediate    Opcode = 0x65
	CongestionNotification Opcode = 0x81
)

// Class is the transport service that an opcode belongs to.
type Class uint8

// The classes, as in the high bits of an opcode.
const (
	RC  Class = 0 // reliable connection
	UC  Class = 1 // unreliable connection
	RD  Class = 2 // reliable datagram; not used on Ethernet
	UD  Class = 3 // unreliable datagram
	CNP Class = 4 // congestion notification
)

// Operation is the operation of a packet's message.
type Operation uint8

// The operations.
const (
	OpNone Operation = iota // the opcode is unknown
	OpSend
	OpWrite
	OpReadRequest
	OpReadResponse
	OpAcknowledge
	OpAtomic // request or acknowledgement
	OpCongestion
)

// Flags tell a packet's place in its message.
type Flags uint8

// The flags.
const (
	Start     Flags = 1 << iota // the first packet of its message
	End                         // the last
	Consumes                    // consumes a receive of the receive queue
	Completes                   // completes that receive
	Response                    // answers a request; the PSN is the request's
)

// payloadRule is how much payload an opcode may have.
type payloadRule uint8

const (
	payloadNone     payloadRule = iota
	payloadAny                  // 0 to the path MTU
	payloadSome                 // 1 to the path MTU
	payloadFull                 // the path MTU
	payloadReserved             // 16 reserved bytes
)

// cnpReserved is the payload of a congestion notification, bytes.
const cnpReserved = 16

// opcodeInfo is a row of the opcode table.
type opcodeInfo struct {
	name       string
	operation  Operation
	extensions Extensions
	flags      Flags
	payload    payloadRule
	size       uint8 // bytes of all headers; 0 if the opcode is unknown
}

// opcodes has a row for every known opcode.
var opcodes = [256]opcodeInfo{
	RCSendFirst:          {"RC SEND First", OpSend, 0, Start | Consumes, payloadFull, BTHSize},
	RCSendMiddle:         {"RC SEND Middle", OpSend, 0, 0, payloadFull, BTHSize},
	RCSendLast:           {"RC SEND Last", OpSend, 0, End | Completes, payloadSome, BTHSize},
	RCSendLastImmediate:  {"RC SEND Last with Immediate", OpSend, ExtImmDt, End | Completes, payloadSome, BTHSize + ImmDtSize},
	RCSendOnly:           {"RC SEND Only", OpSend, 0, Start | End | Consumes | Completes, payloadAny, BTHSize},
	RCSendOnlyImmediate:  {"RC SEND Only with Immediate", OpSend, ExtImmDt, Start | End | Consumes | Completes, payloadAny, BTHSize + ImmDtSize},
	RCWriteFirst:         {"RC WRITE First", OpWrite, ExtRETH, Start, payloadFull, BTHSize + RETHSize},
	RCWriteMiddle:        {"RC WRITE Middle", OpWrite, 0, 0, payloadFull, BTHSize},
	RCWriteLast:          {"RC WRITE Last", OpWrite, 0, End, payloadSome, BTHSize},
	RCWriteLastImmediate: {"RC WRITE Last with Immediate", OpWrite, ExtImmDt, End | Consumes | Completes, payloadSome, BTHSize + ImmDtSize},
	RCWriteOnly:          {"RC WRITE Only", OpWrite, ExtRETH, Start | End, payloadAny, BTHSize + RETHSize},
	RCWriteOnlyImmediate: {"RC WRITE Only with Immediate", OpWrite, ExtRETH | ExtImmDt, Start | End | Consumes | Completes, payloadAny, BTHSize + RETHSize + ImmDtSize},
	RCReadRequest:        {"RC READ Request", OpReadRequest, ExtRETH, Start | End, payloadNone, BTHSize + RETHSize},
	RCReadResponseFirst:  {"RC READ Response First", OpReadResponse, ExtAETH, Start | Response, payloadFull, BTHSize + AETHSize},
	RCReadResponseMiddle: {"RC READ Response Middle", OpReadResponse, 0, Response, payloadFull, BTHSize},
	RCReadResponseLast:   {"RC READ Response Last", OpReadResponse, ExtAETH, End | Response, payloadSome, BTHSize + AETHSize},
	RCReadResponseOnly:   {"RC READ Response Only", OpReadResponse, ExtAETH, Start | End | Response, payloadAny, BTHSize + AETHSize},
	RCAcknowledge:        {"RC Acknowledge", OpAcknowledge, ExtAETH, Start | End | Response, payloadNone, BTHSize + AETHSize},
	RCAtomicAcknowledge:  {"RC ATOMIC Acknowledge", OpAtomic, ExtAETH | ExtAtomicAckETH, Start | End | Response, payloadNone, BTHSize + AETHSize + AtomicAckETHSize},
	RCCompareSwap:        {"RC CompareSwap", OpAtomic, ExtAtomicETH, Start | End, payloadNone, BTHSize + AtomicETHSize},
	RCFetchAdd:           {"RC FetchAdd", OpAtomic, ExtAtomicETH, Start | End, payloadNone, BTHSize + AtomicETHSize},
	RCSendLastInvalidate: {"RC SEND Last with Invalidate", OpSend, ExtIETH, End | Completes, payloadSome, BTHSize + IETHSize},
	RCSendOnlyInvalidate: {"RC SEND Only with Invalidate", OpSend, ExtIETH, Start | End | Consumes | Completes, payloadAny, BTHSize + IETHSize},

	UCSendFirst:          {"UC SEND First", OpSend, 0, Start | Consumes, payloadFull, BTHSize},
	UCSendMiddle:         {"UC SEND Middle", OpSend, 0, 0, payloadFull, BTHSize},
	UCSendLast:           {"UC SEND Last", OpSend, 0, End | Completes, payloadSome, BTHSize},
	UCSendLastImmediate:  {"UC SEND Last with Immediate", OpSend, ExtImmDt, End | Completes, payloadSome, BTHSize + ImmDtSize},
	UCSendOnly:           {"UC SEND Only", OpSend, 0, Start | End | Consumes | Completes, payloadAny, BTHSize},
	UCSendOnlyImmediate:  {"UC SEND Only with Immediate", OpSend, ExtImmDt, Start | End | Consumes | Completes, payloadAny, BTHSize + ImmDtSize},
	UCWriteFirst:         {"UC WRITE First", OpWrite, ExtRETH, Start, payloadFull, BTHSize + RETHSize},
	UCWriteMiddle:        {"UC WRITE Middle", OpWrite, 0, 0, payloadFull, BTHSize},
	UCWriteLast:          {"UC WRITE Last", OpWrite, 0, End, payloadSome, BTHSize},
	UCWriteLastImmediate: {"UC WRITE Last with Immediate", OpWrite, ExtImmDt, End | Consumes | Completes, payloadSome, BTHSize + ImmDtSize},
	UCWriteOnly:          {"UC WRITE Only", OpWrite, ExtRETH, Start | End, payloadAny, BTHSize + RETHSize},
	UCWriteOnlyImmediate: {"UC WRITE Only with Immediate", OpWrite, ExtRETH | ExtImmDt, Start | End | Consumes | Completes, payloadAny, BTHSize + RETHSize + ImmDtSize},

	UDSendOnly:          {"UD SEND Only", OpSend, ExtDETH, Start | End | Consumes | Completes, payloadAny, BTHSize + DETHSize},
	UDSendOnlyImmediate: {"UD SEND Only with Immediate", OpSend, ExtDETH | ExtImmDt, Start | End | Consumes | Completes, payloadAny, BTHSize + DETHSize + ImmDtSize},

	CongestionNotification: {"CNP", OpCongestion, 0, Start | End, payloadReserved, BTHSize},
}

// String returns the name, or the number of an unknown opcode.
func (o Opcode) String() string {
	if name := opcodes[o].name; name != "" {
		return name
	}
	return "opcode-0x" + strconv.FormatUint(uint64(o), 16)
}

// IsKnown reports whether the opcode is known.
func (o Opcode) IsKnown() bool { return opcodes[o].size != 0 }

// Class returns the transport service, also of an unknown opcode.
func (o Opcode) Class() Class { return Class(o >> 5) }

// Operation returns the operation of the message.
func (o Opcode) Operation() Operation { return opcodes[o].operation }

// Extensions returns which headers follow the BTH.
func (o Opcode) Extensions() Extensions { return opcodes[o].extensions }

// Flags returns the packet's place in its message and its effect on receives.
func (o Opcode) Flags() Flags { return opcodes[o].flags }

// HeaderSize returns the length of BTH and extension headers, bytes; 0 if the
// opcode is unknown.
func (o Opcode) HeaderSize() int { return int(opcodes[o].size) }
