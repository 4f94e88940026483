package regcache

// One operation in exploreEvery takes the other path, to learn its cost.
// Explorations come in bursts; a burst of the usual path follows, so that the
// compared times are taken side by side. The first operation of each burst is
// not timed, because it finds the caches as the other path left them. A class
// without a comparison yet explores in shorter periods.
const (
	exploreEvery = 128
	exploreBurst = 4
	youngEvery   = 16
)

// explores reports whether an operation takes the other path, and whether it is
// timed.
func (p *CopyPolicy) explores(k *sizeClass) (explore, timed bool) {
	p.ops++
	every := uint64(exploreEvery)
	if k.young() {
		every = youngEvery
	}
	if p.ops >= p.nextPeriod {
		// One burst in each period, at a random offset: owners use their memory
		// in regular patterns.
		period := exploreBurst * every
		p.random = mix(p.random)
		p.burstStart, p.nextPeriod = p.nextPeriod+p.random%(period-2*exploreBurst), p.ops+period
	}
	if p.ops < p.burstStart {
		return false, false
	}
	at := p.ops - p.burstStart
	timed = at < 2*exploreBurst && at%exploreBurst != 0
	if timed {
		k.serialShare -= k.serialShare / 16
	}
	return at < exploreBurst, timed
}
