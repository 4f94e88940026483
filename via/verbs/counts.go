//go:build verbs && cgo

package verbs

import "sync/atomic"

// counts are the counters of one queue. The goroutine that drives the queue
// writes them.
type counts struct{ posts, polls, arms, wakes, messages, receives atomic.Uint64 }

// load returns the counters.
func (c *counts) load() Counts {
	return Counts{
		Posts: c.posts.Load(), Polls: c.polls.Load(), Arms: c.arms.Load(),
		Wakes: c.wakes.Load(), Messages: c.messages.Load(), Receives: c.receives.Load(),
	}
}
