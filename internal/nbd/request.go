package nbd

import (
	"encoding/binary"
	"fmt"
	"syscall"

	"github.com/viablk/viablk/internal/block"
)

// header is a request header as the client sent it.
type header struct {
	flags   uint16
	command uint16
	cookie  uint64 // opaque
	offset  uint64 // bytes
	length  uint64 // bytes
	payload uint64 // bytes that follow the header
}

// decode reads a header from the first bytes of b, as many as the reply mode
// says. It reports false for a wrong magic: there is no way to find the next
// request then.
func (h *header) decode(b []byte, d replyMode) bool {
	_ = b[requestHeaderSize-1]
	h.flags = binary.BigEndian.Uint16(b[4:])
	h.command = binary.BigEndian.Uint16(b[6:])
	h.cookie = binary.BigEndian.Uint64(b[8:])
	h.offset = binary.BigEndian.Uint64(b[16:])
	h.payload = 0
	magic := magicRequest
	if d == extended {
		magic = magicExtendedRequest
		h.length = binary.BigEndian.Uint64(b[24:])
	} else {
		h.length = uint64(binary.BigEndian.Uint32(b[24:]))
	}
	if h.command == cmdWrite || d == extended && h.flags&cmdFlagPayloadLen != 0 {
		h.payload = h.length
	}
	return binary.BigEndian.Uint32(b) == magic
}

// operations are the commands that a device executes.
var operations = [...]block.Op{
	cmdRead:        block.Read,
	cmdWrite:       block.Write,
	cmdFlush:       block.Flush,
	cmdTrim:        block.Trim,
	cmdCache:       block.Prefetch,
	cmdWriteZeroes: block.WriteZeroes,
	cmdBlockStatus: block.Status,
}

// terms are what was agreed about requests in the handshake.
type terms struct {
	replyMode replyMode
	contexts  bool // base:allocation is selected
}

// validate decides whether a request may be executed: it returns what the
// device is asked to do, or the errno to refuse it with. It is the one place
// that checks what comes from a client, and touches nothing.
func (h *header) validate(i *block.Info, t terms) (block.Op, block.Flags, syscall.Errno) {
	if int(h.command) >= len(operations) || operations[h.command] == 0 {
		return 0, 0, syscall.EINVAL
	}
	op := operations[h.command]
	if !h.flagsAllowed(t) || op == block.Status && !t.contexts {
		return 0, 0, syscall.EINVAL
	}
	var flags block.Flags
	if h.flags&cmdFlagFUA != 0 {
		flags |= block.FUA
	}
	if h.flags&cmdFlagNoHole != 0 {
		flags |= block.NoHole
	}
	if h.flags&cmdFlagFastZero != 0 {
		flags |= block.FastZero
	}
	errno := i.Check(op, flags, h.offset, h.length)
	switch op {
	case block.Read, block.Flush, block.Status, block.Prefetch:
		flags = 0 // FUA is legal on every command and says nothing on these
	}
	return op, flags, errno
}

// flagsAllowed reports whether the command's flags are those that it may have
// ("Command flags"). The features of the device are not checked here.
func (h *header) flagsAllowed(t terms) bool {
	allowed, needed := cmdFlagFUA, uint16(0)
	switch h.command {
	case cmdWriteZeroes:
		allowed |= cmdFlagNoHole | cmdFlagFastZero
	case cmdRead:
		if t.replyMode != simple {
			allowed |= cmdFlagDF
		}
	case cmdBlockStatus:
		allowed |= cmdFlagReqOne
	case cmdWrite:
		if t.replyMode == extended {
			allowed |= cmdFlagPayloadLen
			needed = cmdFlagPayloadLen
		}
	}
	return h.flags&^allowed == 0 && h.flags&needed == needed
}

// filterSize is the length of the payload of a BLOCK_STATUS that asks for one
// context: the length of the range, and the context's number.
const filterSize = 12

// filtered reports whether the request is a BLOCK_STATUS whose range comes in a
// payload. A list of contexts that is longer than those there are, or shorter
// than one, is no such request and is refused like any other flag.
func (h *header) filtered(t terms) bool {
	return h.command == cmdBlockStatus && h.flags&cmdFlagPayloadLen != 0 &&
		t.replyMode == extended && t.contexts && h.payload == filterSize
}

// applyFilter makes a plain request of one whose payload has arrived. It
// reports false for a context that is not selected.
func (h *header) applyFilter(payload []byte) bool {
	h.length = binary.BigEndian.Uint64(payload)
	h.payload = 0
	h.flags &^= cmdFlagPayloadLen
	return binary.BigEndian.Uint32(payload[8:]) == contextID
}

// commandNames are for texts.
var commandNames = [...]string{
	cmdRead:        "READ",
	cmdWrite:       "WRITE",
	cmdDisconnect:  "DISC",
	cmdFlush:       "FLUSH",
	cmdTrim:        "TRIM",
	cmdCache:       "CACHE",
	cmdWriteZeroes: "WRITE_ZEROES",
	cmdBlockStatus: "BLOCK_STATUS",
}

// name returns what the command is called.
func (h *header) name() string {
	if int(h.command) < len(commandNames) {
		return commandNames[h.command]
	}
	return fmt.Sprintf("command %d", h.command)
}

// explain returns a sentence for the errno with which judge refused the
// request.
func (h *header) explain(i *block.Info, t terms, errno syscall.Errno) string {
	size := uint64(i.Size)
	flush := h.command == cmdFlush
	switch {
	case errno == syscall.EPERM:
		return h.name() + ": the export is read-only"
	case int(h.command) >= len(operations) || operations[h.command] == 0:
		return h.name() + ": not supported"
	case h.command == cmdBlockStatus && !t.contexts:
		return h.name() + ": no metadata context is selected"
	case flush && (h.offset != 0 || h.length != 0):
		return "FLUSH: offset and length must be zero"
	case !flush && h.length == 0:
		return h.name() + ": the length is zero"
	case !h.flagsAllowed(t):
		return fmt.Sprintf("%s: flags %#x are not allowed", h.name(), h.flags)
	case !flush && (h.offset > size || h.length > size-h.offset):
		return fmt.Sprintf("%s: %d bytes at %d end beyond the export's %d bytes", h.name(), h.length, h.offset, size)
	case (h.command == cmdRead || h.command == cmdWrite) && h.length > uint64(i.MaximumPayload):
		return fmt.Sprintf("%s: %d bytes are more than %d", h.name(), h.length, i.MaximumPayload)
	case !flush && (h.offset|h.length)&uint64(i.MinimumBlock-1) != 0:
		return fmt.Sprintf("%s: %d bytes at %d are no multiples of %d", h.name(), h.length, h.offset, i.MinimumBlock)
	default:
		return fmt.Sprintf("%s: not supported on this export or with flags %#x", h.name(), h.flags)
	}
}
