//go:build !race

package rc_test

// Sizes without the race detector, under which the tests run fewer seeds: a
// simulation is a single goroutine.
const (
	mostMembers  = 100
	defaultSeeds = 6
	defaultLeast = 100_000
	allLinks     = true
)
