//go:build !race

package rc_test

// What runs by default: the race detector would see one goroutine, and gets less.
const (
	defaultSeeds = 6
	defaultLeast = 100_000
	allLinks     = true
)
