//go:build race

package regcache

// raceDetector says whether this test binary was built with the race detector.
const raceDetector = true
