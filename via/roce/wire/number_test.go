package wire

import (
	"slices"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"
)

func TestPSNAcrossTheWrap(t *testing.T) {
	for _, c := range []struct {
		p, q PSN
		want int
	}{
		{0, 0, 0},
		{1, 0, 1},
		{0, 1, -1},
		{3, 0xfffffe, 5},
		{0xfffffe, 3, -5},
		{0x7fffff, 0, 1<<23 - 1},
		{0x800000, 0, -1 << 23}, // half the space is behind
		{0x800001, 0, 1 - 1<<23},
	} {
		if got := c.p.Sub(c.q); got != c.want {
			t.Errorf("%#x - %#x is %d, want %d", c.p, c.q, got, c.want)
		}
		if got := MSN(c.p).Sub(MSN(c.q)); got != c.want {
			t.Errorf("MSN: %#x - %#x is %d, want %d", c.p, c.q, got, c.want)
		}
	}
	if !PSN(1).In(0xfffffe, 4) || PSN(2).In(0xfffffe, 4) || PSN(0xfffffd).In(0xfffffe, 4) {
		t.Error("wrong window across the wrap")
	}
	if p := PSN(0xffffff).Add(1); p != 0 {
		t.Errorf("the number after the last is %#x", p)
	}
	if p := PSN(0).Add(-1); p != 0xffffff {
		t.Errorf("the number before 0 is %#x", p)
	}
	if m := MSN(0xffffff).Add(2); m != 1 {
		t.Errorf("MSN after the last: %#x", m)
	}
}

func TestPSNArithmetic(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		p := PSN(rapid.Uint32Range(0, mask24).Draw(t, "psn"))
		n := rapid.IntRange(-1<<23, 1<<23-1).Draw(t, "n")
		q := p.Add(n)
		if q > mask24 || q.Sub(p) != n || q.Before(p) != (n < 0) || q.Add(-n) != p {
			t.Fatalf("%#x + %d = %#x, less %#x is %d", p, n, q, p, q.Sub(p))
		}
		size := rapid.IntRange(0, 1<<24).Draw(t, "size")
		offset := rapid.IntRange(0, 1<<24-1).Draw(t, "offset")
		if got := p.Add(offset).In(p, size); got != (offset < size) {
			t.Fatalf("%d ahead of %#x is in a window of %d: %v", offset, p, size, got)
		}
	})
}

func TestPathMTU(t *testing.T) {
	for _, c := range []struct {
		link int
		want MTU
	}{
		{347, 0},
		{348, MTU256},
		{576, MTU256},
		{1280, MTU1024},
		{1500, MTU1024},
		{2139, MTU1024},
		{2140, MTU2048},
		{4187, MTU2048},
		{4188, MTU4096},
		{4500, MTU4096},
		{9000, MTU4096},
		{65536, MTU4096},
	} {
		got, ok := PathMTU(c.link)
		if got != c.want || ok != got.IsValid() || ok && got.Bytes() > c.link-headroom {
			t.Errorf("link of %d: %v, %v, want %v", c.link, got, ok, c.want)
		}
	}
	if MTU(6).IsValid() {
		t.Error("code 6 is valid")
	}
}

func TestPacketsOfAMessage(t *testing.T) {
	for _, c := range []struct {
		mtu          MTU
		length, want int
	}{
		{MTU256, 0, 1},
		{MTU256, 256, 1},
		{MTU256, 257, 2},
		{MTU1024, 4001, 4},
		{MTU4096, 1 << 20, 256},
		{MTU4096, MaxMessage, 1 << 19},
	} {
		if got := c.mtu.Packets(c.length); got != c.want {
			t.Errorf("%d bytes by %d: %d, want %d", c.length, c.mtu.Bytes(), got, c.want)
		}
	}
}

func TestFitsMTU(t *testing.T) {
	for _, c := range []struct {
		op      Opcode
		payload int
		want    bool
	}{
		{RCSendFirst, 1024, true},
		{RCSendFirst, 512, false},
		{RCSendMiddle, 2048, false},
		{RCSendLast, 1024, true},
		{RCSendLast, 1025, false},
		{RCSendOnly, 0, true},
		{UCWriteOnly, 2048, false},
	} {
		p := Packet{BTH: BTH{Opcode: c.op}, Payload: make([]byte, c.payload)}
		if got := p.FitsMTU(MTU1024); got != c.want {
			t.Errorf("%v with %d bytes: %v", c.op, c.payload, got)
		}
	}
}

func TestTimeouts(t *testing.T) {
	for _, c := range []struct {
		d    time.Duration
		code Timeout
		want time.Duration
	}{
		{0, 0, 4096 * time.Nanosecond},
		{4096 * time.Nanosecond, 0, 4096 * time.Nanosecond},
		{4097 * time.Nanosecond, 1, 8192 * time.Nanosecond},
		{67 * time.Millisecond, 14, 67108864 * time.Nanosecond},
		{time.Second, 18, 1073741824 * time.Nanosecond},
		{4 * time.Second, 20, 4294967296 * time.Nanosecond},
		{24 * time.Hour, 31, 4096 << 31 * time.Nanosecond},
	} {
		got := TimeoutFor(c.d)
		if got != c.code || got.Duration() != c.want {
			t.Errorf("%v: code %d, %v, want %d", c.d, got, got.Duration(), c.code)
		}
	}
}

