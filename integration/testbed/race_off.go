//go:build !race

package testbed

// RaceDetector says whether this test binary was built with the race detector;
// the processes under test then are too.
const RaceDetector = false
