package oob_test

import (
	"bytes"
	"net/netip"
	"testing"

	"pgregory.net/rapid"

	"github.com/viablk/viablk/via/roce/interop/oob"
)

// parse decodes the line of every valid end.
func TestLineRoundTrip(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		e := oob.End{
			LID: rapid.Uint16().Draw(t, "lid"),
			QP:  rapid.Uint32Range(2, 1<<24-1).Draw(t, "qp"),
			PSN: rapid.Uint32Range(0, 1<<24-1).Draw(t, "psn"),
		}
		if rapid.Bool().Draw(t, "v4") {
			e.GID = netip.AddrFrom4([4]byte{10, rapid.Byte().Draw(t, "a"), 0, 1})
		} else {
			e.GID = netip.AddrFrom16([16]byte{0xfd, rapid.Byte().Draw(t, "a"), 15: 1})
		}
		if e.Extended = rapid.Bool().Draw(t, "extended"); e.Extended {
			e.Key, e.Addr = rapid.Uint32().Draw(t, "key"), rapid.Uint64().Draw(t, "addr")
		}
		line, err := e.Line()
		if err != nil {
			t.Fatal(err)
		}
		if got, err := oob.Parse(line); err != nil || got != e {
			t.Fatalf("%q is %+v, %v, want %+v", line, got, err, e)
		}
	})
}

// parse accepts only canonical lines.
func FuzzLine(f *testing.F) {
	f.Fuzz(func(t *testing.T, b []byte) {
		e, err := oob.Parse(b)
		if err != nil {
			return
		}
		if line, err := e.Line(); err != nil || !bytes.Equal(line, b) {
			t.Errorf("%q is accepted, and is %q, %v", b, line, err)
		}
	})
}
