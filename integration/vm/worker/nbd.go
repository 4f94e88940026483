package main

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"time"
)

// Of the NBD protocol: the handshake by name of an export, and a read.
const (
	nbdMagic     = 0x4e42444d41474943
	optionMagic  = 0x49484156454f5054
	exportName   = 1
	newHello     = 3 // fixed newstyle, no zeroes
	requestMagic = 0x25609513
	replyMagic   = 0x67446698
)

// handshakeLimit is how long a handshake may take.
const handshakeLimit = time.Minute

// dialExport connects to an export of the NBD server at a socket, and returns
// its size and transmission flags.
func dialExport(socket, export string) (conn net.Conn, size int64, flags uint16, err error) {
	if conn, err = net.Dial("unix", socket); err != nil {
		return nil, 0, 0, err
	}
	if size, flags, err = openExport(conn, export); err != nil {
		return nil, 0, 0, errors.Join(err, conn.Close())
	}
	return conn, size, flags, nil
}

// openExport is the handshake of a new connection.
func openExport(conn net.Conn, export string) (size int64, flags uint16, err error) {
	defer func() {
		if err != nil {
			err = fmt.Errorf("shake hands with the NBD server at %s: %w", conn.RemoteAddr(), err)
		}
	}()
	if err := conn.SetDeadline(time.Now().Add(handshakeLimit)); err != nil {
		return 0, 0, err
	}
	hello := make([]byte, 18)
	if _, err := io.ReadFull(conn, hello); err != nil {
		return 0, 0, err
	}
	if binary.BigEndian.Uint64(hello) != nbdMagic || binary.BigEndian.Uint64(hello[8:]) != optionMagic {
		return 0, 0, fmt.Errorf("hello %x", hello)
	}
	request := binary.BigEndian.AppendUint32(nil, newHello)
	request = binary.BigEndian.AppendUint64(request, optionMagic)
	request = binary.BigEndian.AppendUint32(request, exportName)
	request = binary.BigEndian.AppendUint32(request, uint32(len(export)))
	if _, err := conn.Write(append(request, export...)); err != nil {
		return 0, 0, err
	}
	description := make([]byte, 10)
	if _, err := io.ReadFull(conn, description); err != nil {
		return 0, 0, err
	}
	size, flags = int64(binary.BigEndian.Uint64(description)), binary.BigEndian.Uint16(description[8:])
	return size, flags, conn.SetDeadline(time.Time{})
}

// firstRead is the length of the first read of an attached disk, bytes.
const firstRead = 4096

// readFirst reads the beginning of an export.
func readFirst(conn net.Conn) error {
	request := binary.BigEndian.AppendUint32(nil, requestMagic)
	request = append(request, make([]byte, 20)...) // flags, READ, cookie, offset
	request = binary.BigEndian.AppendUint32(request, firstRead)
	if _, err := conn.Write(request); err != nil {
		return err
	}
	reply := make([]byte, 16+firstRead)
	if _, err := io.ReadFull(conn, reply); err != nil {
		return err
	}
	if binary.BigEndian.Uint32(reply) != replyMagic || binary.BigEndian.Uint32(reply[4:]) != 0 {
		return fmt.Errorf("reply %x", reply[:16])
	}
	return nil
}
