package nbd

import (
	"runtime"
	"testing"
	"time"
)

// A loop that is asked all the time passes through the Go scheduler.
func TestBusyLoopYields(t *testing.T) {
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(4)) // a loop yields if another P is left
	f := serve(t, Limits{BusyPoll: -1}, Export{Device: newMemory(1 << 20)})
	p := f.connectExport("", simple)
	for deadline := time.Now().Add(testTimeout); f.server.Status().Total.Yields == 0; {
		if time.Now().After(deadline) {
			t.Fatalf("no yield: %+v", f.server.Status().Total)
		}
		for range 20 {
			p.want(0, 0, cmdRead, 0, 512)
			time.Sleep(100 * time.Microsecond)
		}
	}
	p.disconnect()
}
