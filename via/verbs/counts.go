//go:build verbs && cgo

package verbs

import "sync/atomic"

// Counts are what the completion queues of a device and the links bound to them did.
// Posts, Polls and Arms are calls into C, one each: for a batch of works that is one
// to post them and one to poll, as long as a batch is no more than 64 of a kind.
type Counts struct {
	Posts    uint64 // calls that posted; on rdma_rxe a system call, if Sends were among the works
	Polls    uint64 // calls that took completions
	Arms     uint64 // calls that asked for an event: two system calls
	Wakes    uint64 // events of the device that were taken
	Messages uint64 // Sends and RDMA operations
	Receives uint64 // receives that were posted
}

// Counter is an adapter of this provider.
type Counter interface {
	// Counts returns the counters. It is safe for concurrent use.
	Counts() Counts
}

// counts are those of one queue. Who drives it writes them.
type counts struct{ posts, polls, arms, wakes, messages, receives atomic.Uint64 }

func (c *counts) add(to Counts) Counts {
	return Counts{
		Posts: to.Posts + c.posts.Load(), Polls: to.Polls + c.polls.Load(), Arms: to.Arms + c.arms.Load(),
		Wakes: to.Wakes + c.wakes.Load(), Messages: to.Messages + c.messages.Load(), Receives: to.Receives + c.receives.Load(),
	}
}
