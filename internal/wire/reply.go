package wire

// ReplyFlags qualify a reply.
type ReplyFlags uint8

// The flags of a reply.
const (
	ReplyDup        ReplyFlags = 1 << iota // from the slot table, not run again
	ReplyRetry                             // not started; the initiator may retransmit it
	ReplyDNR                               // do not retry, it would fail again
	ReplyFenced                            // not executed, the path is fenced
	ReplyDataDigest                        // DataCRC is set
	replyFlagsKnown = 1<<iota - 1
)

// Reply is the answer to one command, target to initiator. Slot, Seq and
// PathEpoch are those of the command.
type Reply struct {
	Flags         ReplyFlags
	Status        Status
	Slot          uint16
	CreditDelta   int16 // change of the initiator's credits
	Seq           uint32
	PathEpoch     uint32
	Length        uint32 // bytes of payload moved, either way; 0 on failure
	InlineLength  uint32 // bytes of payload after the header: 0 or Length
	Verifier      uint64 // the export's write verifier
	RetryAfter    uint32 // ms to wait before a retry; 0 none; 0 with StatusOK
	DataCRC       uint32 // DataCRC of the data read, or the extents; 0 without its flag
	QueueMicros   uint32 // µs between receipt and start; 0 not measured
	BackendMicros uint32 // µs in the backing store; 0 not measured
}

// Offsets of a reply.
const (
	replyAtOpcode = 0 // 0x80
	// 1 dup, 2 retry, 4 do not retry, 8 fenced, 16 data digest; 2 and 4 never
	// together nor with ok, 16 with ok only
	replyAtFlags         = 1
	replyAtStatus        = 2  // see below
	replyAtSlot          = 4  // of the command
	replyAtCreditDelta   = 6  // signed; change of the initiator's credits
	replyAtSeq           = 8  // of the command
	replyAtPathEpoch     = 12 // of the command
	replyAtVerifier      = 16 // write verifier of the export
	replyAtLength        = 24 // bytes of payload moved; 0 unless ok
	replyAtInlineLength  = 28 // 0, or Length, ≤ MaxInline
	replyAtRetryAfter    = 32 // ms; 0 with ok
	replyAtDataCRC       = 36 // CRC32C of a read's data, or of extents, with flag 16, else 0
	replyAtQueueMicros   = 40 // µs from receipt to start; 0 not measured
	replyAtBackendMicros = 44 // µs in the backing store; 0 not measured
	replyAtReserved      = 48
	replyAtHeaderLength  = 58 // 64
	replyAtHeaderCRC     = 60
	replySize            = 64
)

// Refusals of replies alone.
var (
	errReplyRetryFlags = refusal(ErrMalformed, "retry and do-not-retry together")
	errReplyRetryOK    = refusal(ErrMalformed, "success with a wish to retry")
	errReplyPayload    = refusal(ErrMalformed, "failure with a length, payload or digest")
	errReplyInline     = refusal(ErrMalformed, "inline length differs from the length")
)

// Encode writes the reply to b and returns [HeaderSize]. Inline payload goes
// where r.Inline(b) points. It panics if b is shorter.
func (r *Reply) Encode(b []byte) int {
	h := (*[HeaderSize]byte)(b)
	h[replyAtOpcode] = byte(OpReply)
	h[replyAtFlags] = byte(r.Flags)
	le.PutUint16(h[replyAtStatus:], uint16(r.Status))
	le.PutUint16(h[replyAtSlot:], r.Slot)
	le.PutUint16(h[replyAtCreditDelta:], uint16(r.CreditDelta))
	le.PutUint32(h[replyAtSeq:], r.Seq)
	le.PutUint32(h[replyAtPathEpoch:], r.PathEpoch)
	le.PutUint64(h[replyAtVerifier:], r.Verifier)
	le.PutUint32(h[replyAtLength:], r.Length)
	le.PutUint32(h[replyAtInlineLength:], r.InlineLength)
	le.PutUint32(h[replyAtRetryAfter:], r.RetryAfter)
	le.PutUint32(h[replyAtDataCRC:], r.DataCRC)
	le.PutUint32(h[replyAtQueueMicros:], r.QueueMicros)
	le.PutUint32(h[replyAtBackendMicros:], r.BackendMicros)
	le.PutUint64(h[replyAtReserved:], 0)
	le.PutUint16(h[replyAtReserved+8:], 0)
	le.PutUint16(h[replyAtHeaderLength:], HeaderSize)
	le.PutUint32(h[replyAtHeaderCRC:], headerCRC(h, nil))
	return HeaderSize
}

