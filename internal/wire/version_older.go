//go:build olderwire

package wire

// thisVersion is that of an older build, so that a test has two builds meet.
const thisVersion = 1
