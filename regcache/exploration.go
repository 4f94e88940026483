package regcache

// exploreEvery is how often operations take the other way, to learn its cost: one in
// so many. They come in bursts; a burst of the usual way follows, so that times are
// compared that were taken side by side. The first of each burst finds caches as the
// other way left them and is not timed. A class of which nothing is known yet is
// explored in bursts that are nearer.
const (
	exploreEvery = 128
	exploreBurst = 4
	youngEvery   = 16
)

// explores reports whether it is an operation's turn to take the other way, and
// whether it is timed.
func (c *Chooser) explores(k *class) (explore, timed bool) {
	c.ops++
	c.purse = min(c.purse+exploreShare*max(k.time, k.copies.ns), c.registration())
	every := uint64(exploreEvery)
	if k.young() {
		every = youngEvery
	}
	if c.ops >= c.next {
		// A burst in each period, somewhere in it: owners use their memory in regular ways.
		period := exploreBurst * every
		c.random = mix(c.random)
		c.began, c.next = c.next+c.random%(period-2*exploreBurst), c.ops+period
	}
	if c.ops < c.began {
		return false, false
	}
	at := c.ops - c.began
	timed = at < 2*exploreBurst && at%exploreBurst != 0
	if timed {
		k.alone -= k.alone / 16
	}
	return at < exploreBurst, timed
}

// exploreShare is how much of the time of operations may go into registrations that
// are made to explore.
const exploreShare = 0.01

// affords reports whether a registration that only explores is paid for, and takes
// what it costs from the purse.
func (c *Chooser) affords(registration float64) bool {
	if c.purse < registration {
		return false
	}
	c.purse -= registration
	return true
}
