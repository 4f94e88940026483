package nbdkernel

import (
	"errors"
	"fmt"
	"io/fs"
	"time"

	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"
)

// The kernel's nbd driver in generic netlink, linux/nbd-netlink.h.
const (
	familyName = "nbd"

	commandConnect     = 1
	commandDisconnect  = 2
	commandReconfigure = 3

	attributeIndex       = 1
	attributeSizeBytes   = 2
	attributeBlockSize   = 3
	attributeTimeout     = 4
	attributeServerFlags = 5
	attributeSockets     = 7
	attributeDeadTimeout = 8
	attributeBackend     = 10

	attributeSocket   = 1 // in the list of sockets
	attributeSocketFD = 1 // in a socket
)

// Reasons why the driver cannot do what it is asked for.
var (
	// ErrNoDriver says that the kernel has no nbd driver.
	ErrNoDriver = errors.New("the kernel has no nbd driver: load it with modprobe nbd")

	// ErrBusy says that a device is in use.
	ErrBusy = errors.New("device in use")

	// ErrNotAttached says that a device is not connected to anything.
	ErrNotAttached = errors.New("not attached")
)

// AnyIndex stands for a device that the driver chooses.
const AnyIndex = -1

// Settings describe a device to the driver.
type Settings struct {
	Size        int64  // bytes
	BlockSize   int    // logical block, bytes: a power of two from 512 to 4096
	Flags       uint16 // the transmission flags of the NBD protocol
	IOTimeout   time.Duration
	DeadTimeout time.Duration
}

// Driver is the kernel's nbd driver. Its methods are safe for concurrent use,
// and wait as long as the kernel takes. They are not called by who serves a
// device.
type Driver struct {
	call   func(command uint8, list []byte) (reply []byte, err error)
	close  func()
	second func() (*Driver, error) // another way to it, see Attachment.resize
}

// OpenDriver opens the way to the driver: the error is [ErrNoDriver] if there
// is none, and [fs.ErrPermission] if this process may not use it. The caller
// closes it.
func OpenDriver() (*Driver, error) {
	if !privileged() {
		return nil, fmt.Errorf("devices of the kernel are for root, and for those with the capability CAP_SYS_ADMIN: %w", fs.ErrPermission)
	}
	f, err := openFamily(familyName)
	if errors.Is(err, unix.ENOENT) {
		return nil, ErrNoDriver
	}
	if err != nil {
		return nil, fmt.Errorf("open the kernel's nbd driver: %w", err)
	}
	return &Driver{f.call, f.close, OpenDriver}, nil
}

// privileged reports whether this process has the right to use the driver.
func privileged() bool {
	header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var data [2]unix.CapUserData
	return unix.Capget(&header, &data[0]) == nil && data[0].Effective&(1<<unix.CAP_SYS_ADMIN) != 0
}

// Close closes the way to the driver. Devices stay.
func (d *Driver) Close() { d.close() }

// ask sends a command with attributes and returns those of the reply.
func (d *Driver) ask(command uint8, list *netlink.AttributeEncoder) ([]byte, error) {
	encoded, err := list.Encode()
	if err != nil {
		return nil, err
	}
	return d.call(command, encoded)
}

// connect makes a device of sockets, which stay the caller's too, and returns
// its index.
func (d *Driver) connect(index int, backend string, s Settings, sockets []int) (Node, error) {
	reply, err := d.ask(commandConnect, connectAttributes(index, backend, s, sockets))
	switch {
	case errors.Is(err, fs.ErrPermission):
		return 0, fmt.Errorf("connect a kernel device: the capability CAP_SYS_ADMIN is needed: %w", err)
	case errors.Is(err, unix.EBUSY):
		return 0, fmt.Errorf("connect %s: %w", Node(index), ErrBusy)
	case err != nil:
		return 0, fmt.Errorf("connect a kernel device: %w", err)
	}
	index, err = decodeIndex(reply)
	return Node(index), err
}

// reconnect gives a device new sockets in place of those that have ended, as
// many as there are.
func (d *Driver) reconnect(n Node, backend string, s Settings, sockets []int) error {
	if _, err := d.ask(commandReconfigure, reconnectAttributes(n, backend, s, sockets)); err != nil {
		return fmt.Errorf("reconnect %s: %w", n, err)
	}
	return nil
}

