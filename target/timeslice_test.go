package target_test

import (
	"runtime"
	"testing"
	"time"

	"github.com/viablk/viablk/target"
)

// A worker that is asked all the time passes through the Go scheduler.
func TestBusyWorkerYields(t *testing.T) {
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(4)) // a worker yields if another P is left
	r := newRig(t, target.Config{KeepAlive: time.Hour, BusyPoll: -1}, disk(t, "memory"))
	s := r.attach(t, "memory")
	waitFor(t, "a yield", func() bool {
		for i := range 20 {
			_, err := s.readInline(uint64(i)<<12, 4096)
			must(t, err)
			time.Sleep(100 * time.Microsecond)
		}
		return r.server.Status().Stats.Yields > 0
	})
	must(t, s.close())
}
