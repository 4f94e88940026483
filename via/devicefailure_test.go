package via

import (
	"context"
	"fmt"
	"testing"
)

// A device that fails without a link to tell by is known to have failed from
// the first call on that says so.
func TestAdapterTellsOfItsFailure(t *testing.T) {
	failed := fmt.Errorf("scripted: %w", ErrDeviceFailed)
	for name, call := range map[string]func(b *bench) error{
		"register": func(b *bench) error {
			b.p.fail = failed
			_, err := b.nic.RegisterMem(b.mem.Bytes()[:64], b.mem.Attributes())
			return err
		},
		"connect": func(b *bench) error {
			b.p.connect = func(LinkConfig) (Link, []byte, error) { return nil, nil, failed }
			_, err := b.vi.Connect(context.Background(), Address{Host: "peer"})
			return err
		},
		"listen": func(b *bench) error {
			b.p.listen = func(string, func(Incoming)) (Listening, error) { return nil, failed }
			_, err := b.nic.Listen(Address{Host: "here"})
			return err
		},
	} {
		t.Run(name, func(t *testing.T) {
			b := newBench(t, ReliableDelivery)
			b.wants(call(b), ErrDeviceFailed, name)
			if got := b.codes(); len(got) != 1 || got[0] != AsyncCatastrophic {
				t.Errorf("callbacks %v, want one catastrophe", got)
			}
			if s := b.vi.State(); s != StateError {
				t.Errorf("the idle vi is %v", s)
			}
			b.must(b.vi.Disconnect())
			b.wants(call(b), ErrResource, name+" again")
			if got := b.codes(); len(got) != 1 {
				t.Errorf("callbacks %v after a second call", got)
			}
		})
	}
}