// resize gives a device a size. Since Linux 6.9 the driver waits for the
// requests in flight first, and holds what a reconnect of any device needs: a
// command that also has sockets would wait for requests that wait for these.
func (d *Driver) resize(n Node, backend string, s Settings) error {
	if _, err := d.ask(commandReconfigure, resizeAttributes(n, backend, s)); err != nil {
		return fmt.Errorf("resize %s: %w", n, err)
	}
	return nil
}

// Disconnect takes a device from the process that serves it. Requests that are
// in flight fail. It returns nil if the device is not connected.
func (d *Driver) Disconnect(n Node) error {
	list := netlink.NewAttributeEncoder()
	list.Uint32(attributeIndex, uint32(n))
	_, err := d.ask(commandDisconnect, list)
	if errors.Is(err, fs.ErrPermission) {
		return fmt.Errorf("disconnect %s: the capability CAP_SYS_ADMIN is needed: %w", n, err)
	}
	if err != nil {
		return fmt.Errorf("disconnect %s: %w", n, err)
	}
	return nil
}

func connectAttributes(index int, backend string, s Settings, sockets []int) *netlink.AttributeEncoder {
	list := netlink.NewAttributeEncoder()
	if index != AnyIndex {
		list.Uint32(attributeIndex, uint32(index))
	}
	list.Uint64(attributeSizeBytes, uint64(s.Size))
	list.Uint64(attributeBlockSize, uint64(s.BlockSize))
	list.Uint64(attributeServerFlags, uint64(s.Flags))
	s.appendTimeouts(list)
	appendSockets(list, sockets)
	if backend != "" {
		list.String(attributeBackend, backend)
	}
	return list
}

func reconnectAttributes(n Node, backend string, s Settings, sockets []int) *netlink.AttributeEncoder {
	list := deviceAttributes(n, backend)
	s.appendTimeouts(list)
	appendSockets(list, sockets)
	return list
}

func resizeAttributes(n Node, backend string, s Settings) *netlink.AttributeEncoder {
	list := deviceAttributes(n, backend)
	list.Uint64(attributeSizeBytes, uint64(s.Size))
	list.Uint64(attributeBlockSize, uint64(s.BlockSize))
	return list
}

// deviceAttributes name a device. The driver refuses another backend than the
// device is connected to.
func deviceAttributes(n Node, backend string) *netlink.AttributeEncoder {
	list := netlink.NewAttributeEncoder()
	list.Uint32(attributeIndex, uint32(n))
	if backend != "" {
		list.String(attributeBackend, backend)
	}
	return list
}

// appendTimeouts appends the times, which the driver counts in seconds: a part
// of a second is a whole one.
func (s Settings) appendTimeouts(list *netlink.AttributeEncoder) {
	list.Uint64(attributeTimeout, seconds(s.IOTimeout))
	list.Uint64(attributeDeadTimeout, seconds(s.DeadTimeout))
}

func seconds(d time.Duration) uint64 { return uint64((d + time.Second - 1) / time.Second) }

func appendSockets(list *netlink.AttributeEncoder, sockets []int) {
	list.Nested(attributeSockets, func(items *netlink.AttributeEncoder) error {
		for _, fd := range sockets {
			items.Nested(attributeSocket, func(item *netlink.AttributeEncoder) error {
				item.Uint32(attributeSocketFD, uint32(fd))
				return nil
			})
		}
		return nil
	})
}

// decodeIndex returns the index of the device from the reply to a connect.
func decodeIndex(list []byte) (int, error) {
	index := AnyIndex
	d, err := netlink.NewAttributeDecoder(list)
	if err != nil {
		return index, fmt.Errorf("%w: %w", errMalformed, err)
	}
	for d.Next() {
		if d.Type() == attributeIndex {
			index = int(d.Uint32())
		}
	}
	if err := d.Err(); err != nil {
		return AnyIndex, fmt.Errorf("%w: %w", errMalformed, err)
	}
	if index < 0 || index > maximumIndex {
		return AnyIndex, fmt.Errorf("%w: device without number", errMalformed)
	}
	return index, nil
}
