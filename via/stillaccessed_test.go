package via

import (
	"context"
	"errors"
	"fmt"
	"testing"
)

// The error of a link whose peer may be inside a copy reaches the consumer by
// the next Disconnect, once, however the connection ended; other errors of a
// link that is given up do not.
func TestDisconnectTellsOfAccess(t *testing.T) {
	inside := fmt.Errorf("pid 7: %w", ErrStillAccessed)
	for name, end := range map[string]func(b *bench){
		"connected": func(*bench) {},
		"broken": func(b *bench) {
			b.report(Done{Event: &Event{Owner: b.vi, Code: AsyncConnectionLost, Broken: true}})
			b.poll()
		},
		"device failed": func(b *bench) {
			b.report(Done{Event: &Event{Owner: b.vi, Code: AsyncCatastrophic}})
			b.poll()
		},
	} {
		t.Run(name, func(t *testing.T) {
			for _, c := range []struct{ closing, want error }{{inside, ErrStillAccessed}, {errors.New("socket"), nil}, {nil, nil}} {
				b := newBench(t, ReliableDelivery)
				b.connect()
				b.link.inside = c.closing
				end(b)
				b.wants(b.vi.Disconnect(), c.want, "disconnect")
				if s := b.vi.State(); s != StateIdle || b.link.closed != 1 {
					t.Errorf("the vi is %v, its link was closed %d times", s, b.link.closed)
				}
				b.wants(b.vi.Disconnect(), nil, "disconnect again")
			}
		})
	}
}

// An attempt that fails after the peer got its link tells of it as well.
func TestFailedAttemptTellsOfAccess(t *testing.T) {
	b := newBench(t, ReliableDelivery)
	link := &scriptedLink{inside: ErrStillAccessed}
	b.p.connect = func(LinkConfig) (Link, []byte, error) {
		return link, encodeHello(hello{attrs: ViAttributes{Reliability: ReliableReception}}), nil
	}
	_, err := b.vi.Connect(context.Background(), Address{})
	b.wants(err, ErrStillAccessed, "connect to a peer that does not match")
	b.wants(err, ErrInvalidReliability, "connect to a peer that does not match")

	link = &scriptedLink{inside: ErrStillAccessed, fail: ErrResource}
	b.p.connect = func(LinkConfig) (Link, []byte, error) { return link, encodeHello(hello{attrs: b.vi.attrs}), nil }
	if _, err := b.vi.Connect(context.Background(), Address{}); err == nil {
		t.Fatal("connected by a link that does not start")
	}
	b.wants(b.vi.Disconnect(), ErrStillAccessed, "disconnect")
}

func TestAccessed(t *testing.T) {
	b := newBench(t, ReliableDelivery)
	b.p.inside = true
	if !b.mem.Accessed() {
		t.Error("the adapter's answer is lost")
	}
	b.must(b.mem.Deregister())
	if !b.mem.Accessed() {
		t.Error("the answer is lost for a region that was deregistered")
	}
	if b.p.inside = false; b.mem.Accessed() || (*Memory)(nil).Accessed() {
		t.Error("memory is accessed that is not")
	}
}
