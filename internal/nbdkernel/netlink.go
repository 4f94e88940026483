package nbdkernel

import (
	"fmt"
	"math"
	"os"
	"sync"

	"golang.org/x/sys/unix"
)

// maximumAnswer is the longest datagram that is taken from the kernel, bytes.
const maximumAnswer = 64 << 10

// family is a family of generic netlink, and the socket to talk to it. Its methods
// are safe for concurrent use; a request waits for the one before it.
type family struct {
	id      uint16
	version uint8

	mu       sync.Mutex
	fd       int
	sequence uint32
	buffer   []byte
}

// openFamily returns the family of a name. The error is [unix.ENOENT] if the kernel
// has none. The caller closes it.
func openFamily(name string) (*family, error) {
	fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.NETLINK_GENERIC)
	if err != nil {
		return nil, os.NewSyscallError("socket", err)
	}
	f := &family{fd: fd, buffer: make([]byte, maximumAnswer)}
	if err := f.find(name); err != nil {
		f.close()
		return nil, err
	}
	return f, nil
}

// find asks for the number of the family.
func (f *family) find(name string) error {
	if err := unix.Bind(f.fd, &unix.SockaddrNetlink{Family: unix.AF_NETLINK}); err != nil {
		return os.NewSyscallError("bind", err)
	}
	// Old kernels have no texts.
	_ = unix.SetsockoptInt(f.fd, unix.SOL_NETLINK, unix.NETLINK_EXT_ACK, 1)
	var list attributes
	list.text(unix.CTRL_ATTR_FAMILY_NAME, name)
	reply, err := f.ask(request{family: unix.GENL_ID_CTRL, command: unix.CTRL_CMD_GETFAMILY, version: 2, list: list})
	if err != nil {
		return err
	}
	f.id, f.version, err = decodeFamily(reply)
	return err
}

// decodeFamily returns number and version of a family from what the kernel says of
// it.
func decodeFamily(list []byte) (id uint16, version uint8, err error) {
	err = each(list, func(kind uint16, value []byte) error {
		var n uint32
		switch kind {
		case unix.CTRL_ATTR_FAMILY_ID:
			if n, err = word(value); n > math.MaxUint16 {
				return fmt.Errorf("%w: family %d", errMalformed, n)
			}
			id = uint16(n)
		case unix.CTRL_ATTR_VERSION:
			n, err = word(value)
			version = uint8(n)
		}
		return err
	})
	if err == nil && id == 0 {
		err = fmt.Errorf("%w: family without number", errMalformed)
	}
	return id, version, err
}

// call sends a command to the family and returns the attributes of the reply, none
// if it has no reply. It waits as long as the kernel takes.
func (f *family) call(command uint8, list attributes) ([]byte, error) {
	return f.ask(request{family: f.id, command: command, version: f.version, list: list})
}

func (f *family) ask(r request) ([]byte, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.sequence++
	r.sequence = f.sequence
	// The kernel executes the request before this returns.
	if err := unix.Sendto(f.fd, r.encode(), 0, &unix.SockaddrNetlink{Family: unix.AF_NETLINK}); err != nil {
		return nil, os.NewSyscallError("sendto", err)
	}
	var a answer
	for !a.done {
		n, from, err := unix.Recvfrom(f.fd, f.buffer, unix.MSG_TRUNC)
		switch {
		case err == unix.EINTR:
			continue
		case err != nil:
			return nil, os.NewSyscallError("recvfrom", err)
		case n > len(f.buffer):
			return nil, fmt.Errorf("%w: %d bytes", errMalformed, n)
		}
		if sender, ok := from.(*unix.SockaddrNetlink); !ok || sender.Pid != 0 {
			continue // not from the kernel
		}
		if err := a.decode(f.buffer[:n], &r); err != nil {
			return nil, err
		}
	}
	return a.list, a.err
}

// close closes the socket. Nobody calls anything afterwards.
func (f *family) close() { unix.Close(f.fd) }
