package roce_test

import (
	"bytes"
	"testing"

	"github.com/viablk/viablk/internal/contain"
	"github.com/viablk/viablk/via/roce/wire"
)

// privateAttributes are the messages of the connection manager whose private
// data an end decodes, or passes on to package via.
var privateAttributes = []wire.Attribute{
	wire.AttributeREQ, wire.AttributeREP, wire.AttributeREJ, wire.AttributeRTU, wire.AttributeDREQ, wire.AttributeDREP,
}

// FuzzPrivate overwrites private data between two whole ends, from some byte
// on: the mark, connect messages, reasons, cookies and final acks. A handshake
// succeeds or fails, a connection ends, and the next connection works.
func FuzzPrivate(f *testing.F) {
	cookie := append([]byte("\xc0vb\xe5"), bytes.Repeat([]byte{7}, wire.CookieCode)...)
	for kind := range byte(len(privateAttributes)) {
		for at, data := range [][]byte{
			nil, []byte("vbk\xff"), cookie, make([]byte, 255), append([]byte("vbk\x14"), cookie...), []byte("vbk\x08\x00\x00\x00\x01\x00\xff\xff\xff"), []byte("vbk\x03abc"),
		} {
			f.Add(kind, byte(0), data)
			f.Add(kind, byte(7*at), data)
		}
	}
	f.Fuzz(func(t *testing.T, kind, at byte, data []byte) {
		caught := contain.Count()
		m := newMITM(t, privateAttributes[int(kind)%len(privateAttributes)])
		m.modifies(t, func(private []byte) { copy(private[min(int(at), len(private)):], data) })
		m.x.close()
		m.y.close()
		if n := contain.Count() - caught; n != 0 {
			t.Errorf("%d panics", n)
		}
	})
}
