package takeover

import (
	"encoding/binary"
	"errors"
	"io"
	"net"
	"time"

	"golang.org/x/sys/unix"
)

// The encoding: kind, length of the text in little-endian, text. A descriptor
// travels with the first byte of an item.
const (
	headerSize = 3
	maxText    = 4096 + 64 // the longest name of an export, and what it is
)

// socket is a [Channel] over a socket.
type socket struct{ conn *net.UnixConn }

// Send implements [Channel], as do the other methods.
func (c socket) Send(m Message) error {
	if len(m.text) > maxText {
		m.text = m.text[:maxText]
	}
	b := make([]byte, headerSize, headerSize+len(m.text))
	b[0] = byte(m.kind)
	binary.LittleEndian.PutUint16(b[1:], uint16(len(m.text)))
	b = append(b, m.text...)
	var rights []byte
	if m.FD >= 0 {
		rights = unix.UnixRights(m.FD)
	}
	n, _, err := c.conn.WriteMsgUnix(b, rights, nil)
	if err != nil || n == len(b) {
		return err // the other process may answer and close the connection now
	}
	_, err = c.conn.Write(b[n:])
	return err
}

// Receive receives a message.
func (c socket) Receive() (m Message, err error) {
	m.FD = -1
	var header [headerSize]byte
	rights := make([]byte, unix.CmsgSpace(4))
	n, k, flags, _, err := c.conn.ReadMsgUnix(header[:], rights)
	switch {
	case err != nil:
		return m, err
	case n == 0:
		return m, io.EOF
	}
	fds, err := descriptors(rights[:k])
	if err == nil && (len(fds) > 1 || flags&unix.MSG_CTRUNC != 0) {
		err = ErrBroken
	}
	if err == nil && n < headerSize {
		_, err = io.ReadFull(c.conn, header[n:])
	}
	m.kind = kind(header[0])
	size := int(binary.LittleEndian.Uint16(header[1:]))
	if err == nil && (size > maxText || (len(fds) == 1) != (m.kind == item)) {
		err = ErrBroken
	}
	text := make([]byte, min(size, maxText))
	if err == nil {
		_, err = io.ReadFull(c.conn, text)
	}
	if err != nil {
		for _, fd := range fds {
			_ = unix.Close(fd)
		}
		return Message{FD: -1}, err
	}
	m.text = string(text)
	if len(fds) == 1 {
		m.FD = fds[0]
	}
	return m, nil
}

// descriptors returns the descriptors of a control message. They close on exec.
func descriptors(rights []byte) (all []int, err error) {
	messages, err := unix.ParseSocketControlMessage(rights)
	for _, m := range messages {
		fds, e := unix.ParseUnixRights(&m)
		all, err = append(all, fds...), errors.Join(err, e)
	}
	for _, fd := range all {
		unix.CloseOnExec(fd)
	}
	return all, err
}

// SetTimeout sets the deadline of the socket.
func (c socket) SetTimeout(d time.Duration) error {
	if d == 0 {
		return c.conn.SetDeadline(time.Time{})
	}
	return c.conn.SetDeadline(time.Now().Add(d))
}

// Discard closes a descriptor.
func (c socket) Discard(fd int) { _ = unix.Close(fd) }

// Close closes the socket.
func (c socket) Close() error { return c.conn.Close() }

// pidfd is a [Process].
type pidfd int

// Ended implements [Process], as do the other methods. A process in a system
// call that does not end has not ended.
func (p pidfd) Ended(d time.Duration) bool {
	for {
		n, err := unix.Poll([]unix.PollFd{{Fd: int32(p), Events: unix.POLLIN}}, int(d/time.Millisecond))
		if err != unix.EINTR {
			return n != 0
		}
	}
}

// Kill kills the process. It may have ended: ESRCH.
func (p pidfd) Kill() { _ = unix.PidfdSendSignal(int(p), unix.SIGKILL, nil, 0) }

// Close closes the descriptor.
func (p pidfd) Close() { _ = unix.Close(int(p)) }
