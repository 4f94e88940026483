package via

import (
	"context"
	"io/fs"
	"slices"
	"testing"
)

// discovering is a scripted provider with discovery.
type discovering struct {
	*scriptedProvider
	discover func(ctx context.Context, hops int) ([]DiscoveredHost, error)
}

func (d discovering) Open(string) (Adapter, error) { return d, nil }

func (d discovering) DiscoverHosts(ctx context.Context, hops int) ([]DiscoveredHost, error) {
	return d.discover(ctx, hops)
}

func TestDiscover(t *testing.T) {
	expired, cancel := context.WithCancel(context.Background())
	cancel()
	want := []DiscoveredHost{{"a", 1}, {"b", 7}}
	none := func(_ context.Context, hops int) ([]DiscoveredHost, error) {
		t.Errorf("asked for %d hops", hops)
		return nil, nil
	}
	for _, c := range []struct {
		name     string
		ctx      context.Context
		hops     int
		discover func(context.Context, int) ([]DiscoveredHost, error)
		code     error
	}{
		{"found", context.Background(), 7, func(_ context.Context, hops int) ([]DiscoveredHost, error) {
			if hops != 7 {
				t.Errorf("asked for %d hops, want 7", hops)
			}
			return want, nil
		}, nil},
		{"no hop", context.Background(), 0, none, ErrInvalidParameter},
		{"negative", context.Background(), -1, none, ErrInvalidParameter},
		{"not supported", context.Background(), 1, nil, ErrNotSupported},
		{"fails", context.Background(), 1, func(context.Context, int) ([]DiscoveredHost, error) { return nil, fs.ErrPermission }, fs.ErrPermission},
		{"expires", expired, 1, func(ctx context.Context, _ int) ([]DiscoveredHost, error) { return nil, ctx.Err() }, ErrTimeout},
	} {
		t.Run(c.name, func(t *testing.T) {
			b := bench{t: t}
			var p Provider = newScripted()
			if c.discover != nil {
				p = discovering{newScripted(), c.discover}
			}
			nic, err := OpenNic(p, "")
			b.must(err)
			got, err := nic.Discover(c.ctx, c.hops)
			if c.code == nil {
				b.must(err)
				if !slices.Equal(got, want) {
					t.Errorf("discover %v, want %v", got, want)
				}
				return
			}
			b.wants(err, c.code, "discover")
			b.must(nic.Close())
			_, err = nic.Discover(context.Background(), 1)
			b.wants(err, ErrInvalidParameter, "discover from a closed nic")
		})
	}
}
