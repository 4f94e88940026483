// Package latency counts how long requests take, by operation.
//
// A [Recorder] has one owner at a time, the loop of a connection, which counts
// without a lock, an atomic operation or an allocation. A [Set] has the
// recorders of an export; a loop that ends leaves its recorder, with what it
// has counted, to the next one.
//
// Durations are counted in buckets, 4 to each power of two from 1 µs on, so
// that quantiles are exact to 1/4.
package latency

import (
	"math/bits"
	"sync"
	"sync/atomic"
	"time"
)

// Operation is a kind of request.
type Operation uint8

// The operations.
const (
	Read Operation = iota
	Write
	Flush
	Other
	Operations // their number
)

// Names of the operations.
var Names = [Operations]string{"read", "write", "flush", "other"}

// Buckets: 4 of 256 ns, then 4 for each power of two of ns from the 10th to the
// 34th, 17 to 34 s. The last has all that is longer, too.
const (
	subBits = 2
	first   = 10 // power of two of the first octave
	last    = 34
	buckets = 1<<subBits + (last-first+1)<<subBits
)

// bucketOf returns the bucket of a duration.
func bucketOf(d time.Duration) int {
	n := uint64(max(d, 0))
	if n < 1<<first {
		return int(n >> (first - subBits))
	}
	power := bits.Len64(n) - 1
	if power > last {
		return buckets - 1
	}
	// The leading bit of n>>(power-subBits) counts as the octave before it.
	return (power-first)<<subBits + int(n>>(power-subBits))
}

// boundOf returns the end of a bucket.
func boundOf(bucket int) time.Duration {
	if bucket < 1<<subBits {
		return time.Duration(bucket+1) << (first - subBits)
	}
	octave := bucket>>subBits - 1
	return time.Duration(bucket-octave<<subBits+1) << (octave + first - subBits)
}

// Part is a part of the way of a request.
type Part uint8

// The parts.
const (
	Request Part = iota // from arrival to answer
	Backend             // in the backend
	parts
)

// histograms of a recorder: one for each part and operation.
const histograms = int(parts) * int(Operations)

// Recorder is the counts of one loop at a time. An atomic store costs more than
// all else: the loop counts in histograms of its own, whose few changes Publish
// makes visible. There may be thousands of exports, most of them read only: a
// histogram has memory from its first request on.
type Recorder struct {
	histograms [histograms]atomic.Pointer[histogram]

	// Of the owner.
	changed [64]struct{ histogram, bucket uint8 } // with unpublished requests
	changes int
}

// histogram is the requests of an operation by the duration of a part.
type histogram struct {
	// Of the owner.
	unpublished [buckets]uint8
	sum         uint64 // ns, unpublished

	// Of the owner, for readers.
	counts [buckets]atomic.Uint64
	total  atomic.Uint64 // ns
}

// Add counts a part of a request. Only the owner calls it.
func (r *Recorder) Add(p Part, o Operation, d time.Duration) {
	h := int(p)*int(Operations) + int(o)
	x := r.histograms[h].Load()
	if x == nil {
		x = new(histogram)
		r.histograms[h].Store(x)
	}
	i := bucketOf(d)
	n := x.unpublished[i] + 1
	x.unpublished[i] = n
	x.sum += uint64(max(d, 0))
	if n == 1 {
		r.changed[r.changes].histogram, r.changed[r.changes].bucket = uint8(h), uint8(i)
		r.changes++
	}
	if n == 255 || r.changes == len(r.changed) {
		r.Publish()
	}
}

// Publish makes the counts visible to readers. Only the owner calls it: before
// each sleep, which costs a multiple, and once in many iterations.
func (r *Recorder) Publish() {
	for _, c := range r.changed[:r.changes] {
		x := r.histograms[c.histogram].Load()
		n := &x.counts[c.bucket]
		n.Store(n.Load() + uint64(x.unpublished[c.bucket])) // nothing else stores
		x.unpublished[c.bucket] = 0
		if x.sum != 0 {
			x.total.Store(x.total.Load() + x.sum)
			x.sum = 0
		}
	}
	r.changes = 0
}

// Set is the recorders of an export. The zero value has none. Its methods are
// safe for concurrent use.
type Set struct {
	mu sync.Mutex
	// +checklocks:mu
	all []*Recorder
	// +checklocks:mu
	free []*Recorder
}

// Acquire returns a recorder for the caller alone, until Release.
func (s *Set) Acquire() *Recorder {
	s.mu.Lock()
	defer s.mu.Unlock()
	if n := len(s.free); n > 0 {
		r := s.free[n-1]
		s.free = s.free[:n-1]
		return r
	}
	r := new(Recorder)
	s.all = append(s.all, r)
	return r
}

// Release gives a recorder back, with its counts.
func (s *Set) Release(r *Recorder) {
	r.Publish()
	s.mu.Lock()
	defer s.mu.Unlock()
	s.free = append(s.free, r)
}

// Read returns the sums of all recorders, nil if there are none.
func (s *Set) Read() *Status {
	s.mu.Lock()
	all := s.all[:len(s.all):len(s.all)]
	s.mu.Unlock()
	if len(all) == 0 {
		return nil
	}
	status := &Status{Requests: new(Durations), Backend: new(Durations)}
	for _, r := range all {
		for o := range Operations {
			status.Requests[o].add(r, Request, o)
			status.Backend[o].add(r, Backend, o)
		}
	}
	return status
}

// Recorders returns how many there are: the most that were acquired at a time.
func (s *Set) Recorders() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.all)
}
