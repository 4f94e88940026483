package roce

import (
	"net/netip"
	"runtime"
	"testing"
	"time"

	"github.com/viablk/viablk/via/roce/rc"
)

// TestLinesOfHosts: links to one host share a line, which is forgotten with the
// last of them.
func TestLinesOfHosts(t *testing.T) {
	var all lines
	host, other := netip.MustParseAddr("192.0.2.1"), netip.MustParseAddr("192.0.2.2")
	kept := [2]*rc.Line{all.to(host), all.to(other)}
	if all.to(host) != kept[0] || all.to(other) != kept[1] || kept[0] == kept[1] {
		t.Error("hosts have no lines of their own")
	}
	runtime.KeepAlive(kept)
	kept = [2]*rc.Line{}
	hosts := func() int {
		all.mu.Lock()
		defer all.mu.Unlock()
		return len(all.all)
	}
	for end := time.Now().Add(time.Minute); hosts() > 0; runtime.GC() {
		if time.Now().After(end) {
			t.Fatalf("%d hosts are not forgotten", hosts())
		}
	}
}
