package regcache

import (
	"math/bits"
	"slices"
	"time"
)

// Size classes: powers of two from 512 B to 1 MiB. What is smaller or larger belongs
// to the first or the last.
const (
	leastClass  = 512
	sizeClasses = 12
)

func classOf(n int) int {
	return min(max(bits.Len(uint(n))-bits.Len(uint(leastClass)), 0), sizeClasses-1)
}

func classSize(i int) int { return leastClass << i }

const (
	// window is after how many operations a class is judged again.
	window = 64

	// margin is by how much, of the time of an operation, the other way must be
	// better, twice one after the other.
	margin = 0.02

	// leaseTime is what a hit costs instead of a copy: lookup, lease and release.
	leaseTime = 50 // ns

	// slotTime is what a copy costs beside the bytes: a slot and its return.
	slotTime = 60 // ns

	// batchTimes is how many times of each way are compared.
	batchTimes = 9

	// recent is how many operations shares are of. A registration may serve hundreds of
	// small ones.
	recent = 512

	// firstReuse is the share of operations that is taken to come back before
	// anything is known.
	firstReuse = 0.9
)

// class is what is known of operations of one size and direction.
//
// Two comparisons are made. For hits: an operation that copies against one that does
// not. For misses that were used lately: what operations save while such misses
// register, less what registering takes, against what they save while nothing is
// registered: what was registered before is found still, and is not pushed out. Each
// is measured while it is the case. While misses do not register, the belief about the
// other moves slowly towards what would have been, had the policy kept everything;
// while they do, they rest now and then.
//
// What an operation saves is the difference of the times of whole operations where
// the owner has one under way at a time, for there copying may overlap with the
// transfer, and the cache that the data is in counts. Times are compared in batches
// that were taken side by side, by their medians: the rest of the machine is in both.
// Where several operations are under way it is the processor's time for the copy.
type class struct {
	size   int
	copies estimate // ns of a copy and its slot
	whole  [2]batch // ns of whole operations: with a copy, without
	saved  float64  // by the last comparison, ns; valid if known
	known  bool
	alone  float64 // share of timed operations that were alone
	uses   float64 // of a granule until it is used no more for a while, see Chooser.touch
	reuse  float64 // share of operations that come back while there would be room
	on     yield   // while misses register
	off    yield   // while they do not
	hope   float64 // see judgeMisses
	rest   uint64  // likewise
	since  uint64  // operation from which on misses register, or do not
	time   float64 // ns of an operation that copies, if known
	ops    uint64
	hits   side
	misses side
}

// side is the present answer of a comparison, and how often the other one was
// better since.
type side struct {
	zero  bool
	ahead int
}

// yield is what becomes of operations, in shares of them.
type yield struct{ hits, registers float64 }

// init starts the class from the calibration.
func (k *class) init(size int, cost *Calibration) {
	k.size, k.reuse, k.hope, k.rest = size, firstReuse, leastHope, leastRest
	k.on = yield{firstReuse, 1 - firstReuse}
	copying := (cost.CopyWarm.At(size) + cost.CopyCold.At(size)) / 2
	k.copies.ns = slotTime + copying
	k.hits.zero = k.benefit() > 0
	k.misses.zero = k.hits.zero && (1-k.reuse)*(cost.Register.At(DefaultGranule)+cost.Deregister.At(DefaultGranule)) < k.benefit()
}

// came notes what became of an operation: whether its granule is registered, was used
// lately, and is registered for it.
func (k *class) came(hit, seen, zero bool) {
	follow := func(share *float64, yes bool, weight float64) {
		if yes {
			*share += (1 - *share) * weight
		} else {
			*share -= *share * weight
		}
	}
	lately := 1 / float64(min(recent, k.ops+8)) // the first operations tell a lot
	follow(&k.reuse, hit || seen, lately)
	if k.misses.zero {
		follow(&k.on.hits, hit, lately)
		follow(&k.on.registers, zero && !hit, lately)
		return
	}
	lasted := k.ops - k.since
	weight := 1 / float64(min(recent, lasted+32))
	follow(&k.off.hits, hit, weight)
	follow(&k.off.registers, zero && !hit, weight)
	if lasted >= recent || k.since == 0 { // what was measured just before is true still
		k.on.hits += (k.reuse - k.on.hits) / k.hope
		k.on.registers += (1 - k.reuse - k.on.registers) / k.hope
	}
}

// ended notes for how many operations a granule was used before it was used no more for
// a while.
func (k *class) ended(uses uint32) { k.uses += (float64(uses) - k.uses) / 8 }

// How slowly the belief returns that registrations would be found, in operations. A
// trial that fails makes it slower, one that lasts makes it quick again.
const (
	leastHope  = 128
	mostHope   = 16384
	lastingFor = 1024 // operations
)

