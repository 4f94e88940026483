package wire

import (
	"bytes"
	"testing"
)

// edit changes an encoded packet or message.
type edit func(b []byte) []byte

// put overwrites bytes from an offset.
func put(offset int, values ...byte) edit {
	return func(b []byte) []byte {
		copy(b[offset:], values)
		return b
	}
}

// cut keeps n bytes.
func cut(n int) edit { return func(b []byte) []byte { return b[:n:n] } }

// resize leaves out or adds n bytes in front of the ICRC.
func resize(n int) edit {
	return func(b []byte) []byte {
		end := len(b) - ICRCSize
		if n < 0 {
			return append(b[:end+n], b[end:]...)
		}
		return append(b[:end:end], append(make([]byte, n), b[end:]...)...)
	}
}

// both applies two edits in order.
func both(first, second edit) edit { return func(b []byte) []byte { return second(first(b)) } }

func TestPacketRefusals(t *testing.T) {
	const flags = bthAtFlags
	seen := map[Refusal]bool{}
	for _, c := range []struct {
		op   Opcode
		want Refusal
		edit edit
	}{
		{RCAcknowledge, RefusedShort, cut(0)},
		{RCAcknowledge, RefusedShort, cut(MinPacket - 1)},
		{RCAcknowledge, RefusedShort, resize(-4)},
		{RCWriteOnly, RefusedShort, cut(RETHSize + BTHSize)},
		{RCSendOnly, RefusedLong, resize(MaxPacket)},
		{RCSendOnlyImmediate, RefusedPathMTU, resize(MaxPayload - 8 + 4)},
		{RCSendOnly, RefusedAlignment, resize(1)},
		{RCSendOnly, RefusedAlignment, resize(-2)},
		{RCSendOnly, RefusedOpcode, put(0, 0x15)},
		{RCSendOnly, RefusedOpcode, put(0, 0x1c)},
		{RCSendOnly, RefusedOpcode, put(0, 0x2c)},
		{RCSendOnly, RefusedOpcode, put(0, 0x44)},
		{RCSendOnly, RefusedOpcode, put(0, 0xff)},
		{RCSendOnly, RefusedVersion, put(flags, 1)},
		{RCSendOnly, RefusedVersion, put(flags, 8)},
		{RCSendOnly, RefusedPartition, put(bthAtPKey, 0x80, 0x01)},
		{RCSendOnly, RefusedPartition, put(bthAtPKey, 0, 0)},
		{RCSendOnly, RefusedQueuePair, put(bthAtDestQP, 0, 0, 0)},
		{RCAcknowledge, RefusedSyndrome, put(BTHSize, 0x40)},
		{RCAcknowledge, RefusedSyndrome, put(BTHSize, 0x65)},
		{RCAcknowledge, RefusedSyndrome, put(BTHSize, 0x9f)},
		{RCReadResponseOnly, RefusedSyndrome, put(BTHSize, byte(NAKRemoteAccess))},
		{RCReadResponseLast, RefusedSyndrome, put(BTHSize, 0x21)},
		{RCAtomicAcknowledge, RefusedSyndrome, put(BTHSize, byte(NAKSequence))},
		{CongestionNotification, RefusedNotification, resize(4)},
		{CongestionNotification, RefusedNotification, resize(-16)},
		{CongestionNotification, RefusedNotification, put(flags, 0x10)},
		{RCSendFirst, RefusedPad, put(flags, 0x10)},
		{UCWriteMiddle, RefusedPad, put(flags, 0x30)},
		{RCReadResponseMiddle, RefusedPad, put(flags, 0x10)},
		{RCReadRequest, RefusedPad, put(flags, 0x10)},
		{RCAcknowledge, RefusedPad, both(resize(4), put(flags, 0x30))},
		{RCSendOnly, RefusedPad, both(resize(-8), put(flags, 0x10))},
		{RCReadRequest, RefusedPayload, resize(4)},
		{RCAcknowledge, RefusedPayload, resize(256)},
		{RCCompareSwap, RefusedPayload, resize(4)},
		{RCSendLast, RefusedEmpty, both(resize(-8), put(flags, 0))},
		{UCWriteLastImmediate, RefusedEmpty, both(resize(-8), put(flags, 0))},
		{RCReadResponseLast, RefusedEmpty, both(resize(-8), put(flags, 0))},
		{RCSendFirst, RefusedPathMTU, resize(-4)},
		{RCSendMiddle, RefusedPathMTU, resize(-256)},
		{RCWriteFirst, RefusedPathMTU, resize(4)},
		{RCSendMiddle, RefusedPathMTU, resize(-128)},
		{RCSendOnly, RefusedPathMTU, resize(MaxPayload)},
		{RCWriteOnly, RefusedMessage, put(BTHSize+rethAtLength, 0, 0, 0, 5)},
		{RCWriteOnlyImmediate, RefusedMessage, put(BTHSize+rethAtLength, 0, 0, 0, 7)},
		{RCWriteOnly, RefusedMessage, put(BTHSize+rethAtLength, 1)},
		{RCWriteFirst, RefusedMessage, put(BTHSize+rethAtLength, 0, 0, 1, 0)},
		{UCWriteFirst, RefusedMessage, put(BTHSize+rethAtLength, 0x80, 0, 0, 1)},
		{RCReadRequest, RefusedMessage, put(BTHSize+rethAtLength, 0x80, 0, 0, 1)},

		{RCSendOnly, Accepted, put(bthAtPKey, 0x7f)},
		{RCSendOnly, Accepted, put(bthAtCongestion, 0xff)},
		{RCSendOnly, Accepted, put(bthAtAck, 0xff)},
		{RCAcknowledge, Accepted, put(BTHSize, byte(NAKInvalidRD))},
		{RCReadRequest, Accepted, put(BTHSize+rethAtLength, 0x80, 0, 0, 0)},
		{RCWriteFirst, Accepted, put(BTHSize+rethAtLength, 0, 0, 1, 1)},
		{RCSendOnly, Accepted, both(resize(-8), put(flags, 0))},
		{RCSendFirst, Accepted, resize(256)},
		{RCSendOnly, Accepted, resize(MaxPayload - 8)},
	} {
		b := c.edit(encodePacket(samplePacket(c.op)))
		before := bytes.Clone(b)
		var p Packet
		got := p.Decode(b, DefaultPKey)
		if got != c.want {
			t.Errorf("%v: %v, want %v:\n%s", c.op, got, c.want, dump(b[:min(len(b), 64)]))
		}
		if !bytes.Equal(b, before) {
			t.Errorf("%v: decoding changed the packet", c.op)
		}
		if got.IsInvalidRequest() && (p.PSN != 0xfffffe || p.DestQP != 0x123456) {
			t.Errorf("%v: refused as %v with BTH %+v", c.op, got, p.BTH)
		}
		seen[got] = true
	}
	for r := Accepted; r < RefusedMAD; r++ {
		if !seen[r] && r != RefusedICRC {
			t.Errorf("no packet is refused because of %q", r)
		}
	}
}

