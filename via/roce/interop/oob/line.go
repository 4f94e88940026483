package oob

import (
	"encoding/hex"
	"errors"
	"fmt"
	"net/netip"
	"strconv"
)

// ErrLine is the error of a malformed line.
var ErrLine = errors.New("not a line of the exchange")

// End describes one end.
type End struct {
	LID uint16     // 0 on Ethernet
	QP  uint32     // 24 bits, 2 at least
	PSN uint32     // 24 bits: PSN of the first packet that this end sends
	GID netip.Addr // the source address of its packets

	// Memory that the other end may write and read; only in extended lines.
	Extended bool
	Key      uint32
	Addr     uint64
}

// The lines: hexadecimal numbers of fixed width between colons, and a NUL.
const (
	plainLine    = "llll:qqqqqq:pppppp:gggggggggggggggggggggggggggggggg\x00"
	extendedLine = "llll:qqqqqq:pppppp:gggggggggggggggggggggggggggggggg:kkkkkkkk:aaaaaaaaaaaaaaaa\x00"
	doneLine     = "done\x00"
)

// check refuses invalid parameters.
func (e *End) check() error {
	switch {
	case e.QP < 2 || e.QP >= 1<<24 || e.PSN >= 1<<24:
		return fmt.Errorf("queue pair %#x, PSN %#x: %w", e.QP, e.PSN, ErrLine)
	case !e.GID.IsValid() || e.GID.Unmap().IsUnspecified() || e.GID.Unmap().IsMulticast():
		return fmt.Errorf("address %v: %w", e.GID, ErrLine)
	}
	return nil
}

// line encodes the end as a line.
func (e *End) line() ([]byte, error) {
	if err := e.check(); err != nil {
		return nil, err
	}
	gid := e.GID.As16()
	b := fmt.Appendf(nil, "%04x:%06x:%06x:%x", e.LID, e.QP, e.PSN, gid[:])
	if e.Extended {
		b = fmt.Appendf(b, ":%08x:%016x", e.Key, e.Addr)
	}
	return append(b, 0), nil
}

// parse decodes a line and accepts only its canonical form.
func parse(b []byte) (End, error) {
	form := plainLine
	if len(b) != len(form) {
		form = extendedLine
	}
	if len(b) != len(form) {
		return End{}, fmt.Errorf("%d bytes: %w", len(b), ErrLine)
	}
	e := End{Extended: form == extendedLine}
	var gid [16]byte
	for i := 0; i < len(form); {
		n := 1
		for form[i] >= 'a' && form[i] <= 'z' && form[i+n] == form[i] {
			n++
		}
		if !e.set(form[i], b[i:i+n], &gid) {
			return End{}, fmt.Errorf("%q at %d: %w", b[i:i+n], i, ErrLine)
		}
		i += n
	}
	e.GID = netip.AddrFrom16(gid).Unmap()
	return e, e.check()
}

// set decodes the field that a form names by a letter; other characters must
// match literally.
func (e *End) set(name byte, text []byte, gid *[16]byte) bool {
	if name < 'a' || name > 'z' {
		return text[0] == name
	}
	for _, c := range text {
		if (c < '0' || c > '9') && (c < 'a' || c > 'f') {
			return false
		}
	}
	if name == 'g' {
		_, err := hex.Decode(gid[:], text)
		return err == nil
	}
	n, err := strconv.ParseUint(string(text), 16, 64)
	switch name {
	case 'l':
		e.LID = uint16(n)
	case 'q':
		e.QP = uint32(n)
	case 'p':
		e.PSN = uint32(n)
	case 'k':
		e.Key = uint32(n)
	case 'a':
		e.Addr = n
	}
	return err == nil
}
