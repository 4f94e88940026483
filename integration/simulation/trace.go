package simulation

// Trace is a hash over everything that happened in a run, in its order.
type Trace uint64

const (
	traceSeed  = 14695981039346656037
	tracePrime = 1099511628211
)

func newTrace() Trace { return traceSeed }

// add adds an event, as numbers.
func (t *Trace) add(a, b uint64) {
	x := uint64(*t)
	x = (x ^ a) * tracePrime
	x ^= x >> 29
	x = (x ^ b) * tracePrime
	*t = Trace(x ^ x>>32)
}
