package initiator_test

import (
	"context"
	"sync/atomic"
	"testing"
	"time"

	"github.com/viablk/viablk/initiator"
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

// newDisarmRemote serves a disk of 16 MiB to a NIC whose disarms are counted.
func newDisarmRemote(t *testing.T) (*remote, *atomic.Int32) {
	r := newRemote(t, target.Config{}, "memory:16MiB")
	must(t, r.nic.Close())
	disarms := new(atomic.Int32)
	var err error
	r.nic, err = via.OpenNic(disarmProvider{shm.New(shm.Options{}), disarms}, "")
	must(t, err)
	return r, disarms
}

// sleep arms a queue as its owner does before it sleeps.
func sleep(q block.Queue) {
	var done [8]*block.Request
	for _, ok := q.Arm(); !ok; _, ok = q.Arm() {
		q.Reap(done[:])
	}
}

// TestSubmitDisarms: the first request after Arm tells the fabric that the
// owner is awake, and later ones do not.
func TestSubmitDisarms(t *testing.T) {
	r, disarms := newDisarmRemote(t)
	q, err := r.dial(t, "a", nil).NewQueue(8)
	must(t, err)
	var done [8]*block.Request
	for range 3 {
		sleep(q)
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

// TestSubmitAfterLossDisarmsNothing: the connection of a queue that slept when
// it was lost belongs to the goroutine that connects it again.
func TestSubmitAfterLossDisarmsNothing(t *testing.T) {
	r, disarms := newDisarmRemote(t)
	d := r.dial(t, "a", func(c *initiator.Config) { c.LossTimeout = initiator.Forever })
	q, err := d.NewQueue(8)
	must(t, err)
	var done [8]*block.Request
	sleep(q)
	r.stop()
	for q.(*initiator.Queue).Err() == nil {
		q.Reap(done[:])
	}
	before := disarms.Load()
	if !q.Submit(&block.Request{Op: block.Read, Length: 4096, Data: make([]byte, 4096)}) {
		t.Fatal("no room")
	}
	if n := disarms.Load() - before; n != 0 {
		t.Errorf("disarmed a lost connection %d times", n)
	}
	r.start(t)
	q.Kick()
	for q.Reap(done[:]) == 0 {
		time.Sleep(time.Millisecond)
	}
	must(t, q.Close())
}
