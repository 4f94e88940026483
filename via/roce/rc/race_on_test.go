//go:build race

package rc_test

// The race detector runs fewer seeds: a simulation is a single goroutine. "make
// simulate" runs all.
const (
	mostMembers  = 20
	defaultSeeds = 2
	defaultLeast = 30_000
	allLinks     = false
)
