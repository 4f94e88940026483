package limit

import (
	"testing"
	"time"

	"github.com/viablk/viablk/internal/block"
)

// A request costs no allocation, whether it waits or not.
func TestNoAllocation(t *testing.T) {
	w := newWorld(t, Rates{Requests: 1000, Burst: time.Nanosecond}, Rates{Bytes: 1 << 30})
	defer w.close(t)
	const depth = 8
	q, err := w.export.NewQueueFor("client", depth)
	if err != nil {
		t.Fatal(err)
	}
	defer q.Close()
	var requests [depth]block.Request
	var dst [depth]*block.Request
	round := func() {
		for i := range requests {
			requests[i] = block.Request{Op: block.Trim, Length: 512}
			if !q.Submit(&requests[i]) {
				t.Fatal("submit was refused below the depth")
			}
		}
		q.Kick()
		for answered := 0; answered < depth; w.now += time.Millisecond {
			answered += q.Reap(dst[:])
		}
	}
	round()
	if n := testing.AllocsPerRun(100, round); n != 0 {
		t.Errorf("%v allocations for %d requests", n, depth)
	}
	if c := w.export.Status().Counters; c.Throttled < c.Requests/2 {
		t.Errorf("of %d requests only %d waited: the test proves nothing", c.Requests, c.Throttled)
	}
}
