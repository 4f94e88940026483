// Package integration holds the tests of the whole: real clients against real
// processes, and the remote disk against the device kit.
//
// A test builds the program as it was built itself: with race detector if it has
// one. Whatever it starts must end when it is told to, with the exit code that is
// promised, and leave no process, socket, file, race report or panic behind.
// Clients reach a disk in several ways, see ways: what holds for one must hold
// for all.
//
// A disk over a network runs on two hosts of a bed, package netbed: nothing reaches
// a real one.
//
// The tests need Linux, root, and the tools that make deps installs. A tool that
// is missing is a failure.
package integration
