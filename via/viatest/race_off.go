//go:build !race

package viatest

// raceDetector reports whether the race detector is built in.
const raceDetector = false
