package main

import (
	"bytes"
	"encoding/binary"
	"errors"
	"flag"
	"fmt"
	"io"
	"net"
)

// zeroing is a disk whose blocks are written, zeroed or trimmed, and read, over
// one connection.
type zeroing struct {
	socket, export string
	conn           net.Conn
}

func zeroesFlags(flags *flag.FlagSet) func() error {
	z := &zeroing{}
	flags.StringVar(&z.socket, "socket", "", "the UNIX `SOCKET` of the server")
	flags.StringVar(&z.export, "export", "", "the `NAME` of the export")
	return z.run
}

// The commands of NBD that it sends.
const (
	cmdRead        = 0
	cmdWrite       = 1
	cmdTrim        = 4
	cmdWriteZeroes = 6
)

// zeroedBlock is the length of a request, bytes, and zeroedBlocks how many it
// sends of each kind.
const (
	zeroedBlock  = 64 << 10
	zeroedBlocks = 32
)

// run checks that each block reads as zeroes after WriteZeroes, and as it was
// written after that.
func (z *zeroing) run() (err error) {
	if z.conn, _, _, err = dialExport(z.socket, z.export); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, z.conn.Close()) }()
	for block := range uint64(zeroedBlocks) {
		offset := block * zeroedBlock
		for i, empty := range []uint16{cmdWriteZeroes, cmdTrim, cmdWriteZeroes} {
			data := bytes.Repeat([]byte{byte(block)<<3 | byte(i) | 4}, zeroedBlock)
			if err := z.write(offset, data); err != nil {
				return err
			}
			if err := z.request(empty, offset, nil, nil); err != nil {
				return err
			}
			if empty == cmdTrim { // what it leaves is not told
				continue
			}
			if err := z.check(offset, make([]byte, zeroedBlock)); err != nil {
				return fmt.Errorf("after zeroes: %w", err)
			}
		}
		if err := z.write(offset, bytes.Repeat([]byte{byte(block) | 0x80}, zeroedBlock)); err != nil {
			return err
		}
	}
	return nil
}

// write writes a block, and checks that it is there.
func (z *zeroing) write(offset uint64, data []byte) error {
	if err := z.request(cmdWrite, offset, data, nil); err != nil {
		return err
	}
	return z.check(offset, data)
}

// check reads a block.
func (z *zeroing) check(offset uint64, want []byte) error {
	got := make([]byte, zeroedBlock)
	if err := z.request(cmdRead, offset, nil, got); err != nil {
		return err
	}
	if !bytes.Equal(got, want) {
		return fmt.Errorf("the block at %d has %x instead of %x", offset, got[:8], want[:8])
	}
	return nil
}

// request sends a request for a block, and receives the reply.
func (z *zeroing) request(command uint16, offset uint64, payload, into []byte) error {
	b := binary.BigEndian.AppendUint32(nil, requestMagic)
	b = binary.BigEndian.AppendUint32(b, uint32(command)) // no flags
	b = binary.BigEndian.AppendUint64(b, 0)
	b = binary.BigEndian.AppendUint64(b, offset)
	b = binary.BigEndian.AppendUint32(b, zeroedBlock)
	if _, err := z.conn.Write(append(b, payload...)); err != nil {
		return err
	}
	reply := make([]byte, 16)
	if _, err := io.ReadFull(z.conn, reply); err != nil {
		return err
	}
	if binary.BigEndian.Uint32(reply) != replyMagic || binary.BigEndian.Uint32(reply[4:]) != 0 {
		return fmt.Errorf("command %d: reply %x", command, reply)
	}
	_, err := io.ReadFull(z.conn, into)
	return err
}