// Decode reads the received message msg: header and inline payload, no more. It
// refuses what contradicts itself or a limit of this package; the payload's
// checksum is not verified. It does not allocate. Without an error every field
// is valid; with one, none is.
func (r *Reply) Decode(msg []byte) error {
	if len(msg) < HeaderSize {
		return errShortHeader
	}
	return r.decode((*[HeaderSize]byte)(msg), msg[HeaderSize:])
}

// DecodeSplit is Decode for a message that was received into two buffers: head
// took the first HeaderSize bytes, tail the rest, which is the payload.
func (r *Reply) DecodeSplit(head, tail []byte) error {
	if len(head) != HeaderSize {
		return errShortHeader
	}
	return r.decode((*[HeaderSize]byte)(head), tail)
}

func (r *Reply) decode(h *[HeaderSize]byte, tail []byte) error {
	extra, err := verifyHeader(h, tail)
	if err != nil {
		return err
	}
	if op := Opcode(h[replyAtOpcode]); op != OpReply {
		if op.known() {
			return errOtherMessage
		}
		return errOpcode
	}
	if extra != 0 {
		return errHeaderLength
	}
	reserved := le.Uint64(h[replyAtReserved:]) |
		uint64(le.Uint16(h[replyAtReserved+8:]))
	if reserved != 0 {
		return errReserved
	}
	r.Flags = ReplyFlags(h[replyAtFlags])
	r.Status = Status(le.Uint16(h[replyAtStatus:]))
	r.Slot = le.Uint16(h[replyAtSlot:])
	r.CreditDelta = int16(le.Uint16(h[replyAtCreditDelta:]))
	r.Seq = le.Uint32(h[replyAtSeq:])
	r.PathEpoch = le.Uint32(h[replyAtPathEpoch:])
	r.Verifier = le.Uint64(h[replyAtVerifier:])
	r.Length = le.Uint32(h[replyAtLength:])
	r.InlineLength = le.Uint32(h[replyAtInlineLength:])
	r.RetryAfter = le.Uint32(h[replyAtRetryAfter:])
	r.DataCRC = le.Uint32(h[replyAtDataCRC:])
	r.QueueMicros = le.Uint32(h[replyAtQueueMicros:])
	r.BackendMicros = le.Uint32(h[replyAtBackendMicros:])
	return r.check(uint64(len(tail)))
}

// check verifies the fields. payload is what follows the header in the message.
func (r *Reply) check(payload uint64) error {
	if r.Flags > replyFlagsKnown {
		return errReservedFlags
	}
	if r.DataCRC != 0 && r.Flags&ReplyDataDigest == 0 {
		return errDigestUnasked
	}
	if r.Status != StatusOK {
		switch {
		case !r.Status.known():
			return errUnknownStatus
		case r.Flags&ReplyRetry != 0 && r.Flags&ReplyDNR != 0:
			return errReplyRetryFlags
		case r.Length|r.InlineLength != 0 || r.Flags&ReplyDataDigest != 0:
			return errReplyPayload
		}
	} else if r.RetryAfter != 0 || r.Flags&(ReplyRetry|ReplyDNR) != 0 {
		return errReplyRetryOK
	}
	if r.InlineLength != 0 {
		if r.InlineLength > MaxInline {
			return errInlineLimit
		}
		if r.InlineLength != r.Length {
			return errReplyInline
		}
	}
	if uint64(r.InlineLength) != payload {
		return errMessageLength
	}
	return nil
}

// Inline returns the inline payload within the message that r was decoded from
// or is encoded into, sharing its memory; it is empty if there is none. It
// panics if msg is not that message.
func (r *Reply) Inline(msg []byte) []byte {
	end := HeaderSize + int(r.InlineLength)
	return msg[HeaderSize:end:end]
}
