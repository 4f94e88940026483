package attack

import (
	"flag"
	"math/rand/v2"
	"sync/atomic"
	"testing"

	"github.com/viablk/viablk/integration/testbed"
	"github.com/viablk/viablk/internal/seal"
)

var reads = flag.Int("attack.reads", 120, "reads while a peer writes the memory that they arrive in")

// A peer that writes all memory that it may, at any time, has no read give
// other bytes than were written: it ends connections, and no more.
func TestPeerWritesExposedMemory(t *testing.T) {
	a := newAttacker(func(channel, []byte) {})
	s := newScene(t, testbed.Fabrics["shm"], a, true, seal.Limits{})
	d := &disk{s.dial(t), make([]byte, diskSize)}
	d.write(t, testbed.RandomBytes(diskSize), 0)
	var stop atomic.Bool
	var written int
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		r := rand.New(rand.NewPCG(1, 2))
		for !stop.Load() {
			a.reach(func(b []byte, writable bool) {
				if !writable {
					return
				}
				// Pools begin with the buffers that are in use.
				at, bit := r.IntN(min(len(b), 1<<20)), byte(1)<<r.IntN(8)
				b[at] ^= bit
				if r.IntN(20_000) != 0 { // most changes are over at once
					b[at] ^= bit
				}
				written++
			})
		}
	}()
	for i := range *reads {
		n := sizes[i%len(sizes)]
		d.verify(t, n, (i*7919*512)%(diskSize-n))
	}
	stop.Store(true)
	<-ended
	if found := d.Status().Stats.Forged; found == 0 || written == 0 {
		t.Errorf("%d found forged of %d changes", found, written)
	} else {
		t.Logf("%d found forged of %d changes", found, written)
	}
	testbed.Must(t, d.Close())
}
