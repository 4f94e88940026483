// Package testbed is what tests of the whole stand on: it builds the program,
// starts it and its clients, waits for what they do, and looks after the end of
// each. The folders beside it hold the tests.
//
// A test builds the program as it was built itself: with race detector if it
// has one. Each process it starts must end on its signal, with the documented
// exit code, and leave no process, socket, file, race report or panic behind.
// Clients reach a disk in several ways, see [Ways]: what holds for one must
// hold for all.
//
// A disk over a network runs on two hosts of a bed, package netbed: nothing
// reaches a real one.
//
// The tests need Linux, root, and the tools that make deps installs. A tool
// that is missing is a failure.
package testbed
