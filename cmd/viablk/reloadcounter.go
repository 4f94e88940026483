package main

import (
	"fmt"
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
	// +checklocks:mu
	failed time.Time // when the last attempt failed; zero if it did not
}

// count counts an attempt.
func (r *reloadCounter) count(succeeded bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	now := time.Now()
	if !succeeded {
		r.counts.Failed++
		r.failed = now
		return
	}
	r.counts.Succeeded++
	r.counts.Last, r.failed = now, time.Time{}
}

// complaint says that the last attempt to read a subject again failed. It is
// empty if it did not. The error is in the log: it may quote the file, which
// readers of health may not read.
func (r *reloadCounter) complaint(subject string) string {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.failed.IsZero() {
		return ""
	}
	return fmt.Sprintf("%s not read again at %s: see the log", subject, r.failed.UTC().Format(time.RFC3339))
}

// read returns the counts.
func (r *reloadCounter) read() metrics.Reloads {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.counts
}
