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
	length  uint32 // bytes
}

// decode reads a header from the first requestHeaderSize bytes of b. It reports
// false if that is none: there is no way to find the next request then.
func (h *header) decode(b []byte) bool {
	_ = b[requestHeaderSize-1]
	h.flags = binary.BigEndian.Uint16(b[4:])
	h.command = binary.BigEndian.Uint16(b[6:])
	h.cookie = binary.BigEndian.Uint64(b[8:])
	h.offset = binary.BigEndian.Uint64(b[16:])
	h.length = binary.BigEndian.Uint32(b[24:])
	return binary.BigEndian.Uint32(b) == magicRequest
}

// payload returns how many bytes follow the header.
func (h *header) payload() uint32 {
	if h.command == cmdWrite {
		return h.length
	}
	return 0
}

// operations are the commands that a device executes.
var operations = [...]block.Op{
	cmdRead:        block.Read,
	cmdWrite:       block.Write,
	cmdFlush:       block.Flush,
	cmdTrim:        block.Trim,
	cmdWriteZeroes: block.WriteZeroes,
}

// judge decides whether a request may be executed: it returns what the device is
// asked to do, or the errno to refuse it with. It is the one place that checks
// what comes from a client, and touches nothing.
func (h *header) judge(i *block.Info, structured bool) (block.Op, block.Flags, syscall.Errno) {
	if int(h.command) >= len(operations) || operations[h.command] == 0 {
		return 0, 0, syscall.EINVAL
	}
	op := operations[h.command]
	allowed := cmdFlagFUA
	switch {
	case op == block.WriteZeroes:
		allowed |= cmdFlagNoHole | cmdFlagFastZero
	case op == block.Read && structured:
		allowed |= cmdFlagDF // every reply is one chunk anyway
	}
	if h.flags&^allowed != 0 {
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
	errno := i.Check(op, flags, h.offset, uint64(h.length))
	if op == block.Read || op == block.Flush {
		flags = 0 // FUA is legal on every command and says nothing on these
	}
	return op, flags, errno
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

// explain returns a sentence for the errno with which judge refused the request.
func (h *header) explain(i *block.Info, errno syscall.Errno) string {
	size := uint64(i.Size)
	switch {
	case errno == syscall.EPERM:
		return h.name() + ": the export is read-only"
	case int(h.command) >= len(operations) || operations[h.command] == 0:
		return h.name() + ": not supported"
	case h.command == cmdFlush && (h.offset != 0 || h.length != 0):
		return "FLUSH: offset and length must be zero"
	case h.command != cmdFlush && h.length == 0:
		return h.name() + ": the length is zero"
	case h.command != cmdFlush && (h.offset > size || uint64(h.length) > size-h.offset):
		return fmt.Sprintf("%s: %d bytes at %d end beyond the export's %d bytes", h.name(), h.length, h.offset, size)
	case (h.command == cmdRead || h.command == cmdWrite) && h.length > i.MaximumPayload:
		return fmt.Sprintf("%s: %d bytes are more than %d", h.name(), h.length, i.MaximumPayload)
	case h.command != cmdFlush && (h.offset|uint64(h.length))&uint64(i.MinimumBlock-1) != 0:
		return fmt.Sprintf("%s: %d bytes at %d are no multiples of %d", h.name(), h.length, h.offset, i.MinimumBlock)
	default:
		return fmt.Sprintf("%s: not supported on this export or with flags %#x", h.name(), h.flags)
	}
}
