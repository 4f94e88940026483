package seal_test

import (
	"bytes"
	"errors"
	"testing"

	"github.com/viablk/viablk/internal/seal"
)

// pattern returns n bytes that tell where they are.
//
//go:norace
func pattern(n int, first byte) []byte {
	b := make([]byte, n)
	for i := range b {
		b[i] = first + byte(i*7) + byte(i>>8)
	}
	return b
}

func nonce(first byte) [seal.NonceSize]byte {
	return [seal.NonceSize]byte(pattern(seal.NonceSize, first))
}

func newSession(t testing.TB, limits seal.Limits) *seal.Session {
	t.Helper()
	s, err := seal.NewSession(pattern(seal.ExportSize, 1), nonce(2), nonce(3), [seal.NameSize]byte{4}, limits)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// end is one end of a connection.
type end struct {
	*seal.Sealer
	*seal.Opener
}

// connect returns both ends of a connection.
func connect(t testing.TB, s *seal.Session, conn uint16) (initiator, target end) {
	t.Helper()
	for e, role := range map[*end]seal.End{&initiator: seal.Initiator, &target: seal.Target} {
		var err error
		if e.Sealer, e.Opener, err = s.Conn(conn, 1, nonce(5), nonce(6), role); err != nil {
			t.Fatal(err)
		}
	}
	return initiator, target
}

// capsule returns a message as a capsule.
func (e end) capsule(t testing.TB, message []byte) []byte {
	t.Helper()
	b := make([]byte, len(message)+seal.Overhead)
	copy(b[seal.PrefixSize:], message)
	n, _, err := e.Sealer.Capsule(b, len(message))
	if err != nil || n != len(b) {
		t.Fatalf("%d bytes, %v", n, err)
	}
	return b
}

// receive opens a copy of a capsule.
func (e end) receive(capsule []byte) ([]byte, error) {
	message, _, err := e.Opener.Capsule(bytes.Clone(capsule))
	return message, err
}

// expect opens a capsule that must be that of a message.
func (e end) expect(t testing.TB, capsule, message []byte) {
	t.Helper()
	got, err := e.receive(capsule)
	if err != nil || !bytes.Equal(got, message) {
		t.Fatalf("%d bytes, %v", len(got), err)
	}
}

// refuse opens a capsule that must be refused, and requires that everything
// after it is refused too.
func (e end) refuse(t testing.TB, capsule []byte, after ...[]byte) {
	t.Helper()
	for _, b := range append([][]byte{capsule}, after...) {
		if got, err := e.receive(b); !errors.Is(err, seal.ErrForged) || got != nil {
			t.Fatalf("%d bytes, %v", len(got), err)
		}
	}
}

// command sends a command with n bytes of payload, and returns the payload's
// keys at both ends.
func command(t testing.TB, initiator, target end, n int) (i, tt *seal.Payload) {
	t.Helper()
	i, tt = new(seal.Payload), new(seal.Payload)
	if err := initiator.Sealer.Payload(i, n); err != nil {
		t.Fatal(err)
	}
	target.expect(t, initiator.capsule(t, []byte("command")), []byte("command"))
	if err := target.Opener.Payload(tt); err != nil {
		t.Fatal(err)
	}
	return i, tt
}

// record is a sealed record.
type record struct {
	b      []byte
	index  int
	header []byte
	tag    [seal.TagSize]byte
}

func sealRecord(t testing.TB, p *seal.Payload, plain []byte, index int, header string) record {
	t.Helper()
	r := record{b: make([]byte, len(plain)), index: index, header: []byte(header)}
	if err := p.Seal(r.b, plain, index, r.header, &r.tag); err != nil {
		t.Fatal(err)
	}
	return r
}

// open opens a record, and requires that nothing is left of one that is
// refused.
func (r record) open(t testing.TB, p *seal.Payload) ([]byte, error) {
	t.Helper()
	dst := pattern(len(r.b), 99)
	err := p.Open(dst, r.b, r.index, r.header, &r.tag)
	if err != nil && (!errors.Is(err, seal.ErrForged) || !bytes.Equal(dst, make([]byte, len(dst)))) {
		t.Fatalf("refused with %v, and left %x", err, dst[:min(16, len(dst))])
	}
	return dst, err
}
