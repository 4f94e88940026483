package shm

import "sync/atomic"

// sleep is what this end tells its peer while it sleeps.
type sleep struct {
	local *segment
	wants uint64 // as in the segment
	epoch uint64 // sleeps of this end
}

// begin adds wants, under a new epoch: the peer rings each bell once in it.
func (s *sleep) begin(wants uint64) {
	s.wants |= wants
	s.epoch++
	storeWord(s.local.mem, offWants, s.epoch<<wantShift|s.wants)
}

// share has the peer go by a sleep flag of this process; a negative flag ends
// that.
func (s *sleep) share(flag int) {
	word := s.epoch<<wantShift | s.wants
	if flag >= 0 {
		word = wantShared | uint64(flag)<<wantShift | s.wants
	}
	storeWord(s.local.mem, offWants, word)
}

// end withdraws wants.
func (s *sleep) end(wants uint64) {
	s.wants &^= wants
	publishWord(s.local.mem, offWants, s.epoch<<wantShift|s.wants)
}

// peerBell is a bell of the peer. One half of a link rings it.
type peerBell struct {
	fd    int
	peer  *segment
	flags *atomic.Pointer[peerFlags] // of the peer's process
	epoch uint64                     // sleep of the peer that the bell has ended
	rings uint64                     // system calls
}

// wake rings if the peer sleeps and has the want, once in each sleep. The
// caller has published what the peer waits for.
func (b *peerBell) wake(want uint64) {
	switch wants := loadWord(b.peer.mem, offWants); {
	case wants&want == 0:
	case wants&wantShared != 0:
		b.wakeThread(wants)
	case wants>>wantShift != b.epoch:
		b.epoch = wants >> wantShift
		b.ring()
	}
}

func (b *peerBell) ring() bool {
	b.rings++
	return ringBell(b.fd)
}
