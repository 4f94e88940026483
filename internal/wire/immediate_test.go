package wire

import (
	"testing"

	"pgregory.net/rapid"
)

func TestImmediateLayout(t *testing.T) {
	for _, c := range []struct {
		t          ImmediateType
		epoch, seq uint32
		slot       uint16
		want       Immediate
	}{
		{ImmOK, 0, 0, 0, 0},
		{ImmOKData, 0x12, 0x345, 0x6789, 0x12456789},
		{ImmKeepAlive, 0xffffffff, 0, 0, 0x2f000000},
		{ImmKeepAliveAck, 0, 0xffffffff, 0, 0x30ff0000},
		{ImmCredit, 1, 0, 16, 0x41000010},
	} {
		got := MakeImmediate(c.t, c.epoch, c.seq, c.slot)
		if got != c.want {
			t.Errorf("MakeImmediate(%v, %#x, %#x, %#x) = %#x, want %#x",
				c.t, c.epoch, c.seq, c.slot, got, c.want)
		}
	}
}

func TestImmediateRoundTrip(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		kind := ImmediateType(rapid.Uint8Range(0, 15).Draw(t, "type"))
		epoch, seq := rapid.Uint32().Draw(t, "epoch"), rapid.Uint32().Draw(t, "seq")
		slot := rapid.Uint16().Draw(t, "slot")
		i := MakeImmediate(kind, epoch, seq, slot)
		if i.Type() != kind || i.Slot() != slot || !i.Matches(epoch, seq) {
			t.Fatalf("%#x: type %v slot %v", uint32(i), i.Type(), i.Slot())
		}
		if i.Epoch() != epoch%16 || i.Seq() != seq%256 {
			t.Fatalf("%#x: epoch %v seq %v", uint32(i), i.Epoch(), i.Seq())
		}
		if i.Matches(epoch+1, seq) || i.Matches(epoch, seq+1) {
			t.Fatalf("%#x matches the next epoch or sequence", uint32(i))
		}
		if i.Valid() != (kind <= ImmCredit) {
			t.Fatalf("%#x: valid %v", uint32(i), i.Valid())
		}
	})
}

func TestImmediateAllocatesNothing(t *testing.T) {
	var sink bool
	n := testing.AllocsPerRun(100, func() {
		i := MakeImmediate(ImmOKData, 3, 5, 7)
		sink = i.Valid() && i.Matches(3, 5)
	})
	if n != 0 || !sink {
		t.Errorf("allocates %v times, matches %v", n, sink)
	}
}