// After how many operations misses rest that register. A rest that does not pay makes
// the next one come later.
const (
	leastRest = 1024
	mostRest  = 65536
	restFor   = 2 * window // operations, before it is judged
)

// gain returns what an operation gains on average, in nanoseconds.
func (y yield) gain(benefit, registration float64) float64 {
	return (y.hits+y.registers)*benefit - y.registers*registration
}

// gain returns what an operation gains by misses that register.
func (k *class) gain(registration float64) float64 {
	return k.on.gain(k.benefit(), registration) - k.off.gain(k.benefit(), registration)
}

// judgeMisses looks at the second comparison again.
func (k *class) judgeMisses(registration float64) {
	before, lasted := k.misses.zero, k.ops-k.since
	if !before && lasted < restFor {
		return
	}
	least := margin * max(k.time, k.copies.ns)
	k.misses.judge(k.gain(registration), least)
	switch {
	case before && !k.misses.zero:
		k.hope = min(4*k.hope, mostHope)
		k.stop()
	case before && lasted >= k.rest && k.on.registers*registration > least:
		k.rest = min(4*k.rest, mostRest)
		k.misses = side{}
		k.stop()
	case before && lasted >= lastingFor:
		k.hope = leastHope
	case !before && k.misses.zero:
		if lasted >= lastingFor {
			k.rest = leastRest
		}
		k.since = k.ops
	}
}

// stop lets misses register no more. What is registered is found still, at first.
func (k *class) stop() {
	k.since = k.ops
	k.off.hits = k.on.hits
}

// copied notes the time of a copy of n bytes; the operation may be larger.
func (k *class) copied(n int, took time.Duration) {
	whole := float64(took) * float64(min(2*k.size, max(n, k.size))) / float64(n)
	k.copies.add(slotTime + whole)
}

// finished notes the time of an operation that was alone. When there are enough of
// both ways they are compared.
func (k *class) finished(zero bool, took time.Duration, registration float64) {
	i := 0
	if zero {
		i = 1
	}
	k.whole[i].add(float64(took))
	k.alone += (1 - k.alone) / 8
	if k.whole[0].n < batchTimes || k.whole[1].n < batchTimes {
		return
	}
	copied := k.whole[0].median()
	saved := copied - k.whole[1].median()
	k.whole[0].n, k.whole[1].n = 0, 0
	k.time = copied
	k.hits.judge(saved, copied*margin)
	if k.hits.ahead == 0 { // else it awaits its confirmation
		k.saved, k.known = saved, true
	}
	k.judgeMisses(registration)
}

// benefit returns what an operation saves that does not copy, in nanoseconds.
func (k *class) benefit() float64 {
	if k.known && k.alone > 0.4 {
		return k.saved
	}
	return k.copies.ns - leaseTime
}

// young reports whether the ways have not been compared yet.
func (k *class) young() bool { return !k.known && k.ops < 8*exploreEvery }

// turn counts an operation, and after a window of them looks again at what has
// changed: whether operations come back, and, without times of whole operations, the
// copies.
func (k *class) turn(registration float64) {
	if k.ops++; k.ops%window != 0 {
		return
	}
	if k.alone <= 0.4 {
		k.hits.judge(k.benefit(), k.copies.ns*margin)
	}
	k.judgeMisses(registration)
}

// judge changes the side when the other one was better twice.
func (s *side) judge(gainOfZero, margin float64) {
	if s.zero {
		gainOfZero = -gainOfZero
	}
	if gainOfZero <= margin {
		s.ahead = 0
		return
	}
	if s.ahead++; s.ahead >= 2 {
		s.zero, s.ahead = !s.zero, 0
	}
}

// batch holds the last times of a way.
type batch struct {
	ns [batchTimes]float64
	n  int // added since the last comparison
}

func (b *batch) add(ns float64) {
	b.ns[b.n%batchTimes] = ns
	b.n++
}

// median returns the median of a full batch.
func (b *batch) median() float64 {
	sorted := b.ns
	slices.Sort(sorted[:])
	return sorted[batchTimes/2]
}

// estimate follows the median of times: each moves it by a step up or down, and steps
// one way after the other grow. Interruptions hardly move it.
type estimate struct {
	ns  float64
	run int // steps one way, negative for down
}

func (e *estimate) add(ns float64) {
	if ns > e.ns {
		e.run = max(e.run, 0) + 1
	} else {
		e.run = min(e.run, 0) - 1
	}
	step := 1 + float64(min(max(e.run, -e.run), 8))/64
	if e.run > 0 {
		e.ns *= step
	} else {
		e.ns /= step
	}
}
