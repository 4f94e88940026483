package main

import (
	"sync"
	"time"

	"github.com/viablk/viablk/internal/metrics"
)

// reloadCounter counts attempts to read something again. The zero value has
// none. It is safe for concurrent use.
type reloadCounter struct {
	mu sync.Mutex
	// +checklocks:mu
	counts metrics.Reloads
}

// count counts an attempt.
func (r *reloadCounter) count(succeeded bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if !succeeded {
		r.counts.Failed++
		return
	}
	r.counts.Succeeded++
	r.counts.Last = time.Now()
}

// read returns the counts.
func (r *reloadCounter) read() metrics.Reloads {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.counts
}
