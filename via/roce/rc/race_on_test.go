//go:build race

package rc_test

// Under the race detector a part of the simulations: it sees one goroutine. "make
// simulate" runs all.
const (
	defaultSeeds = 2
	defaultLeast = 30_000
	allLinks     = false
)
