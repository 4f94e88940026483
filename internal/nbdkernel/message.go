package nbdkernel

import (
	"encoding/binary"
	"errors"
	"fmt"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

// The sizes and alignment of netlink's headers, netlink(7).
const (
	headerSize        = 16 // of a message: length, type, flags, sequence number, port
	genericSize       = 4  // behind it in generic netlink: command, version, two bytes of nothing
	attributeSize     = 4  // of an attribute: length with the header, type
	maximumAttribute  = 1<<16 - 1 - attributeSize
	alignment         = 4
	attributeTypeMask = 1<<14 - 1 // without the bits that say how the value is to be read
)

// native is the order of netlink's bytes: that of the machine.
var native = binary.NativeEndian

// aligned returns n rounded up to where the next thing begins.
func aligned(n int) int { return (n + alignment - 1) &^ (alignment - 1) }

// attributes is a list of attributes under construction.
type attributes []byte

// bytes appends an attribute. The value has at most maximumAttribute bytes.
func (a *attributes) bytes(kind uint16, value []byte) {
	*a = native.AppendUint16(*a, uint16(attributeSize+len(value)))
	*a = native.AppendUint16(*a, kind)
	*a = append(*a, value...)
	*a = append(*a, make([]byte, aligned(len(value))-len(value))...)
}

func (a *attributes) uint32(kind uint16, v uint32) { a.bytes(kind, native.AppendUint32(nil, v)) }
func (a *attributes) uint64(kind uint16, v uint64) { a.bytes(kind, native.AppendUint64(nil, v)) }
func (a *attributes) text(kind uint16, s string)   { a.bytes(kind, append([]byte(s), 0)) }

// nested appends a list of attributes as one.
func (a *attributes) nested(kind uint16, list attributes) {
	a.bytes(kind|unix.NLA_F_NESTED, list)
}

// errMalformed is an answer that is none.
var errMalformed = errors.New("malformed netlink message")

// each calls f for every attribute of a list, until f fails.
func each(list []byte, f func(kind uint16, value []byte) error) error {
	for len(list) > 0 {
		if len(list) < attributeSize {
			return fmt.Errorf("%w: %d bytes behind the attributes", errMalformed, len(list))
		}
		length := int(native.Uint16(list))
		if length < attributeSize || length > len(list) {
			return fmt.Errorf("%w: attribute of %d bytes in %d", errMalformed, length, len(list))
		}
		if err := f(native.Uint16(list[2:])&attributeTypeMask, list[attributeSize:length]); err != nil {
			return err
		}
		list = list[min(aligned(length), len(list)):]
	}
	return nil
}

// word returns the value of an attribute of 16 or 32 bits.
func word(value []byte) (uint32, error) {
	switch len(value) {
	case 2:
		return uint32(native.Uint16(value)), nil
	case 4:
		return native.Uint32(value), nil
	}
	return 0, fmt.Errorf("%w: number of %d bytes", errMalformed, len(value))
}

// request is a message to a family of generic netlink.
type request struct {
	family   uint16
	command  uint8
	version  uint8
	sequence uint32
	list     attributes
}

// encode returns the bytes of the request, which asks for an acknowledgement.
func (r *request) encode() []byte {
	length := headerSize + genericSize + len(r.list)
	b := make([]byte, headerSize+genericSize, length)
	native.PutUint32(b, uint32(length))
	native.PutUint16(b[4:], r.family)
	native.PutUint16(b[6:], unix.NLM_F_REQUEST|unix.NLM_F_ACK)
	native.PutUint32(b[8:], r.sequence)
	b[headerSize], b[headerSize+1] = r.command, r.version
	return append(b, r.list...)
}

// answer collects what the kernel says to a request.
type answer struct {
	list []byte // attributes of the reply, if there was one
	done bool   // it is complete
	err  error  // the kernel's refusal, with its errno
}

// decode takes a datagram from the kernel. Messages that do not belong to the
// request r are passed over: answers to an earlier one, of which the reader was
// interrupted.
func (a *answer) decode(b []byte, r *request) error {
	for len(b) > 0 {
		if len(b) < headerSize {
			return fmt.Errorf("%w: %d bytes", errMalformed, len(b))
		}
		length := int(native.Uint32(b))
		if length < headerSize || length > len(b) {
			return fmt.Errorf("%w: message of %d bytes in %d", errMalformed, length, len(b))
		}
		body := b[headerSize:length]
		if native.Uint32(b[8:]) == r.sequence {
			if err := a.take(native.Uint16(b[4:]), native.Uint16(b[6:]), body, r.family); err != nil {
				return err
			}
		}
		b = b[min(aligned(length), len(b)):]
	}
	return nil
}

// take takes one message.
func (a *answer) take(kind, flags uint16, body []byte, family uint16) error {
	switch kind {
	case unix.NLMSG_ERROR:
		if len(body) < 4+headerSize {
			return fmt.Errorf("%w: acknowledgement of %d bytes", errMalformed, len(body))
		}
		a.done = true
		if number := -int32(native.Uint32(body)); number != 0 {
			a.err = refusal(syscall.Errno(number), flags, body[4:])
		}
	case family:
		if len(body) < genericSize {
			return fmt.Errorf("%w: reply of %d bytes", errMalformed, len(body))
		}
		a.list = append([]byte(nil), body[genericSize:]...)
	}
	return nil
}

// refusal returns the error of an errno, with the kernel's text if it gives one.
// Behind the errno is the request, of which the body may be left out, and then what
// flags say.
func refusal(errno syscall.Errno, flags uint16, behind []byte) error {
	skip := headerSize
	if flags&unix.NLM_F_CAPPED == 0 {
		skip = aligned(int(min(native.Uint32(behind), 1<<20)))
	}
	if flags&unix.NLM_F_ACK_TLVS == 0 || skip > len(behind) {
		return errno
	}
	text := ""
	_ = each(behind[skip:], func(kind uint16, value []byte) error { // a text that cannot be read is none
		if kind == unix.NLMSGERR_ATTR_MSG {
			text = strings.TrimRight(string(value), "\x00")
		}
		return nil
	})
	if text == "" {
		return errno
	}
	return fmt.Errorf("%s: %w", text, errno)
}
