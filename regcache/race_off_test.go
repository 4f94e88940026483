//go:build !race

package regcache

// raceDetector reports whether the race detector is built in.
const raceDetector = false
