package shm

import (
	"encoding/binary"
	"errors"
	"testing"
)

func FuzzParseControl(f *testing.F) {
	for kind := range uint16(10) {
		f.Add(encoded(control{kind: kind, value: 7, size: 1 << 40, body: rawHello()}))
	}
	f.Add([]byte{})
	f.Add(make([]byte, controlHeader))
	f.Fuzz(func(t *testing.T, b []byte) {
		m, err := parseControl(b)
		if err != nil {
			if !errors.Is(err, errMalformed) {
				t.Fatalf("error %v", err)
			}
			return
		}
		if len(m.body) > maxBody || m.kind < controlHello || m.kind > controlPassLog {
			t.Fatalf("accepted kind %d with a body of %d bytes", m.kind, len(m.body))
		}
		again := encoded(m)
		if string(again) != string(b) || binary.LittleEndian.Uint32(b) != controlMagic {
			t.Fatalf("% x decodes and encodes to % x", b, again)
		}
	})
}
