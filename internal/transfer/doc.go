// Package transfer moves the data of whole disks: it copies one to another,
// compares two, and measures one.
//
// A [Transfer] has some workers. Each is a goroutine with a queue of either
// disk, and keeps requests in flight on both:
//
//	planner ─▶ piece ─▶ read source ─▶ digest, compare ─▶ write destination
//
// The planner cuts the disks into pieces by what their extents are, so that
// zeroes are neither read nor sent where a disk knows of them. A worker flushes
// what it wrote before it ends.
package transfer
