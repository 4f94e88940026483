package nbd

import (
	"bytes"
	"encoding/binary"
)

// assemble makes a stream of requests of a program. An instruction is two
// bytes, an operation and its flags, and for a request two more each for the
// offset and the length, which name places where something is: the ends of the
// disk, of blocks and of what numbers can say. So a mutation of one byte is
// another request, in any reply mode, and not the end of the stream.
func (c course) assemble(program []byte) []byte {
	const raw, most = 10, 256
	commands := [...]uint16{
		cmdRead, cmdWrite, cmdFlush, cmdTrim, cmdCache, cmdWriteZeroes, cmdBlockStatus,
		cmdRead, cmdWrite, 77, raw, cmdDisconnect,
	}
	var b []byte
	for n := 0; n < most && len(b) < 512<<10 && len(program) >= 2; n++ {
		command, flags := commands[int(program[0])%len(commands)], uint16(program[1])
		program = program[2:]
		if command == raw {
			k := min(int(flags), len(program))
			b = append(b, program[:k]...)
			program = program[k:]
			continue
		}
		var offset, length uint64
		if command != cmdDisconnect && command != cmdFlush || flags&0x40 != 0 {
			if len(program) < 4 {
				break
			}
			offset = spot(binary.BigEndian.Uint16(program), 0)
			length = spot(binary.BigEndian.Uint16(program[2:]), 1)
			program = program[4:]
		}
		b = c.instruct(b, command, flags, uint64(n), offset, length)
	}
	return b
}

// spot returns the number that two bytes stand for.
func spot(v uint16, least uint64) uint64 {
	low := uint64(v & 0x3fff)
	switch v >> 14 {
	case 0:
		return least + low
	case 1:
		return low % (fuzzedSize / 512) * 512
	case 2:
		return fuzzedSize - low
	default:
		return low << (v & 63)
	}
}

// instruct appends a request, with its payload if that is not longer than the
// disk. The two highest bits of flags say what is wrong with it.
func (c course) instruct(b []byte, command, flags uint16, cookie, offset, length uint64) []byte {
	wrong := flags >> 6
	if flags &= 0x3f; wrong == 3 {
		flags |= 0x8000
	}
	if c.terms().replyMode != extended {
		b = append(b, request(flags, command, cookie, offset, uint32(length))...)
		length = uint64(uint32(length))
		if command != cmdWrite {
			return b
		}
		return append(b, bytes.Repeat([]byte{byte(cookie) + 1}, int(min(length, fuzzedSize)))...)
	}
	if command == cmdWrite && wrong != 2 {
		flags |= cmdFlagPayloadLen
	}
	if command == cmdBlockStatus && flags&cmdFlagPayloadLen != 0 && wrong != 2 {
		b = append(b, extendedRequest(flags, command, cookie, offset, filterSize)...)
		return append(append(b, be64(length)...), be32(contextID^uint32(wrong))...)
	}
	b = append(b, extendedRequest(flags, command, cookie, offset, length)...)
	if command == cmdWrite || flags&cmdFlagPayloadLen != 0 {
		b = append(b, bytes.Repeat([]byte{byte(cookie) + 1}, int(min(length, fuzzedSize)))...)
	}
	return b
}
