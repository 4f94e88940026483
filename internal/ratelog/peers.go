package ratelog

import (
	"context"
	"log/slog"
	"sync"
	"time"
)

// Peers limits lines by the peer that causes them: each peer has a burst of
// lines and then one per second. It adds the number of lines of the peer that
// it suppressed before. The zero value is ready to use; its method is safe for
// concurrent use.
type Peers struct {
	mu sync.Mutex
	// +checklocks:mu
	byName map[string]*allowance
	// +checklocks:mu
	others allowance // of peers that are not in the table
}

const (
	burst    = 32   // lines of a peer
	maxPeers = 1024 // in the table; further ones share an allowance
)

// allowance is the lines of one peer. Each line moves free by an interval.
type allowance struct {
	free       time.Time // when the peer would have its whole burst again
	suppressed int
}

// acquire counts a line at now, if there is one left.
func (a *allowance) acquire(now time.Time) (suppressed int, ok bool) {
	if a.free.Before(now) {
		a.free = now
	}
	if a.free.Sub(now) > (burst-1)*interval {
		a.suppressed++
		return 0, false
	}
	a.free = a.free.Add(interval)
	suppressed, a.suppressed = a.suppressed, 0
	return suppressed, true
}

// Log logs a line that a peer caused, at the time now, unless the rate limit
// suppresses it. An empty name is a peer without a limit.
func (p *Peers) Log(now time.Time, peer string, log *slog.Logger, level slog.Level, text string, args ...any) {
	if peer != "" && log.Enabled(context.Background(), level) {
		suppressed, ok := p.allow(now, peer)
		if !ok {
			return
		}
		if suppressed > 0 {
			args = append(args, "not_logged", suppressed)
		}
	}
	log.Log(context.Background(), level, text, args...)
}

// allow reports whether a line of a peer may be logged at now, and how many of
// its lines were suppressed since the last one.
func (p *Peers) allow(now time.Time, peer string) (suppressed int, ok bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	a := p.byName[peer]
	if a == nil && len(p.byName) >= maxPeers {
		p.forgetLocked(now)
	}
	switch {
	case a != nil:
	case len(p.byName) >= maxPeers:
		a = &p.others
	default:
		if p.byName == nil {
			p.byName = make(map[string]*allowance)
		}
		a = &allowance{}
		p.byName[peer] = a
	}
	return a.acquire(now)
}

// forgetLocked forgets peers that have their whole burst.
//
// +checklocks:p.mu
func (p *Peers) forgetLocked(now time.Time) {
	for name, a := range p.byName {
		if !a.free.After(now) {
			p.others.suppressed += a.suppressed
			delete(p.byName, name)
		}
	}
}
