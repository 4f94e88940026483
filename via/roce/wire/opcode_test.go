package wire

import "testing"

// The columns of the opcode table agree with each other.
func TestOpcodeTableAgreesWithItself(t *testing.T) {
	sizes := []struct {
		extension Extensions
		size      int
	}{
		{ExtDETH, DETHSize},
		{ExtRETH, RETHSize},
		{ExtAtomicETH, AtomicETHSize},
		{ExtAETH, AETHSize},
		{ExtAtomicAckETH, AtomicAckETHSize},
		{ExtImmDt, ImmDtSize},
		{ExtIETH, IETHSize},
	}
	longest := 0
	for _, op := range known() {
		info := opcodes[op]
		want := BTHSize
		for _, s := range sizes {
			if info.extensions&s.extension != 0 {
				want += s.size
			}
		}
		longest = max(longest, want)
		if op.HeaderSize() != want || want%4 != 0 {
			t.Errorf("%v: header of %d bytes, want %d", op, op.HeaderSize(), want)
		}
		single := Start | End
		switch {
		case info.payload == payloadFull && info.flags&End != 0:
			t.Errorf("%v: the last packet is full", op)
		case info.payload == payloadSome && info.flags&single != End:
			t.Errorf("%v: the only packet cannot be empty", op)
		case info.payload == payloadAny && info.flags&single != single:
			t.Errorf("%v: one of several may be empty", op)
		case info.flags&Completes != 0 && info.flags&End == 0:
			t.Errorf("%v: completes before the end", op)
		case info.flags&Response != 0 && op.Class() != RC:
			t.Errorf("%v: response on an unreliable service", op)
		case info.extensions&ExtAETH != 0 && info.flags&Response == 0:
			t.Errorf("%v: verdict without response", op)
		case info.operation == OpNone:
			t.Errorf("%v: does nothing", op)
		}
	}
	if longest != MaxHeader {
		t.Errorf("the longest header has %d bytes, MaxHeader is %d", longest, MaxHeader)
	}
}

// UC has the Sends and Writes of RC.
func TestUnreliableRowsAreReliableOnes(t *testing.T) {
	n := 0
	for op := UCSendFirst; op <= UCWriteOnlyImmediate; op++ {
		reliable, unreliable := opcodes[op&0x1f], opcodes[op]
		if reliable.name[2:] != unreliable.name[2:] || op.Class() != UC {
			t.Errorf("%v is not %s", op, reliable.name)
		}
		reliable.name, unreliable.name = "", ""
		if reliable != unreliable {
			t.Errorf("%v: %+v, want %+v", op, unreliable, reliable)
		}
		n++
	}
	if n != 12 {
		t.Errorf("%d opcodes", n)
	}
}

func TestUnknownOpcode(t *testing.T) {
	const op Opcode = 0x5f
	if op.IsKnown() || op.HeaderSize() != 0 || op.Operation() != OpNone ||
		op.Class() != RD || op.Flags() != 0 || op.Extensions() != 0 ||
		op.String() != "opcode-0x5f" {
		t.Errorf("%v is known", op)
	}
}
