package seal

import (
	"slices"
	"sync"
	"sync/atomic"
)

// A rekey gives a session new keys while its connections go on: an era of its
// own, counted from 0. The initiator leads. Each connection of it begins the
// latest era with its next capsule, and its target follows with the next one of
// its own: what it opened proves that the initiator has the keys. The prefix
// tells the era, so either end opens the old one until the first capsule of the
// new one, and never again after it. Counters go on.

// ring is the sessions that followed each other by rekeys.
type ring struct {
	era         atomic.Uint64 // of latest
	unconfirmed atomic.Int64  // connections of an initiator that wait for their target to follow

	mu sync.Mutex
	// +checklocks:mu
	latest *Session
	// +checklocks:mu
	previous *Session // nil once it is retired
}

// Rekey has next follow the latest session: it is of the same connections, and
// of further ones that join it. Sessions before the latest are forgotten.
func (s *Session) Rekey(next *Session) {
	r := s.ring
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.previous != nil {
		r.previous.forget()
	}
	next.ring, next.era = r, r.latest.era+1
	r.latest, r.previous = next, r.latest
	r.era.Store(next.era)
}

// Retire forgets the session before the latest. Until then a connection may
// join it, and an initiator that was about to begin its era still may.
func (s *Session) Retire() {
	r := s.ring
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.previous != nil {
		r.previous.forget()
		r.previous = nil
	}
}

// Confirmed reports whether no connection of an initiator waits for its target
// to follow. A rekey before that could overtake a capsule of the era that it
// ends.
func (s *Session) Confirmed() bool { return s.ring.unconfirmed.Load() == 0 }

// Same reports whether rekeys lead from one session to the other.
func (s *Session) Same(other *Session) bool { return s.ring == other.ring }

// Named returns the latest session or the one before it, by the name of its
// keys, or nil.
func (s *Session) Named(name [NameSize]byte) *Session {
	r := s.ring
	r.mu.Lock()
	defer r.mu.Unlock()
	switch {
	case r.latest.name == name:
		return r.latest
	case r.previous != nil && r.previous.name == name:
		return r.previous
	}
	return nil
}

// newest returns the latest session.
func (r *ring) newest() *Session {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.latest
}

// after returns the session that a prefix names, if its era is later.
func (r *ring) after(era uint64, prefix byte) *Session {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, s := range []*Session{r.latest, r.previous} {
		if s != nil && s.era > era && byte(s.era) == prefix {
			return s
		}
	}
	return nil
}

// link is what the sealer and the opener of a connection have in common.
type link struct {
	scratch
	ring *ring
	info string // of the connection, for its keys
	end  End

	next    *chain   // of the sealer, at a target that is to follow; else nil
	waits   bool     // counted as unconfirmed
	awaited []*chain // of the opener, at an initiator whose target is to follow, in order
}

// await counts the connection among those that wait for their target if it is
// to wait for n eras.
func (l *link) await(n int) {
	switch {
	case n > 0 && !l.waits:
		l.ring.unconfirmed.Add(1)
	case n == 0 && l.waits:
		l.ring.unconfirmed.Add(-1)
	}
	l.waits = n > 0
}

// chains returns the chains of a connection by what it sends and what it
// receives.
func (s *Session) chains(l *link) (sealing, opening chain, err error) {
	var secret [secretSize]byte
	defer clear(secret[:])
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.cleared {
		return sealing, opening, ErrCleared
	}
	expand(secret[:], &s.prk, l.info)
	return newChain(&secret, l.end, s.era), newChain(&secret, l.end.other(), s.era), nil
}

// follow begins the era that is due. Keys of a payload that has the next
// capsule have to be of its era, so nothing begins between them.
func (s *Sealer) follow() {
	l := s.link
	switch {
	case s.claimed:
	case s.end == Target:
		if l.next != nil {
			s.begin(l.next)
			l.next = nil
		}
	case s.chain.era != l.ring.era.Load():
		l.await(len(l.awaited) + 1) // before it reads the latest: see Confirmed
		sealing, opening, err := l.ring.newest().chains(l)
		if err != nil { // the session has ended, and the connection will
			l.await(len(l.awaited))
			return
		}
		s.begin(&sealing)
		l.awaited = append(l.awaited, &opening)
	}
}

// begin replaces the chain by one of a later era.
func (s *Sealer) begin(next *chain) {
	s.chain.succeed(next)
	s.capsules, s.blocks, s.due = 0, 0, false
}

// Detach ends what a rekey waits for. The owner calls it with the last capsule
// of the connection.
func (s *Sealer) Detach() {
	s.link.await(0)
	s.link.awaited = nil
}

// openLater opens a capsule of a later era, and begins that era.
func (o *Opener) openLater(b []byte) ([]byte, error) {
	l := o.link
	var next, sealing *chain
	at := slices.IndexFunc(l.awaited, func(c *chain) bool { return byte(c.era) == b[eraAt] })
	if at >= 0 {
		next = l.awaited[at]
	} else if o.end == Initiator {
		return nil, ErrForged
	} else if s := l.ring.after(o.chain.era, b[eraAt]); s != nil {
		mine, peers, err := s.chains(l)
		if err != nil {
			return nil, ErrForged
		}
		sealing, next = &mine, &peers
	}
	if next == nil || b[generationAt] != 0 {
		return nil, ErrForged
	}
	message, err := o.open(next.keys, b)
	if err != nil {
		return nil, err
	}
	o.chain.succeed(next)
	o.retired = false
	if l.next = sealing; at >= 0 {
		l.await(len(l.awaited) - at - 1)
		for _, missed := range l.awaited[:at] {
			clear(missed.secret[:])
		}
		l.awaited = slices.Delete(l.awaited, 0, at+1)
	}
	return message, nil
}

// Behind reports whether the peer has not begun the latest era.
func (o *Opener) Behind() bool { return o.chain.era != o.link.ring.era.Load() }

// Retire has the opener open capsules of later eras only, if there are any. The
// owner of a target calls it when nothing of before the rekey can arrive.
func (o *Opener) Retire() { o.retired = o.Behind() }

// Era returns how many rekeys there were before the session's keys.
func (s *Session) Era() uint64 { return s.era }

// Era returns how many rekeys there were before the keys that seal.
func (s *Sealer) Era() uint64 { return s.chain.era }
