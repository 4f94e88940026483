package netbed

import (
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"time"

	"golang.org/x/sys/unix"
)

// Numbers of linux/netfilter/nfnetlink_queue.h.
const (
	messagePacket  = 0
	messageVerdict = 1
	messageConfig  = 2

	configCommand    = 1 // attributes of a configuration
	configParameters = 2
	commandBind      = 1
	copyMeta         = 1

	packetHeader  = 1 // attributes of a packet and a verdict
	verdictHeader = 2
	verdictAccept = 1
)

const (
	messageHeader = unix.SizeofNlMsghdr + 4 // nfgenmsg: family, version, queue
	receiveSize   = 64 << 10                // bytes of messages at a time
)

// queue is packets that wait for this process to decide: queue 0 of a namespace.
// One goroutine uses it.
type queue struct {
	file     *os.File
	buffer   []byte
	sequence uint32
}

// openQueue opens the queue of the namespace of this thread.
func openQueue() (*queue, error) {
	fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, unix.NETLINK_NETFILTER)
	if err != nil {
		return nil, fmt.Errorf("open a netfilter queue: %w", err)
	}
	q := &queue{file: os.NewFile(uintptr(fd), "netfilter queue"), buffer: make([]byte, receiveSize)}
	err = errors.Join(
		unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, receiveBuffer),
		q.send(messageConfig, configCommand, []byte{commandBind, 0, 0, unix.AF_UNSPEC}),
		q.send(messageConfig, configParameters, []byte{0, 0, 0, 0, copyMeta}),
	)
	if err != nil {
		return nil, errors.Join(fmt.Errorf("open a netfilter queue: %w", err), q.file.Close())
	}
	return q, nil
}

// send sends a message with one attribute. The kernel answers errors alone, which
// receive returns.
func (q *queue) send(message, attribute uint16, value []byte) error {
	length := messageHeader + unix.SizeofNlAttr + len(value)
	b := make([]byte, (length+3)&^3)
	q.sequence++
	order := binary.NativeEndian
	order.PutUint32(b, uint32(length))
	order.PutUint16(b[4:], unix.NFNL_SUBSYS_QUEUE<<8|message)
	order.PutUint16(b[6:], unix.NLM_F_REQUEST)
	order.PutUint32(b[8:], q.sequence)
	a := b[messageHeader:] // any family, version 0, queue 0 before it
	order.PutUint16(a, uint16(unix.SizeofNlAttr+len(value)))
	order.PutUint16(a[2:], attribute)
	copy(a[unix.SizeofNlAttr:], value)
	_, err := q.file.Write(b)
	return err
}

// accept lets a packet go on.
func (q *queue) accept(packet uint32) error {
	v := binary.BigEndian.AppendUint32(nil, verdictAccept)
	return q.send(messageVerdict, verdictHeader, binary.BigEndian.AppendUint32(v, packet))
}

// receive waits for packets and returns their numbers; none after patience.
func (q *queue) receive(patience time.Duration) ([]uint32, error) {
	if err := q.file.SetReadDeadline(time.Now().Add(patience)); err != nil {
		return nil, err
	}
	n, err := q.file.Read(q.buffer)
	if errors.Is(err, os.ErrDeadlineExceeded) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	return packets(q.buffer[:n])
}

// packets returns the numbers of the packets in messages of the kernel.
func packets(b []byte) ([]uint32, error) {
	var all []uint32
	order := binary.NativeEndian
	for len(b) >= messageHeader {
		length := int(order.Uint32(b))
		if length < messageHeader || length > len(b) {
			return all, fmt.Errorf("a netlink message of %d bytes in %d", length, len(b))
		}
		switch kind := order.Uint16(b[4:]); kind {
		case unix.NFNL_SUBSYS_QUEUE<<8 | messagePacket:
			// The header is the first attribute: length, kind, number.
			a := b[messageHeader:length]
			if len(a) < 8 || order.Uint16(a[2:]) != packetHeader {
				return all, errors.New("a packet without a header")
			}
			all = append(all, binary.BigEndian.Uint32(a[4:]))
		case unix.NLMSG_ERROR:
			if code := int32(order.Uint32(b[unix.SizeofNlMsghdr:])); code != 0 {
				return all, unix.Errno(-code)
			}
		default:
			return all, fmt.Errorf("a netlink message of kind %#x", kind)
		}
		b = b[min(len(b), (length+3)&^3):]
	}
	return all, nil
}
