package wire

import (
	"errors"
	"testing"
)

func replySamples() []sample { return capsuleSamples()[7:] }

func BenchmarkReplyEncode(b *testing.B) {
	r := replySamples()[0].msg.(*inlineReply).Reply
	buf := make([]byte, HeaderSize)
	b.ReportAllocs()
	for b.Loop() {
		r.Seq++
		r.Encode(buf)
	}
}

func BenchmarkReplyDecode(b *testing.B) {
	msg := mustEncode(replySamples()[0].msg)
	var r Reply
	b.ReportAllocs()
	for b.Loop() {
		if err := r.Decode(msg); err != nil {
			b.Fatal(err)
		}
	}
}

func TestReplyAllocatesNothing(t *testing.T) {
	for _, s := range replySamples() {
		msg := mustEncode(s.msg)
		r := s.msg.(*inlineReply).Reply
		buf := make([]byte, HeaderSize)
		bad := append([]byte(nil), msg...)
		bad[replyAtStatus] ^= 1
		var got Reply
		for name, f := range map[string]func(){
			"encode": func() { r.Encode(buf) },
			"decode": func() {
				if err := got.Decode(msg); err != nil {
					t.Fatal(err)
				}
				got.Inline(msg)
			},
			"split": func() {
				if err := got.DecodeSplit(msg[:HeaderSize], msg[HeaderSize:]); err != nil {
					t.Fatal(err)
				}
			},
			"refuse": func() {
				if !errors.Is(got.Decode(bad), ErrCorrupt) {
					t.Fatal("accepted a damaged header")
				}
			},
		} {
			if n := testing.AllocsPerRun(100, f); n != 0 {
				t.Errorf("%s: %s allocates %v times", s.name, name, n)
			}
		}
	}
}

func TestReplyInTwoBuffers(t *testing.T) {
	for _, s := range replySamples() {
		msg := mustEncode(s.msg)
		var whole, split Reply
		if err := whole.Decode(msg); err != nil {
			t.Fatal(err)
		}
		if err := split.DecodeSplit(msg[:HeaderSize], msg[HeaderSize:]); err != nil {
			t.Fatal(err)
		}
		if whole != split {
			t.Errorf("%s: split %+v, whole %+v", s.name, split, whole)
		}
	}
	var r Reply
	if err := r.DecodeSplit(make([]byte, 63), nil); !errors.Is(err, ErrShort) {
		t.Errorf("short head: %v", err)
	}
}

// Encoding overwrites whatever the buffer held, reserved bytes included.
func TestEncodeLeavesNothingStale(t *testing.T) {
	for _, s := range samples() {
		want := mustEncode(s.msg)
		dirty := make([]byte, MaxControlSize)
		for i := range dirty {
			dirty[i] = 0xa5
		}
		n, err := s.msg.Encode(dirty)
		if err != nil {
			t.Fatal(err)
		}
		if string(dirty[:n]) != string(want) {
			t.Errorf("%s: stale bytes:\n%swant:\n%s", s.name, dump(dirty[:n]), dump(want))
		}
	}
}
