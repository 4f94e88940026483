package roce_test

import (
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/viablk/viablk/via"
	"github.com/viablk/viablk/via/roce"
)

// Disconnections race with data in both directions, the peer's disconnection,
// registrations, and other connections and listeners.
func TestDisconnectRaces(t *testing.T) {
	p := roce.New(loaded)
	x, y := newParty(t, p, ""), newParty(t, p, "")
	host := freePort(t, "127.0.0.1")
	var stop atomic.Bool
	var wait sync.WaitGroup
	wait.Add(1)
	go func() { // registers and deregisters memory
		defer wait.Done()
		for !stop.Load() {
			m, err := y.nic.RegisterMem(y.payload(4<<20, 1<<16), via.MemAttributes{Ptag: y.tag, EnableRdmaWrite: true})
			if err == nil {
				err = m.Deregister()
			}
			if err != nil {
				t.Error(err)
				return
			}
		}
	}()
	for range 40 {
		x.used, y.used = 0, 0
		link(t, host, x.vi, y.vi, y.nic)
		var ends sync.WaitGroup
		for _, z := range [][2]*party{{x, y}, {y, x}} {
			ends.Add(1)
			go func() {
				defer ends.Done()
				churn(z[0], z[1], time.Duration(rand.IntN(2000))*time.Microsecond)
			}()
		}
		ends.Wait()
	}
	stop.Store(true)
	wait.Wait()
	x.close()
	y.close()
}

// churn keeps works in flight for a while, and disconnects in the middle.
func churn(x, peer *party, d time.Duration) {
	for end := time.Now().Add(d); time.Now().Before(end) && x.vi.State() == via.StateConnected; {
		if x.used < 200 {
			_ = x.vi.PostRecv(x.build(via.OpRecv, 0, 9000, nil)) // the queue may be full, or the connection broken
			_ = x.vi.PostSend(x.build(via.OpSend, 10_000, 9000, nil))
			_ = x.vi.PostSend(x.build(via.OpRdmaWrite, 100_000, 70_000, peer))
			_ = x.vi.PostSend(x.build(via.OpRdmaRead, 200_000, 70_000, peer))
		}
		x.cq.Poll(x.batch[:])
		x.cq.Arm()
	}
	if err := x.vi.Disconnect(); err != nil {
		x.tb.Error(err)
	}
	for x.cq.Poll(x.batch[:]) != 0 {
	}
}
