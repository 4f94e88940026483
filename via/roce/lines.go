package roce

import (
	"net/netip"
	"runtime"
	"sync"
	"weak"

	"github.com/viablk/viablk/via/roce/rc"
)

// lines holds the lines of an endpoint to the hosts of its links, as long as
// these use them. Only a host with a connection has one. It is safe for
// concurrent use.
type lines struct {
	mu sync.Mutex
	// +checklocks:mu
	all map[netip.Addr]weak.Pointer[rc.Line]
}

// to returns the line to a host.
func (t *lines) to(host netip.Addr) *rc.Line {
	t.mu.Lock()
	defer t.mu.Unlock()
	if l := t.all[host].Value(); l != nil {
		return l
	}
	if t.all == nil {
		t.all = make(map[netip.Addr]weak.Pointer[rc.Line])
	}
	l := rc.NewLine()
	t.all[host] = weak.Make(l)
	runtime.AddCleanup(l, t.forget, host)
	return l
}

// forget removes the line to a host that nothing uses, unless there is a new
// one.
func (t *lines) forget(host netip.Addr) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.all[host].Value() == nil {
		delete(t.all, host)
	}
}
