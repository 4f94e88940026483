package takeover

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"

	"golang.org/x/sys/unix"
)

// kind says what a message is.
type kind byte

const (
	commit  kind = 'C' // successor: give me what you serve
	item    kind = 'I' // predecessor: a descriptor and its name
	last    kind = 'L' // predecessor: that was all
	opened  kind = 'O' // successor: everything is open, and nothing is served yet
	serve   kind = 'S' // predecessor: serve
	serving kind = 'D' // successor: done, I serve
	failed  kind = 'F' // successor: why it cannot
)

// The encoding: kind, length of the text in little-endian, text. A descriptor
// travels with the first byte of an item.
const (
	headerSize = 3
	maxText    = 4096 + 64 // the longest name of an export, and what it is
)

// ErrBroken means that the other end broke the protocol.
var ErrBroken = errors.New("the other process does not follow the protocol of a takeover")

// message is one message. fd is -1 without a descriptor.
type message struct {
	kind kind
	text string
	fd   int
}

// send sends a message. The caller keeps m.fd.
func send(c *net.UnixConn, m message) error {
	if len(m.text) > maxText {
		m.text = m.text[:maxText]
	}
	b := make([]byte, headerSize, headerSize+len(m.text))
	b[0] = byte(m.kind)
	binary.LittleEndian.PutUint16(b[1:], uint16(len(m.text)))
	b = append(b, m.text...)
	var rights []byte
	if m.fd >= 0 {
		rights = unix.UnixRights(m.fd)
	}
	n, _, err := c.WriteMsgUnix(b, rights, nil)
	if err != nil || n == len(b) {
		return err // the other process may answer and close the connection now
	}
	_, err = c.Write(b[n:])
	return err
}

// receive receives a message. The caller owns its descriptor. [io.EOF] is the
// end of the other process between two messages.
func receive(c *net.UnixConn) (m message, err error) {
	m.fd = -1
	var header [headerSize]byte
	rights := make([]byte, unix.CmsgSpace(4))
	n, k, flags, _, err := c.ReadMsgUnix(header[:], rights)
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
		_, err = io.ReadFull(c, header[n:])
	}
	m.kind = kind(header[0])
	size := int(binary.LittleEndian.Uint16(header[1:]))
	if err == nil && (size > maxText || (len(fds) == 1) != (m.kind == item)) {
		err = ErrBroken
	}
	text := make([]byte, min(size, maxText))
	if err == nil {
		_, err = io.ReadFull(c, text)
	}
	if err != nil {
		for _, fd := range fds {
			_ = unix.Close(fd)
		}
		return message{fd: -1}, err
	}
	m.text = string(text)
	if len(fds) == 1 {
		m.fd = fds[0]
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

// expect receives a message of a kind.
func expect(c *net.UnixConn, want kind) error {
	m, err := receive(c)
	switch {
	case err != nil:
		return err
	case m.kind == want && m.fd < 0:
		return nil
	case m.fd >= 0:
		_ = unix.Close(m.fd)
	case m.kind == failed:
		return fmt.Errorf("%w: %s", errRefused, m.text)
	}
	return fmt.Errorf("%w: message %q instead of %q", ErrBroken, m.kind, want)
}

// errRefused is the end of a successor that could not open what it got.
var errRefused = errors.New("the successor gave up")
