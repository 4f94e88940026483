package shm

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

// end withdraws wants.
func (s *sleep) end(wants uint64) {
	s.wants &^= wants
	publishWord(s.local.mem, offWants, s.epoch<<wantShift|s.wants)
}

// peerBell is a bell of the peer. One half of a link rings it.
type peerBell struct {
	fd    int
	epoch uint64 // sleep of the peer that the bell has ended
	rings uint64 // system calls
}

// wake rings if the peer sleeps and has the want, once in each sleep. wants is
// the peer's word, loaded after the caller published what the peer waits for.
func (b *peerBell) wake(wants, want uint64) {
	if wants&want != 0 && wants>>wantShift != b.epoch {
		b.ring(wants >> wantShift)
	}
}

func (b *peerBell) ring(epoch uint64) {
	b.epoch = epoch
	b.rings++
	ringBell(b.fd)
}
