//go:build !race

package cm_test

// defaultSeeds are the seeds of each fate that run by default.
const defaultSeeds = 300
