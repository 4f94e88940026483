package initiator_test

import (
	"context"
	"sync/atomic"
	"testing"

	"github.com/viablk/viablk/internal/block"
	"github.com/viablk/viablk/target"
	"github.com/viablk/viablk/via"
	"github.com/viablk/viablk/via/shm"
)

// disarmProvider counts how often its queues are disarmed.
type disarmProvider struct {
	via.Provider
	disarms *atomic.Int32
}

func (p disarmProvider) Open(device string) (via.Adapter, error) {
	a, err := p.Provider.Open(device)
	return disarmAdapter{a, p.disarms}, err
}

type disarmAdapter struct {
	via.Adapter
	disarms *atomic.Int32
}

func (a disarmAdapter) NewCQ(entries int) (via.AdapterCQ, error) {
	q, err := a.Adapter.NewCQ(entries)
	return disarmCQ{q, a.disarms}, err
}

func (a disarmAdapter) Connect(ctx context.Context, host string, hello []byte, cfg via.LinkConfig) (via.Link, []byte, error) {
	cfg.SendCQ, cfg.RecvCQ = cfg.SendCQ.(disarmCQ).AdapterCQ, cfg.RecvCQ.(disarmCQ).AdapterCQ
	return a.Adapter.Connect(ctx, host, hello, cfg)
}

type disarmCQ struct {
	via.AdapterCQ
	disarms *atomic.Int32
}

func (q disarmCQ) Disarm() {
	q.disarms.Add(1)
	q.AdapterCQ.(via.Disarmer).Disarm()
}

// TestSubmitDisarms: the first request after Arm tells the fabric that the
// owner is awake, and later ones do not.
func TestSubmitDisarms(t *testing.T) {
	r := newRemote(t, target.Config{}, "memory:16MiB")
	must(t, r.nic.Close())
	var disarms atomic.Int32
	var err error
	r.nic, err = via.OpenNic(disarmProvider{shm.New(shm.Options{}), &disarms}, "")
	must(t, err)
	q, err := r.dial(t, "a", nil).NewQueue(8)
	must(t, err)
	var done [8]*block.Request
	for range 3 {
		for _, ok := q.Arm(); !ok; _, ok = q.Arm() {
			q.Reap(done[:])
		}
		before := disarms.Load()
		var requests [4]block.Request
		for i := range requests {
			requests[i] = block.Request{Op: block.Read, Offset: int64(i) << 12, Length: 4096, Data: make([]byte, 4096)}
			if !q.Submit(&requests[i]) {
				t.Fatal("no room")
			}
		}
		if n := disarms.Load() - before; n != 1 {
			t.Errorf("disarmed %d times", n)
		}
		q.Kick()
		for n := 0; n < len(requests); {
			n += q.Reap(done[:])
		}
	}
	must(t, q.Close())
}
