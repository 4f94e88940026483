//go:build race

package cm_test

// defaultSeeds is few under the race detector, which sees one goroutine. "make
// simulate" runs more.
const defaultSeeds = 60
