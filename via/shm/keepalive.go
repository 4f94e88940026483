package shm

import "sync"

// keepalives are those of a link that need no message and wake no process: each
// end counts its own in its segment, and the peer reads the count when it wants
// to know. Any goroutine may use them. They are seldom, and so is the lock.
type keepalives struct {
	mu sync.Mutex
	// +checklocks:mu
	local, peer *segment // nil: the segments may be unmapped
	// +checklocks:mu
	counted, seen uint64
}

// count counts one.
func (k *keepalives) count() {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.local != nil {
		k.counted++
		storeWord(k.local.mem, offKeepalives, k.counted)
	}
}

// ofPeer returns the peer's count. It stays as it is once the link has ended.
func (k *keepalives) ofPeer() uint64 {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.peer != nil {
		k.seen = loadWord(k.peer.mem, offKeepalives)
	}
	return k.seen
}

// end forgets the segments.
func (k *keepalives) end() {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.local, k.peer = nil, nil
}
