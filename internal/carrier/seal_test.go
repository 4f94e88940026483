package carrier_test

import (
	"bytes"
	"errors"
	"reflect"
	"testing"
	"time"

	"github.com/viablk/viablk/internal/carrier"
	"github.com/viablk/viablk/internal/seal"
)

// sealing returns how an end of a connection seals and opens.
func sealing(t testing.TB, conn uint16, end seal.End) (*seal.Sealer, *seal.Opener) {
	t.Helper()
	keys, err := seal.NewSession(make([]byte, seal.ExportSize), [32]byte{1}, [32]byte{2}, [16]byte{3}, seal.Limits{})
	must(t, err)
	s, o, err := keys.Conn(conn, 1, [32]byte{4}, [32]byte{5}, end)
	must(t, err)
	return s, o
}

// seal has both ends seal from now on.
func (p *pair) seal() {
	p.a.Seal(sealing(p.t, 1, seal.Initiator))
	p.b.Seal(sealing(p.t, 1, seal.Target))
}

// pass sends n bytes from one end to the other and returns what was opened.
func (p *pair) pass(from, to *carrier.Carrier, n int) ([]byte, error) {
	p.t.Helper()
	s := from.AcquireLargeSend(n)
	for i := range s.Head[:n] {
		s.Head[i] = byte(i*7 + n)
	}
	must(p.t, from.StageMessage(s, n, carrier.Span{}))
	from.Doorbell()
	e := next(p.t, to)
	r := to.Arrived(&e)
	if reflect.ValueOf(r.Data).Pointer()%4096 != 0 {
		p.t.Error("data is not page-aligned")
	}
	length, err := to.Open(r, e.Length)
	got := append(bytes.Clone(r.Head), r.Data...)[:length]
	must(p.t, to.Post(r))
	sent(p.t, from)
	return got, err
}

func wantMessage(t testing.TB, got []byte, n int) {
	t.Helper()
	want := make([]byte, n)
	for i := range want {
		want[i] = byte(i*7 + n)
	}
	if !bytes.Equal(got, want) {
		t.Errorf("a message of %d bytes arrives as another of %d", n, len(got))
	}
}

// TestSealedMessages: messages of every length arrive, whether their receive
// was posted before or after Seal, and in clear before it.
func TestSealedMessages(t *testing.T) {
	p := newSealablePair(t)
	lengths := []int{0, 1, 63, 64, 65, 4096, data, data + 64}
	for _, n := range lengths {
		got, err := p.pass(p.a, p.b, n)
		must(t, err)
		wantMessage(t, got, n)
	}
	p.seal()
	for range 2 * receives {
		for _, n := range lengths {
			got, err := p.pass(p.a, p.b, n)
			must(t, err)
			wantMessage(t, got, n)
			got, err = p.pass(p.b, p.a, n)
			must(t, err)
			wantMessage(t, got, n)
		}
	}
	if a, b := p.a.Traffic(), p.b.Traffic(); a.SealedBytes == 0 || a.SealedBytes != b.SealedBytes || a.Forged+b.Forged != 0 {
		t.Errorf("traffic %+v and %+v", a, b)
	}
}

// TestLongMessageInClear: a message that a receive holds only because it has
// room for a seal is refused.
func TestLongMessageInClear(t *testing.T) {
	p := newSealablePair(t)
	if _, err := p.pass(p.a, p.b, data+65); err == nil {
		t.Error("a message beyond the data is taken")
	}
}

// TestForgedMessage: a message in clear, or sealed for another place in the
// order, is not opened.
func TestForgedMessage(t *testing.T) {
	for name, spoil := range map[string]func(*pair){
		"in clear": func(p *pair) { p.a.Seal(nil, nil) },
		"other order": func(p *pair) {
			_, _, err := p.a.Sealer().Capsule(make([]byte, seal.Overhead), 0)
			must(p.t, err)
		},
		"other connection": func(p *pair) { p.a.Seal(sealing(p.t, 2, seal.Initiator)) },
		"other direction":  func(p *pair) { p.a.Seal(sealing(p.t, 1, seal.Target)) },
	} {
		t.Run(name, func(t *testing.T) {
			p := newSealablePair(t)
			p.seal()
			spoil(p)
			if _, err := p.pass(p.a, p.b, 64); !errors.Is(err, seal.ErrForged) {
				t.Errorf("opened with %v", err)
			}
			if n := p.b.Traffic().Forged; n != 1 {
				t.Errorf("%d forged", n)
			}
		})
	}
}

// TestNothingLeavesInClear: a sealed connection sends no immediate, and no
// payload that is not in the sealed head.
func TestNothingLeavesInClear(t *testing.T) {
	p := newSealablePair(t)
	p.seal()
	s := p.a.AcquireSend()
	for what, err := range map[string]error{
		"immediate":            p.a.StageImmediate(s, 1),
		"write with immediate": p.a.StageWriteImmediate(s, carrier.Span{}, 0, 0, 1),
		"payload":              p.a.StageMessage(s, 64, carrier.Span{Length: 1}),
	} {
		if err == nil {
			t.Errorf("%s leaves in clear", what)
		}
	}
	p.a.FreeSend(s)
}

// TestAge: keys of an hour seal one more message, and the peer follows.
func TestAge(t *testing.T) {
	p := newSealablePair(t)
	now := time.Unix(1000, 0)
	p.a.Age(now) // in clear
	if p.a.Generation() != 0 {
		t.Error("a carrier in clear has keys")
	}
	p.seal()
	for generation := range uint64(4) {
		for _, later := range []time.Duration{0, time.Hour - 1, 1, 0} {
			now = now.Add(later)
			p.a.Age(now)
			if got := p.a.Generation(); got != generation+1 {
				t.Fatalf("generation %d, not %d", got, generation+1)
			}
		}
		got, err := p.pass(p.a, p.b, 64)
		must(t, err)
		wantMessage(t, got, 64)
	}
}

// TestRenewedInClear: after Renew the next connection begins in clear.
func TestRenewedInClear(t *testing.T) {
	p := newSealablePair(t)
	p.seal()
	_, err := p.pass(p.a, p.b, 64)
	must(t, err)
	p.a.Disconnect()
	must(t, p.a.Renew(nil))
	if p.a.Sealed() || !p.b.Sealed() {
		t.Error("a renewed carrier is sealed")
	}
}

// TestSealedExchangeAllocates nothing.
func TestSealedExchangeAllocatesNothing(t *testing.T) {
	p := newSealablePair(t)
	p.seal()
	run := func() {
		s := p.a.AcquireSend()
		_ = p.a.StageMessage(s, 64, carrier.Span{})
		p.a.Doorbell()
		for k := 0; k < 2; {
			for _, c := range []*carrier.Carrier{p.a, p.b} {
				n := c.Poll(p.done[:])
				for i := range p.done[:n] {
					e := &p.done[i]
					if !e.Recv {
						c.FreeSend(c.Sent(e))
						continue
					}
					r := c.Arrived(e)
					if _, err := c.Open(r, e.Length); err != nil {
						t.Fatal(err)
					}
					_ = c.Post(r)
				}
				k += n
			}
		}
	}
	if n := testing.AllocsPerRun(500, run); n != 0 {
		t.Errorf("%v allocations a message", n)
	}
}
