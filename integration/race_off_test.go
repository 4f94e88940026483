//go:build !race

package integration

// raceDetector says whether this test binary was built with the race detector;
// the processes under test then are too.
const raceDetector = false
