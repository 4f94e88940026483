// Package canary breaks a lock annotation: a run of checklocks that passes it
// checks nothing.
package canary

import "sync"

type counter struct {
	mu sync.Mutex
	// +checklocks:mu
	n int
}

// Read reads n without the lock.
func (c *counter) Read() int { return c.n }
