package via

import "strings"

// Status is the status field of a descriptor's control segment.
type Status uint32

// Status bits (VIP_STATUS_*).
const (
	StatusDone            Status = 0x001   // the descriptor is the consumer's again
	StatusFormatError     Status = 0x002   // reserved bits, a wrong number of segments, a bad RDMA Read
	StatusProtectionError Status = 0x004   // a local segment: dead handle, out of bounds, another tag
	StatusLengthError     Status = 0x008   // longer than allowed or received, or not the sum of segments
	StatusPartialError    Status = 0x010   // the message was cut short
	StatusFlushed         Status = 0x020   // never processed
	StatusTransportError  Status = 0x040   // lost or damaged
	StatusRdmaProtError   Status = 0x080   // the peer refused the RDMA operation
	StatusRemoteDescError Status = 0x100   // the peer's receive was missing or faulty
	StatusErrorMask       Status = 0x1fe   // all of these
	StatusOpMask          Status = 0x70000 // what it was:
	StatusOpSend          Status = 0x00000
	StatusOpReceive       Status = 0x10000 // a receive that a Send consumed, or that was flushed
	StatusOpRdmaWrite     Status = 0x20000
	StatusOpRemoteWrite   Status = 0x30000 // a receive consumed by RDMA Write with immediate
	StatusOpRdmaRead      Status = 0x40000
	StatusImmediate       Status = 0x80000 // ImmediateData is valid
)

// Failed reports whether an error bit is set.
func (s Status) Failed() bool { return s&StatusErrorMask != 0 }

var statusBits = [...]struct {
	bit  Status
	text string
}{
	{StatusFormatError, "format error"},
	{StatusProtectionError, "protection error"},
	{StatusLengthError, "length error"},
	{StatusPartialError, "partial message"},
	{StatusFlushed, "flushed"},
	{StatusTransportError, "transport error"},
	{StatusRdmaProtError, "remote protection error"},
	{StatusRemoteDescError, "remote descriptor error"},
}

// String lists the error bits, or "ok", or "pending".
func (s Status) String() string {
	if s&StatusDone == 0 {
		return "pending"
	}
	var text []string
	for _, b := range statusBits {
		if s&b.bit != 0 {
			text = append(text, b.text)
		}
	}
	if text == nil {
		return "ok"
	}
	return strings.Join(text, ", ")
}

// AsyncCode says what an asynchronous error is about (VIP_ERROR_CODE).
type AsyncCode int

// The asynchronous error codes.
const (
	AsyncPostDescriptor AsyncCode = iota // a descriptor was not posted in registered, aligned memory
	AsyncConnectionLost                  // the VI is in the error state
	AsyncRecvQueueEmpty                  // a message arrived with no receive posted
	AsyncOverrun                         // more descriptors than the queue holds
	AsyncRdmaWriteProt                   // an incoming RDMA Write was refused
	AsyncRdmaWriteData                   // an incoming RDMA Write was corrupt
	AsyncRdmaWriteAbort                  // an incoming RDMA Write was cut off
	AsyncRdmaReadProt                    // an incoming RDMA Read was refused
	AsyncCompletionProt                  // a completion could not be written
	AsyncRdmaTransport                   // transport error in an RDMA operation
	AsyncCatastrophic                    // the NIC or a completion queue is unusable
)

var asyncText = [...]string{
	"descriptor post error", "connection lost", "receive queue empty", "queue overrun",
	"rdma write protection error", "rdma write data error", "rdma write aborted",
	"rdma read protection error", "completion protection error", "rdma transport error",
	"catastrophic error",
}

// String returns the code's text.
func (c AsyncCode) String() string {
	if c >= 0 && int(c) < len(asyncText) {
		return asyncText[c]
	}
	return "unknown asynchronous error"
}

// AsyncError is an error that no descriptor can report. VI, CQ and Descriptor
// are nil where they do not apply.
type AsyncError struct {
	NIC        *NIC
	VI         *VI
	CQ         *CQ
	Descriptor *Descriptor
	Code       AsyncCode
	Cause      error // nil or what the provider knows
}
