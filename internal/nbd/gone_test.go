package nbd

import (
	"fmt"
	"testing"
	"time"
)

// T-18 the queue of a client that is gone is aborted while its requests are in
// flight, also when the server can take no more of them. A client that sent
// DISC has its requests executed.
func TestGoneClientIsAborted(t *testing.T) {
	for name, depth := range map[string]int{"of some": 16, "of as many as it may have": 2} {
		for _, leaves := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s, DISC %v", name, leaves), func(t *testing.T) {
				m := newMemory(1 << 20)
				m.later, m.hold = true, make(chan struct{})
				f := serve(t, Limits{Depth: depth}, Export{Device: m})
				p := f.connectExport("", simple)
				requests := 2
				if !leaves {
					requests = 4
				}
				for i := range requests {
					p.put(p.request(0, cmdWrite, uint64(i), uint64(i)*4096, 4096), pattern(4096, byte(i+1)))
				}
				deadline := time.Now().Add(testTimeout)
				for f.server.Status().Total.Writes < uint64(min(depth, requests)) {
					if time.Now().After(deadline) {
						t.Fatalf("the server has %+v", f.server.Status().Total)
					}
					time.Sleep(time.Millisecond)
				}
				if leaves {
					p.put(p.request(0, cmdDisconnect, 99, 0, 0))
					close(m.hold)
					for range requests {
						p.answer(func(uint64) int { return 0 })
					}
					p.wantEnd()
					if n := m.aborts.Load(); n != 0 {
						t.Errorf("aborted %d times", n)
					}
					return
				}
				p.Close()
				for m.aborts.Load() == 0 {
					if time.Now().After(deadline) {
						t.Fatal("the queue of a dead client is not aborted while its requests are in flight")
					}
					time.Sleep(time.Millisecond)
				}
				close(m.hold)
			})
		}
	}
}
