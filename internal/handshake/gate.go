package handshake

import "sync"

// Handshakes of a target that are in flight at most. One costs both ends about
// a millisecond of a processor together, and its answer is larger than a
// request.
const (
	maximumHandshakes = 16
	maximumOfPeer     = 8
)

// gate bounds handshakes. The zero value is open.
type gate struct {
	mu     sync.Mutex
	all    int            // +checklocks:mu
	byPeer map[string]int // +checklocks:mu
}

// acquire admits a handshake of a peer, if it may begin.
func (g *gate) acquire(peer string) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.all == maximumHandshakes || g.byPeer[peer] == maximumOfPeer {
		return false
	}
	if g.byPeer == nil {
		g.byPeer = make(map[string]int)
	}
	g.all++
	g.byPeer[peer]++
	return true
}

// release ends a handshake that was admitted.
func (g *gate) release(peer string) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.all--
	if g.byPeer[peer]--; g.byPeer[peer] == 0 {
		delete(g.byPeer, peer)
	}
}
