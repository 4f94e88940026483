//go:build race

package cm_test

// defaultSeeds is small under the race detector: a simulation is a single
// goroutine. "make simulate" runs more.
const defaultSeeds = 60
