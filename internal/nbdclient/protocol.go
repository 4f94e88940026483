package nbdclient

import "syscall"

// The transmission phase of the NBD protocol, as far as a client speaks it.
const (
	magicRequest         = uint32(0x25609513)
	magicSimpleReply     = uint32(0x67446698)
	magicChunk           = uint32(0x668e33ef)
	magicExtendedRequest = uint32(0x21e41c71)
	magicExtendedReply   = uint32(0x6e8a278c)

	requestSize         = 28 // bytes
	extendedRequestSize = 32
	simpleReplySize     = 16
	chunkSize           = 20 // of a chunk's header
	extendedChunkSize   = 32
)

// Commands.
const (
	cmdRead        = uint16(0)
	cmdWrite       = uint16(1)
	cmdDisconnect  = uint16(2)
	cmdFlush       = uint16(3)
	cmdTrim        = uint16(4)
	cmdCache       = uint16(5)
	cmdWriteZeroes = uint16(6)
	cmdBlockStatus = uint16(7)
)

// Flags of commands.
const (
	flagFUA        = uint16(1 << 0)
	flagNoHole     = uint16(1 << 1)
	flagFastZero   = uint16(1 << 4)
	flagPayloadLen = uint16(1 << 5)
)

// Chunks of a reply.
const (
	chunkDone        = uint16(1 << 0) // flag: the last of the reply
	chunkNone        = uint16(0)
	chunkData        = uint16(1)
	chunkHole        = uint16(2)
	chunkStatus      = uint16(5)
	chunkStatusExt   = uint16(6)
	chunkErrorBit    = uint16(1 << 15)
	maximumErrorText = 4096
)

// maximumExtents bounds the extents of one reply, as the protocol does.
const maximumExtents = 1 << 20

// errnos are the errors that a server may send. Every other number is EIO.
var errnos = map[uint32]syscall.Errno{
	1: syscall.EPERM, 5: syscall.EIO, 12: syscall.ENOMEM, 22: syscall.EINVAL, 28: syscall.ENOSPC,
	75: syscall.EOVERFLOW, 95: syscall.ENOTSUP, 108: syscall.ESHUTDOWN,
}

// errnoOf returns the errno for an error number of a server, which is not 0.
func errnoOf(number uint32) syscall.Errno {
	if e, ok := errnos[number]; ok {
		return e
	}
	return syscall.EIO
}