// IsInvalidRequest holds for decoding errors behind a valid BTH, not for a
// wrong ICRC.
func TestInvalidRequests(t *testing.T) {
	for r := range NumRefusals {
		want := r >= RefusedPad && r <= RefusedMessage
		if r.IsInvalidRequest() != want || r.String() == "" {
			t.Errorf("%v: %v", r, r.IsInvalidRequest())
		}
	}
	if s := NumRefusals.String(); s != "refusal-19" {
		t.Error(s)
	}
}

func TestMessageRefusals(t *testing.T) {
	for _, s := range sampleMessages() {
		for _, c := range []struct {
			name string
			want Refusal
			edit edit
		}{
			{"empty", RefusedMAD, cut(0)},
			{"short", RefusedMAD, cut(MADSize - 1)},
			{"long", RefusedMAD, resize(1)},
			{"base version", RefusedMAD, put(madAtBaseVersion, 2)},
			{"class", RefusedMAD, put(madAtClass, 3)},
			{"class version", RefusedMAD, put(madAtClassVersion, 1)},
			{"method", RefusedMAD, put(madAtMethod, 1)},
			{"attribute below", RefusedAttribute, put(madAtAttribute, 0, 0x0f)},
			{"attribute above", RefusedAttribute, put(madAtAttribute, 0, 0x17)},
			{"attribute far above", RefusedAttribute, put(madAtAttribute, 1, 0x10)},
			{"status", Accepted, put(madAtStatus, 1)},
			{"specific", Accepted, put(madAtSpecific, 1)},
			{"modifier", Accepted, put(madAtModifier, 1)},
		} {
			b := c.edit(encodeMessage(s.msg))
			if got := fresh(s.msg).Decode(b); got != c.want {
				t.Errorf("%s: %s: %v, want %v", s.name, c.name, got, c.want)
			}
			if _, _, got := PeekMAD(b); got != c.want {
				t.Errorf("%s: %s: peek says %v, want %v", s.name, c.name, got, c.want)
			}
		}
		for _, other := range sampleMessages() {
			want := Accepted
			if other.name != s.name {
				want = RefusedAttribute
			}
			if got := fresh(s.msg).Decode(encodeMessage(other.msg)); got != want {
				t.Errorf("%s read as %s: %v", other.name, s.name, got)
			}
		}
	}
}

func TestAddressHeaderRefusals(t *testing.T) {
	h := CMA{1, sampleSrc.Addr(), sampleDst.Addr()}
	for _, c := range []struct {
		name string
		want Refusal
		edit edit
	}{
		{"short", RefusedPrivate, cut(CMASize - 1)},
		{"version", RefusedPrivate, put(cmaAtVersion, 1)},
		{"IP version 0", RefusedPrivate, put(cmaAtIPVersion, 0)},
		{"IP version 5", RefusedPrivate, put(cmaAtIPVersion, 0x5f)},
		{"IPv4", Accepted, put(cmaAtIPVersion, 0x4f)},
		{"IPv6", Accepted, put(cmaAtIPVersion, 0x60)},
	} {
		b := make([]byte, CMASize)
		h.Encode(b)
		var got CMA
		if r := got.Decode(c.edit(b)); r != c.want {
			t.Errorf("%s: %v, want %v", c.name, r, c.want)
		}
	}
}

func TestPKeys(t *testing.T) {
	for _, c := range []struct {
		a, b uint16
		want bool
	}{
		{0xffff, 0xffff, true},
		{0xffff, 0x7fff, true},
		{0x7fff, 0x7fff, false}, // two limited members
		{0x8001, 0x0001, true},
		{0x8001, 0x8002, false},
		{0x8000, 0x8000, false}, // no partition
	} {
		if got := MatchPKey(c.a, c.b); got != c.want || MatchPKey(c.b, c.a) != c.want {
			t.Errorf("%#x and %#x: %v", c.a, c.b, got)
		}
	}
}

func TestPutOfAnUnknownOpcode(t *testing.T) {
	defer func() {
		if recover() == nil {
			t.Error("a packet without a meaning was written")
		}
	}()
	(&Packet{BTH: BTH{Opcode: 0x15}}).Put(make([]byte, MaxHeader), 0)
}
