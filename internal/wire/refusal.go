package wire

import "errors"

// The classes of refusal, for errors.Is. After any but ErrUnknownOpcode and
// ErrVersion the peer or the fabric is broken and the connection must go.
var (
	// ErrShort says that a message is shorter than its lengths say, or that a
	// buffer is too small for what is encoded into it.
	ErrShort = errors.New("short message")

	// ErrCorrupt says that a checksum or the magic is wrong: bytes were changed
	// on the way, or the sender speaks another protocol.
	ErrCorrupt = errors.New("corrupt message")

	// ErrMalformed says that an intact message breaks a rule of the protocol.
	ErrMalformed = errors.New("malformed message")

	// ErrLimit says that a length or count exceeds what this package allows.
	ErrLimit = errors.New("protocol limit exceeded")

	// ErrVersion says that the peer speaks no version that we speak.
	ErrVersion = errors.New("protocol version not supported")

	// ErrUnknownOpcode says that an intact message is of a kind that this
	// version does not know. It is answered with StatusNotSupported.
	ErrUnknownOpcode = errors.New("unknown opcode")
)

// Refusal is the error of every decoder and encoder: the rule that a message
// breaks, and its class. Refusals are made once, so refusing allocates nothing.
type Refusal struct {
	Class error  // one of the Err variables of this package
	Rule  string // what is wrong, one sentence without a full stop
}

// Error returns the class and the rule.
func (r *Refusal) Error() string { return r.Class.Error() + ": " + r.Rule }

// Unwrap returns the class.
func (r *Refusal) Unwrap() error { return r.Class }

// refusal makes a refusal; every use is a package variable.
func refusal(class error, rule string) error {
	return &Refusal{Class: class, Rule: rule}
}

// Refusals that every message shares.
var (
	errShortHeader   = refusal(ErrShort, "shorter than a header")
	errShortMessage  = refusal(ErrShort, "ends before its header does")
	errShortBuffer   = refusal(ErrShort, "the buffer is too small for the message")
	errHeaderTiny    = refusal(ErrCorrupt, "header length below the minimum")
	errHeaderCRC     = refusal(ErrCorrupt, "wrong header checksum")
	errHeaderLength  = refusal(ErrMalformed, "header length does not fit the message kind")
	errReserved      = refusal(ErrMalformed, "reserved bytes are not zero")
	errReservedFlags = refusal(ErrMalformed, "reserved flags are set")
	errOpcode        = refusal(ErrUnknownOpcode, "not in this version")
	errOtherMessage  = refusal(ErrMalformed, "another kind of message is expected")
	errUnknownStatus = refusal(ErrMalformed, "status is not in the table")
	errMessageLength = refusal(ErrMalformed, "length differs from header plus payload")
	errInlineLimit   = refusal(ErrLimit, "inline payload is longer than the limit")
	errDigestUnasked = refusal(ErrMalformed, "data checksum without its flag")
)
