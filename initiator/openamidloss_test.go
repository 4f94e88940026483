package initiator_test

import (
	"sync/atomic"
	"testing"

	"github.com/viablk/viablk/initiator"
	"github.com/viablk/viablk/internal/block"
	"github.com/viablk/viablk/internal/wire"
)

// TestQueueOpensAmidLoss: a queue whose session ends while its connection logs
// in opens in the next session.
func TestQueueOpensAmidLoss(t *testing.T) {
	var lose, lost atomic.Bool
	var device atomic.Pointer[initiator.Device]
	s := newStage(t, play{
		millis: 20,
		login: func(e *end, q *wire.LoginRequest, a *wire.LoginResponse) bool {
			if q.Role == wire.RoleIO && lost.CompareAndSwap(false, true) {
				lose.Store(true)
				waitFor(t, "the loss", func() bool { return device.Load().Status().SessionLosses > 0 })
				return false
			}
			e.sendControl(a)
			return true
		},
		keepalive: func(e *end) bool {
			if e.role == wire.RoleControl && lose.CompareAndSwap(true, false) {
				return false
			}
			e.acknowledge()
			return true
		},
	})
	d := s.dialWith(t, lasting(initiator.Forever))
	device.Store(d)
	q, err := d.NewQueue(4)
	must(t, err)
	submit(t, q, request(block.Write, 0, 4096))
	wantAll(t, q, 1, 0)
	must(t, q.Close())
}
