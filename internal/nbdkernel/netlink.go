package nbdkernel

import (
	"errors"
	"fmt"
	"sync"
	"syscall"

	"github.com/mdlayher/genetlink"
	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"
)

// maximumAnswer is the longest datagram that is taken from the kernel, bytes.
const maximumAnswer = 64 << 10

// shortestAcknowledgement is an errno and the header of the request.
const shortestAcknowledgement = 4 + unix.SizeofNlMsghdr

// errMalformed is the error of an answer that cannot be decoded.
var errMalformed = errors.New("malformed netlink message")

// family is a family of generic netlink, and the socket to talk to it. Its
// methods are safe for concurrent use; a request waits for the one before it.
type family struct {
	id      uint16
	version uint8
	conn    *genetlink.Conn

	mu sync.Mutex // held from a request to the end of its answer
}

// openFamily returns the family of a name. The error is [unix.ENOENT] if the
// kernel has none. The caller closes it.
func openFamily(name string) (*family, error) {
	conn, err := genetlink.Dial(&netlink.Config{MessageBufferSize: maximumAnswer})
	if err != nil {
		return nil, err
	}
	f := &family{conn: conn}
	err = f.connectToKernel()
	if err == nil {
		// Old kernels have no texts.
		_ = conn.SetOption(netlink.ExtendedAcknowledge, true)
		err = f.find(name)
	}
	if err != nil {
		f.close()
		return nil, err
	}
	return f, nil
}

// find asks for the number of the family.
func (f *family) find(name string) error {
	found, err := f.conn.GetFamily(name)
	if err != nil {
		return refusal(err)
	}
	if found.ID == 0 {
		return fmt.Errorf("%w: family without number", errMalformed)
	}
	f.id, f.version = found.ID, found.Version
	return nil
}

// connectToKernel connects the socket to the kernel, which then refuses what
// other sockets send to it: the library does not say who sent a message.
func (f *family) connectToKernel() error {
	raw, err := f.conn.SyscallConn()
	if err != nil {
		return err
	}
	var failure error
	if err := raw.Control(func(fd uintptr) {
		failure = unix.Connect(int(fd), &unix.SockaddrNetlink{Family: unix.AF_NETLINK})
	}); err != nil {
		return err
	}
	if failure != nil {
		return fmt.Errorf("connect a netlink socket to the kernel: %w", failure)
	}
	return nil
}

// call sends a command with encoded attributes to the family and returns the
// attributes of the reply, none if it has no reply. It waits as long as the
// kernel takes.
func (f *family) call(command uint8, list []byte) ([]byte, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	message := genetlink.Message{Header: genetlink.Header{Command: command, Version: f.version}, Data: list}
	// The kernel executes the request before this returns.
	request, err := f.conn.Send(message, f.id, netlink.Request|netlink.Acknowledge)
	if err != nil {
		return nil, err
	}
	return f.answer(request.Header)
}

// answer takes the kernel's messages until one acknowledges or refuses the
// request, and returns the attributes of its reply. The library's Execute stops
// at the reply, in front of which an acknowledgement would then come the next
// time. Messages that belong to another request are passed over: answers to an
// earlier one, whose end no caller waited for.
func (f *family) answer(request netlink.Header) (list []byte, err error) {
	for {
		replies, messages, err := f.conn.Receive()
		if refused, ok := errors.AsType[*netlink.OpError](err); ok && isErrno(refused.Err) && refused.Sequence != request.Sequence {
			continue
		}
		if err != nil {
			return nil, refusal(err)
		}
		if len(messages) == 0 {
			return nil, fmt.Errorf("%w: datagram without a message", errMalformed)
		}
		for i, m := range messages {
			switch {
			case m.Header.Sequence != request.Sequence:
			case m.Header.Type == request.Type:
				list = replies[i].Data
			case m.Header.Type == netlink.Error && len(m.Data) < shortestAcknowledgement:
				return nil, fmt.Errorf("%w: acknowledgement of %d bytes", errMalformed, len(m.Data))
			case m.Header.Type == netlink.Error: // without an errno
				return list, nil
			}
		}
	}
}

// isErrno reports whether an error is the errno of a message, not that of a
// system call.
func isErrno(err error) bool {
	_, ok := err.(syscall.Errno)
	return ok
}

// refusal returns the error of a message: its errno, behind the kernel's text
// if it gives one; or that it is malformed.
func refusal(err error) error {
	errno, ok := errors.AsType[syscall.Errno](err)
	if !ok {
		return fmt.Errorf("%w: %w", errMalformed, err)
	}
	refused, ok := errors.AsType[*netlink.OpError](err)
	switch {
	case !ok || !isErrno(refused.Err):
		return err
	case refused.Message == "":
		return errno
	}
	return fmt.Errorf("%s: %w", refused.Message, errno)
}

// close closes the socket. No method is called afterwards.
func (f *family) close() { _ = f.conn.Close() }