func TestRNRTimers(t *testing.T) {
	for code := range uint8(32) {
		if got := RNRTimer(RNRDelay(code)); got != code {
			t.Errorf("timer %d is %v, which is timer %d", code, RNRDelay(code), got)
		}
	}
	for _, c := range []struct {
		d    time.Duration
		want Syndrome
	}{
		{0, 0x21},
		{-time.Second, 0x21},
		{10 * time.Microsecond, 0x21},
		{11 * time.Microsecond, 0x22},
		{time.Millisecond, 0x2e},
		{491520 * time.Microsecond, 0x3f},
		{491521 * time.Microsecond, 0x20},
		{time.Hour, 0x20},
	} {
		s := RNR(c.d)
		if s != c.want || s.Kind() != KindRNR || c.d < time.Second/2 && s.Delay() < c.d {
			t.Errorf("%v: %v (%#x), want %#x", c.d, s, uint8(s), uint8(c.want))
		}
	}
}

func TestCredits(t *testing.T) {
	if ACK.Credits() != -1 || ACK.Kind() != KindACK {
		t.Errorf("%v has %d credits", ACK, ACK.Credits())
	}
	rapid.Check(t, func(t *rapid.T) {
		n := rapid.IntRange(0, 40000).Draw(t, "n")
		s := ACKCredits(n)
		if s.Kind() != KindACK || s.Credits() > n || s.Credits() < 0 {
			t.Fatalf("%d receives: %v", n, s)
		}
		if next := s + 1; next != ACK && next.Credits() <= n {
			t.Fatalf("%d receives: %v, though %v fits", n, s, next)
		}
	})
}

func TestSyndromeKinds(t *testing.T) {
	for s := range 256 {
		want := KindReserved
		switch {
		case s < 0x20:
			want = KindACK
		case s < 0x40:
			want = KindRNR
		case s >= 0x60 && s <= 0x64:
			want = KindNAK
		}
		if got := Syndrome(s).Kind(); got != want || Syndrome(s).String() == "" {
			t.Errorf("syndrome %#x is %v (%d), want %d", s, Syndrome(s), got, want)
		}
	}
	for s, want := range map[Syndrome]string{
		ACK: "ACK", 4: "ACK, 4 credits", 0x21: "RNR NAK, 10µs",
		NAKRemoteAccess: "NAK, remote access error", 0x80: "syndrome-0x80",
	} {
		if s.String() != want {
			t.Errorf("%#x is %q, want %q", uint8(s), s, want)
		}
	}
}

func TestReasons(t *testing.T) {
	for r, want := range map[Reason]string{
		0: "reason-0", RejectStale: "stale connection", RejectConsumer: "refused by the consumer",
		33: "invalid flow label of the alternate path", 34: "reason-34", 65535: "reason-65535",
	} {
		if r.String() != want {
			t.Errorf("%d is %q, want %q", uint16(r), r, want)
		}
	}
}

// A reason has the number that the specification gives it.
func TestReasonNumbers(t *testing.T) {
	names := []string{
		"no queue pair left", "no end-to-end context left", "no resources left", "time-out",
		"unsupported request", "unknown communication ID", "unknown communication instance",
		"no listener for the service ID", "unsupported transport service", "stale connection",
		"no reliable datagram channel", "invalid GID", "invalid LID", "invalid service level",
		"invalid traffic class", "invalid hop limit", "invalid packet rate",
		"invalid GID of the alternate path", "invalid LID of the alternate path",
		"invalid service level of the alternate path", "invalid traffic class of the alternate path",
		"invalid hop limit of the alternate path", "invalid packet rate of the alternate path",
		"redirected to another port and manager", "redirected to another port", "invalid path MTU",
		"insufficient responder resources", "refused by the consumer", "invalid RNR retry count",
		"duplicate communication ID", "unsupported class version", "invalid flow label",
		"invalid flow label of the alternate path",
	}
	if len(reasons) != len(names)+1 {
		t.Errorf("%d reasons, want %d", len(reasons)-1, len(names))
	}
	for i, name := range names {
		if got := Reason(i + 1).String(); got != name {
			t.Errorf("reason %d is %q, want %q", i+1, got, name)
		}
	}
}

// The offsets of headers and messages stand in their order, each field begins
// behind the one before, and the last one before the end. The golden files have
// their bytes.
func TestMessageLayoutsAscend(t *testing.T) {
	values := layouts(t)
	for _, prefix := range []string{"bth", "deth", "reth", "aeth", "mad", "req", "path", "cma", "rep", "rtu", "mra", "rej", "dreq", "drep"} {
		var offsets []int
		for name, value := range values {
			if field, ok := strings.CutPrefix(name, prefix+"At"); ok && field != "" {
				offsets = append(offsets, value)
			}
		}
		slices.Sort(offsets)
		size, ok := values[prefix+"Size"]
		if !ok {
			size = values[strings.ToUpper(prefix)+"Size"]
		}
		if len(offsets) < 2 || offsets[0] != 0 || len(slices.Compact(slices.Clone(offsets))) != len(offsets) || offsets[len(offsets)-1] >= size {
			t.Errorf("%s has fields at %v and ends at %d", prefix, offsets, size)
		}
	}
}
