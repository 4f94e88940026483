package wire

import (
	"bytes"
	"errors"
	"testing"
)

func BenchmarkCommandEncode(b *testing.B) {
	for _, s := range capsuleSamples()[:4] {
		c := s.msg.(*inlineCommand).Command
		b.Run(s.name, func(b *testing.B) {
			buf := make([]byte, MaxHeader)
			b.ReportAllocs()
			for b.Loop() {
				c.Seq++
				c.Encode(buf)
			}
		})
	}
}

func BenchmarkCommandDecode(b *testing.B) {
	for _, s := range capsuleSamples()[:4] {
		msg := mustEncode(s.msg)
		b.Run(s.name, func(b *testing.B) {
			var c Command
			b.ReportAllocs()
			for b.Loop() {
				if err := c.Decode(msg); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

func TestCommandAllocatesNothing(t *testing.T) {
	buf := make([]byte, MaxHeader+4096)
	for _, s := range capsuleSamples()[:7] {
		msg := mustEncode(s.msg)
		c := s.msg.(*inlineCommand).Command
		bad := append([]byte(nil), msg...)
		bad[commandAtOffset] ^= 1
		var got Command
		for name, f := range map[string]func(){
			"encode": func() { c.Encode(buf) },
			"decode": func() {
				if err := got.Decode(msg); err != nil {
					t.Fatal(err)
				}
			},
			"split": func() {
				if err := got.DecodeSplit(msg[:HeaderSize], msg[HeaderSize:]); err != nil {
					t.Fatal(err)
				}
			},
			"inline": func() { got.Inline(msg) },
			"refuse": func() {
				if !errors.Is(got.Decode(bad), ErrCorrupt) {
					t.Fatal("accepted a damaged header")
				}
			},
			"peek": func() {
				if _, err := PeekKind(msg); err != nil {
					t.Fatal(err)
				}
			},
		} {
			if name == "inline" {
				if err := got.Decode(msg); err != nil {
					t.Fatal(err)
				}
			}
			if n := testing.AllocsPerRun(100, f); n != 0 {
				t.Errorf("%s: %s allocates %v times", s.name, name, n)
			}
		}
	}
}

// An inline write goes through Inline on both sides, shares memory, and cannot
// be grown over what follows it in the buffer.
func TestInlinePayloadSharesTheMessage(t *testing.T) {
	buf := bytes.Repeat([]byte{0xee}, 256)
	c := Command{Opcode: OpWrite, Mode: ModeInline, Length: 10, InlineLength: 10}
	n := c.Encode(buf)
	if got := copy(c.Inline(buf), "0123456789abc"); got != 10 {
		t.Fatalf("sender's payload has %d bytes", got)
	}
	msg := buf[:n+10]
	var d Command
	if err := d.Decode(msg); err != nil {
		t.Fatal(err)
	}
	in := d.Inline(msg)
	if string(in) != "0123456789" || cap(in) != 10 {
		t.Fatalf("payload %q, capacity %d", in, cap(in))
	}
	in[0] = 'x'
	if msg[HeaderSize] != 'x' || buf[n+10] != 0xee {
		t.Fatal("payload does not share the message")
	}
}

func TestCommandInTwoBuffers(t *testing.T) {
	for _, s := range capsuleSamples()[:7] {
		msg := mustEncode(s.msg)
		var whole, split Command
		if err := whole.Decode(msg); err != nil {
			t.Fatal(err)
		}
		head := append([]byte(nil), msg[:HeaderSize]...)
		tail := append([]byte(nil), msg[HeaderSize:]...)
		if err := split.DecodeSplit(head, tail); err != nil {
			t.Fatal(err)
		}
		if whole != split {
			t.Errorf("%s: split %+v, whole %+v", s.name, split, whole)
		}
	}
	var c Command
	if err := c.DecodeSplit(make([]byte, 63), nil); !errors.Is(err, ErrShort) {
		t.Errorf("short head: %v", err)
	}
	if err := c.DecodeSplit(make([]byte, 65), nil); !errors.Is(err, ErrShort) {
		t.Errorf("long head: %v", err)
	}
}

// The receiver of an unknown command can answer it.
func TestUnknownCommandCanBeAnswered(t *testing.T) {
	for _, op := range []Opcode{OpCompareWrite, 0x20, 0x3f} {
		sent := Command{
			Opcode: op, Flags: 0xff, Mode: 99, Slot: 1, Export: 2,
			Seq: 3, PathEpoch: 4, InlineLength: 1 << 30,
		}
		msg := make([]byte, HeaderSize)
		sent.Encode(msg)
		var c Command
		if err := c.Decode(msg); !errors.Is(err, ErrUnknownOpcode) {
			t.Fatalf("opcode %v: %v", op, err)
		}
		if c.Opcode != op || c.Slot != 1 || c.Export != 2 || c.Seq != 3 || c.PathEpoch != 4 {
			t.Errorf("opcode %v: decoded %+v", op, c)
		}
		if got, err := PeekKind(msg); got != op || !errors.Is(err, ErrUnknownOpcode) {
			t.Errorf("PeekKind: %v, %v", got, err)
		}
		if !op.IsCommand() {
			t.Errorf("%v is not in the range of commands", op)
		}
	}
}

func TestEncodePanicsOnMisuse(t *testing.T) {
	for name, f := range map[string]func(){
		"too many segments": func() {
			(&Command{NumSegments: 5}).Encode(make([]byte, 256))
		},
		"short buffer": func() { (&Command{}).Encode(make([]byte, 63)) },
		"no room for segments": func() {
			(&Command{NumSegments: 2}).Encode(make([]byte, 79))
		},
		"short reply": func() { (&Reply{}).Encode(make([]byte, 63)) },
	} {
		func() {
			defer func() {
				if recover() == nil {
					t.Errorf("%s: no panic", name)
				}
			}()
			f()
		}()
	}
}
