//go:build race

package hook_test

// raceDetector reports whether the race detector is built in.
const raceDetector = true
