package wire

import "strconv"

// Opcode is the first byte of every message and says what it is. The zero
// Opcode is invalid.
type Opcode uint8

// Commands, initiator to target, encoded as [Command].
const (
	OpRead         Opcode = 1 + iota // fill initiator memory from the disk
	OpWrite                          // store initiator memory on the disk
	OpFlush                          // make every write replied to before durable
	OpTrim                           // the range may be discarded
	OpWriteZeroes                    // the range reads as zeroes afterwards
	OpPrefetch                       // the range will be read soon; a hint
	OpCompareWrite                   // reserved: refused with ErrUnknownOpcode
	OpBlockStatus                    // what the range consists of
)

// Control requests. All but OpEventAck, which ends an event, have an answer.
const (
	OpAbort     Opcode = 0x40 + iota // drop one command: Abort
	OpFence                          // end a path before replay: Fence
	OpKeepAlive                      // is the peer alive: KeepAlive
	OpEventAck                       // an event was handled: EventAck
	OpOpen                           // open an export: OpenRequest
	OpClose                          // close an export: CloseRequest
	OpDiscover                       // list exports: DiscoverRequest
	_                                // 0x47 is reserved
	OpLogout                         // leave: Logout

	OpLogin Opcode = 0x50 // opens the connection: LoginRequest
	OpAuth  Opcode = 0x51 // who the ends are, before the login: Auth
)

// Answers, and what the target sends unasked.
const (
	responseBit Opcode = 0x80

	OpReply            Opcode = 0x80                      // answer to a command: Reply
	OpAbortResponse    Opcode = OpAbort | responseBit     // AbortResponse
	OpFenceResponse    Opcode = OpFence | responseBit     // FenceResponse
	OpKeepAliveAck     Opcode = OpKeepAlive | responseBit // KeepAlive with Ack
	OpOpenResponse     Opcode = OpOpen | responseBit      // OpenResponse
	OpCloseResponse    Opcode = OpClose | responseBit     // CloseResponse
	OpDiscoverResponse Opcode = OpDiscover | responseBit  // DiscoverResponse
	OpLogoutResponse   Opcode = OpLogout | responseBit    // LogoutResponse
	OpLoginResponse    Opcode = OpLogin | responseBit     // LoginResponse
	OpAuthResponse     Opcode = OpAuth | responseBit      // Auth with Answer
	OpEvent            Opcode = 0xe0                      // target tells: Event
	OpRefused          Opcode = 0xff                      // request not understood: Refused
)

// opcodeNames is also the list of what this version knows.
var opcodeNames = [256]string{
	OpRead: "read", OpWrite: "write", OpFlush: "flush", OpTrim: "trim",
	OpWriteZeroes: "write-zeroes", OpPrefetch: "prefetch",
	OpBlockStatus: "block-status",
	OpAbort:       "abort", OpFence: "fence", OpKeepAlive: "keepalive",
	OpEventAck: "event-ack", OpOpen: "open", OpClose: "close",
	OpDiscover: "discover", OpLogout: "logout",
	OpLogin: "login", OpReply: "reply", OpAbortResponse: "abort-response",
	OpFenceResponse: "fence-response", OpKeepAliveAck: "keepalive-ack",
	OpOpenResponse: "open-response", OpCloseResponse: "close-response",
	OpDiscoverResponse: "discover-response",
	OpLogoutResponse:   "logout-response", OpLoginResponse: "login-response",
	OpAuth: "auth", OpAuthResponse: "auth-response",
	OpEvent: "event", OpRefused: "refused",
}

// String returns the name, or the number of an opcode this version does not
// know.
func (o Opcode) String() string {
	if name := opcodeNames[o]; name != "" {
		return name
	}
	return "opcode-0x" + strconv.FormatUint(uint64(o), 16)
}

// IsCommand reports whether o is in the range of commands, known or not. Such a
// message has the layout of [Command] and is answered by a [Reply].
func (o Opcode) IsCommand() bool { return o-1 < 0x3f }

// IsControl reports whether o is in the range of control messages, known or
// not. Such a message has the header that [PeekControl] reads.
func (o Opcode) IsControl() bool { return o&0x40 != 0 }

// known reports whether this version knows o.
func (o Opcode) known() bool { return opcodeNames[o] != "" }

// isResponse reports whether a message of kind o carries a status.
func (o Opcode) isResponse() bool { return o >= responseBit && o != OpEvent }
