package simulation

import (
	"math/rand/v2"
	"slices"
	"syscall"
	"time"

	"github.com/viablk/viablk/internal/block"
)

// medium is a disk with its volatile cache, and the record of its identity:
// what outlives the process that serves it.
type medium struct {
	random  *rand.Rand
	uuid    [16]byte
	present []Tag // what a read sees, by block
	durable []Tag // what a reboot leaves for certain
	cached  []bool

	losses    uint64 // write losses; the verifier
	unclean   bool   // opened and not closed since
	boots     uint64
	opened    uint64 // boots at the last open
	lastWrite block.Writer
	lockedBy  *description // nil: no process has the disk
	volatile  bool         // what was not flushed ends with the process that serves it

	speed  time.Duration // of a request, at most
	slow   time.Duration // of one of slowOnes requests, at most
	stuck  time.Duration // no request ends before
	full   bool          // writes fail with ENOSPC
	failed syscall.Errno // what every other request fails with; 0: none

	applied  func(b int64, t Tag) // a write took effect
	flushing func()               // all writes become durable
}

func newMedium(blocks int, seed uint64, speed time.Duration) *medium {
	m := &medium{
		random: rand.New(rand.NewPCG(seed, 3)), speed: speed,
		present: make([]Tag, blocks), durable: make([]Tag, blocks), cached: make([]bool, blocks),
	}
	for i := range m.uuid {
		m.uuid[i] = byte(m.random.Uint32())
	}
	return m
}

// slowOnes is how many requests there are for a slow one.
const slowOnes = 16

// write stores blocks.
func (m *medium) write(b int64, t Tag, fua bool) {
	m.present[b], m.cached[b] = t, true
	if fua {
		m.durable[b], m.cached[b] = t, false
	}
	m.applied(b, t)
}

// flush makes everything durable.
func (m *medium) flush() {
	m.flushing()
	for b, cached := range m.cached {
		if cached {
			m.durable[b], m.cached[b] = m.present[b], false
		}
	}
}

// lose is a failed flush: what the cache had is not written any more, and
// nothing says so later.
func (m *medium) lose() {
	m.losses++
	for b, cached := range m.cached {
		if cached && m.random.Uint32()&1 == 0 {
			m.cached[b] = false
		}
	}
}

// reboot loses the cache: of the writes that were not flushed some are there.
func (m *medium) reboot() {
	m.boots++
	m.forget()
}

// forget loses the cache.
func (m *medium) forget() {
	for b := range m.present {
		if m.cached[b] && m.random.Uint32()&1 == 0 {
			m.durable[b] = m.present[b]
		}
		m.present[b], m.cached[b] = m.durable[b], false
	}
}

// open begins a use of the medium by a process.
func (m *medium) open() {
	if m.unclean && m.opened != m.boots {
		m.losses++
	}
	m.unclean, m.opened = true, m.boots
}

// copyOf returns another disk with the same content.
func (m *medium) copyOf(seed uint64) *medium {
	c := newMedium(len(m.present), seed, m.speed)
	c.slow, c.volatile = m.slow, m.volatile
	c.present, c.durable = slices.Clone(m.present), slices.Clone(m.present)
	c.applied, c.flushing = m.applied, m.flushing
	return c
}
