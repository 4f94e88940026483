package shm

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net"

	"golang.org/x/sys/unix"
)

// Messages of the control socket, one per packet (SOCK_SEQPACKET), with file
// descriptors attached:
//
//	magic u32 │ kind u16 │ body length u16 │ value u64 │ size u64 │ body
const (
	controlMagic  = 0x4d485356 // "VSHM"
	controlHeader = 24
	maxBody       = 256
	maxControlFDs = 3

	// requester: segment, data bell, space bell; body is the connect message,
	// value has controlShares
	controlHello  = 1
	controlAccept = 2 // accepter: the same; body is the reply
	controlRefuse = 3 // accepter: body is the reply
	controlReady  = 4 // requester: everything is mapped
	controlArena  = 5 // either: an arena; value is its number, size its bytes
	controlDrop   = 6 // either: an arena is gone; value is its number

	// either: keep a ready log; value is a queue's token, size the link's name
	controlRequestLog = 7
	controlPassLog    = 8 // either: a ready log

	// either, if the peer knows sleep flags: the page of this process
	controlPassFlags   = 9
	controlMappedFlags = 10 // either: the peer's page is mapped

	controlShares = 1 // in value of hello and accept: this end knows sleep flags
)

// control is a control message in private memory.
type control struct {
	kind        uint16
	value, size uint64
	body        []byte
	fds         []int
}

// encode returns a message's bytes and its ancillary data.
func (m *control) encode() (b, oob []byte) {
	b = make([]byte, controlHeader+len(m.body))
	binary.LittleEndian.PutUint32(b[0:], controlMagic)
	binary.LittleEndian.PutUint16(b[4:], m.kind)
	binary.LittleEndian.PutUint16(b[6:], uint16(len(m.body)))
	binary.LittleEndian.PutUint64(b[8:], m.value)
	binary.LittleEndian.PutUint64(b[16:], m.size)
	copy(b[controlHeader:], m.body)
	if len(m.fds) > 0 {
		oob = unix.UnixRights(m.fds...)
	}
	return b, oob
}

// sendControl sends a message of the handshake.
func sendControl(c *net.UnixConn, m control) error {
	b, oob := m.encode()
	if _, _, err := c.WriteMsgUnix(b, oob, nil); err != nil {
		return fmt.Errorf("send control message: %w", err)
	}
	return nil
}

// postControl sends a message without blocking.
func postControl(c *net.UnixConn, m control) error {
	b, oob := m.encode()
	raw, err := c.SyscallConn()
	if err != nil {
		return fmt.Errorf("post control message: %w", err)
	}
	var sent error
	err = raw.Write(func(fd uintptr) bool {
		sent = unix.Sendmsg(int(fd), b, oob, nil, unix.MSG_DONTWAIT|unix.MSG_NOSIGNAL)
		return true
	})
	if err = errors.Join(err, sent); err != nil {
		return fmt.Errorf("post control message: %w", err)
	}
	return nil
}

// errMalformed is the error of a message that no honest peer sends.
var errMalformed = errors.New("malformed control message")

// receiveControl receives a message and checks its form. The caller owns the
// file descriptors; on error there are none.
func receiveControl(c *net.UnixConn) (control, error) {
	b := make([]byte, controlHeader+maxBody)
	oob := make([]byte, unix.CmsgSpace(maxControlFDs*4))
	n, oobn, flags, _, err := c.ReadMsgUnix(b, oob)
	fds := parseRights(oob[:oobn]) // even a message of no bytes, which reads as the end, can carry some
	if err != nil {
		closeAll(fds...)
		return control{}, err
	}
	m, err := parseControl(b[:n])
	if err == nil && flags&(unix.MSG_TRUNC|unix.MSG_CTRUNC) == unix.MSG_CTRUNC && len(fds) < controlFDs(m.kind) {
		if m.kind == controlPassFlags {
			return m, nil // the connection needs none
		}
		err = fmt.Errorf("receive file descriptors: %w", unix.EMFILE) // the kernel drops those beyond the limit
	}
	if err == nil && flags&(unix.MSG_TRUNC|unix.MSG_CTRUNC) != 0 {
		err = fmt.Errorf("%w: too long", errMalformed)
	}
	if err == nil && len(fds) != controlFDs(m.kind) {
		err = fmt.Errorf("%w: kind %d with %d file descriptors", errMalformed, m.kind, len(fds))
	}
	if err != nil {
		closeAll(fds...)
		return control{}, err
	}
	m.fds = fds
	return m, nil
}

// parseControl decodes a message that a peer sent.
func parseControl(b []byte) (control, error) {
	if len(b) < controlHeader || binary.LittleEndian.Uint32(b) != controlMagic {
		return control{}, fmt.Errorf("%w: %d bytes that are not ours", errMalformed, len(b))
	}
	m := control{
		kind:  binary.LittleEndian.Uint16(b[4:]),
		value: binary.LittleEndian.Uint64(b[8:]),
		size:  binary.LittleEndian.Uint64(b[16:]),
		body:  b[controlHeader:],
	}
	if int(binary.LittleEndian.Uint16(b[6:])) != len(m.body) || len(m.body) > maxBody {
		return control{}, fmt.Errorf("%w: wrong length", errMalformed)
	}
	if m.kind < controlHello || m.kind > controlMappedFlags {
		return control{}, fmt.Errorf("%w: unknown kind %d", errMalformed, m.kind)
	}
	return m, nil
}

func controlFDs(kind uint16) int {
	switch kind {
	case controlHello, controlAccept:
		return 3
	case controlArena, controlPassLog, controlPassFlags:
		return 1
	default:
		return 0
	}
}

// closeAll closes file descriptors that a peer passed.
func closeAll(fds ...int) {
	for _, fd := range fds {
		_ = unix.Close(fd)
	}
}

// parseRights returns the file descriptors of ancillary data.
func parseRights(oob []byte) []int {
	messages, err := unix.ParseSocketControlMessage(oob)
	if err != nil {
		return nil
	}
	var fds []int
	for i := range messages {
		if got, err := unix.ParseUnixRights(&messages[i]); err == nil {
			fds = append(fds, got...)
		}
	}
	return fds // close-on-exec: package net asks for that
}
