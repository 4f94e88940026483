package target

import (
	"testing"
	"time"

	"github.com/viablk/viablk/internal/wire"
)

// TestKeepaliveOfARangeHolder: an I/O connection may be silent for ever, but
// not while it holds a range that never becomes free.
func TestKeepaliveOfARangeHolder(t *testing.T) {
	for name, row := range map[string]struct {
		holding int
		moves   int // keepalives between two released ranges
		ends    bool
	}{
		"holds nothing":  {0, 0, false},
		"moves":          {2, 1, false},
		"moves slowly":   {2, maxMissedKeepalives - 1, false},
		"is stuck":       {1, 0, true},
		"moves too late": {1, maxMissedKeepalives + 1, true},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorker(newConn(&Server{cfg: Config{KeepAlive: time.Second}.withDefaults()}, nil, "peer", ""))
			w.login.role, w.execute.held.count = wire.RoleIO, row.holding
			for n := 1; n <= 3*maxMissedKeepalives && w.failure == nil; n++ {
				w.checkPeer()
				w.execute.held.released = row.moves > 0 && n%row.moves == 0
				if row.ends && w.failure != nil && n != maxMissedKeepalives {
					t.Errorf("the connection ends after %d keepalives", n)
				}
			}
			if ends := w.failure != nil; ends != row.ends {
				t.Errorf("the connection ends: %v, %v", ends, w.failure)
			}
		})
	}
}

// TestLoginBeginsKeepalive: from the login on, the interval is that of
// keepalives, and no longer the time to log in.
func TestLoginBeginsKeepalive(t *testing.T) {
	w := newWorker(newConn(&Server{cfg: Config{KeepAlive: time.Second}.withDefaults()}, nil, "peer", ""))
	w.watch.next = time.Now().Add(loginTimeout)
	w.setLogin(&login{role: wire.RoleControl})
	if wait := time.Until(w.watch.next); wait > time.Second {
		t.Errorf("the first check is in %v, keepalives come every second", wait)
	}
}
