// Package integration holds the tests of the whole: real clients against real
// processes, and the remote disk against the device kit.
package integration
