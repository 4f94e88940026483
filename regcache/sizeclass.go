package regcache

import (
	"math/bits"
	"slices"
	"time"
)

// Size classes: powers of two from 512 B to 1 MiB. Smaller and larger sizes
// belong to the first and the last class.
const (
	minClassSize = 512
	sizeClasses  = 12
)

func classOf(n int) int {
	return min(max(bits.Len(uint(n))-bits.Len(uint(minClassSize)), 0), sizeClasses-1)
}

func classSize(i int) int { return minClassSize << i }

const (
	// leaseTime is the cost of a hit instead of a copy: lookup, lease and
	// release.
	leaseTime = 50 // ns

	// bufferTime is the cost of a copy besides the bytes: Get and Put of a
	// buffer.
	bufferTime = 60 // ns

	// batchSize is how many times of each path are compared.
	batchSize = 9
)

// sizeClass holds the measurements of the operations of one size and direction.
//
// A hit is used in place if that saves time. If the owner has one operation in
// flight at a time, the savings are the difference of whole latencies, because
// copying may overlap with the transfer, and cache effects count. Latencies are
// compared in batches taken side by side, by their medians, so that other load
// affects both. If the owner has several operations in flight, the savings are
// the processor time of the copy.
type sizeClass struct {
	size        int
	copies      costEWMA // of a copy and its buffer
	latency     [2]batch // ns of whole operations: with a copy, without
	saved       float64  // by the last comparison, ns; valid if known
	known       bool
	serialShare float64 // share of timed operations alone in flight
	uses        float64 // of a granule that was not in use, see CopyPolicy.touch
	found       uint64  // hits
}

// init initialises the class from the calibration.
func (k *sizeClass) init(size int, cost *Calibration) {
	k.size = size
	copying := (cost.CopyWarm.At(size) + cost.CopyCold.At(size)) / 2
	k.copies.add(time.Duration(bufferTime + copying))
}

// recordUses records the number of uses of a run.
func (k *sizeClass) recordUses(uses int) { k.uses += (float64(uses) - k.uses) / 8 }

// copied records the time of a copy of n bytes; the operation may be larger.
func (k *sizeClass) copied(n int, elapsed time.Duration) {
	whole := float64(elapsed) * float64(min(2*k.size, max(n, k.size))) / float64(n)
	k.copies.add(time.Duration(bufferTime + whole))
}

// finished records the latency of an operation that was alone in flight, and
// compares the paths when both batches are full.
func (k *sizeClass) finished(zero bool, elapsed time.Duration) {
	i := 0
	if zero {
		i = 1
	}
	k.latency[i].add(float64(elapsed))
	k.serialShare += (1 - k.serialShare) / 8
	if k.latency[0].n < batchSize || k.latency[1].n < batchSize {
		return
	}
	k.saved, k.known = k.latency[0].median()-k.latency[1].median(), true
	k.latency[0].n, k.latency[1].n = 0, 0
}

// benefit returns the savings of an operation that does not copy, in
// nanoseconds.
func (k *sizeClass) benefit() float64 {
	if k.known && k.serialShare > 0.4 {
		return k.saved
	}
	return float64(k.copies.mean() - leaseTime)
}

// young reports whether the paths have not been compared yet.
func (k *sizeClass) young() bool { return !k.known && k.found < 8*exploreEvery }

// batch holds the last times of a path.
type batch struct {
	ns [batchSize]float64
	n  int // added since the last comparison
}

func (b *batch) add(ns float64) {
	b.ns[b.n%batchSize] = ns
	b.n++
}

// median returns the median of a full batch.
func (b *batch) median() float64 {
	sorted := b.ns
	slices.Sort(sorted[:])
	return sorted[batchSize/2]
}
