// Package limit limits the rate of a disk: requests and bytes per second, of an
// export as a whole and of each of its sessions, with bursts, and fair between
// the sessions.
//
// An [Export] is the disk behind its limits. A [Session] of it is a
// [block.Device] for one client, whose queues share the rates of the session;
// an export is also a [block.Shared], which finds the session of a client by
// its name. A request that exceeds a limit waits in its queue; the owner of the
// queue learns from Arm until when, so that nothing here has a goroutine or a
// timer.
//
//	Submit ─▶ fifo of the queue ─▶ export: fair queueing ─▶ queue of the disk
//
// Reads and writes count with their payload, Trim and WriteZeroes as a request
// of no bytes. Flush never waits: delaying it saves nothing and delays data.
package limit

import (
	"fmt"
	"math"
	"syscall"
	"time"

	"github.com/viablk/viablk/internal/block"
)

// Rates are limits; 0 is no limit. The zero value limits nothing.
type Rates struct {
	Requests int64 `json:"iops"`      // per second
	Bytes    int64 `json:"bandwidth"` // per second

	// Burst is how much of what was not used is kept: a client that was idle
	// for this long may ask at once for what it could have asked for in that
	// time. 0 is DefaultBurst.
	Burst time.Duration `json:"burst_ns"`
}

// DefaultBurst evens out what clients do in the time in which a disk answers.
const DefaultBurst = 20 * time.Millisecond

const (
	// requests per second: beyond, a request costs less than the clock shows
	fastest = 100_000_000
	slowest = 1 << 10 // bytes per second: less is a mistaken unit
	longest = time.Minute
)

// Limited reports whether the rates limit anything.
func (r Rates) Limited() bool { return r.Requests != 0 || r.Bytes != 0 }

// Validate returns an error if a rate is out of range.
func (r Rates) Validate() error {
	switch {
	case r.Requests < 0 || r.Requests > fastest:
		return fmt.Errorf("%d requests per second: write 0 for no limit, or up to %d: %w", r.Requests, fastest, syscall.EINVAL)
	case r.Bytes < 0 || r.Bytes > 0 && r.Bytes < slowest:
		return fmt.Errorf("%d bytes per second: write 0 for no limit, or at least %d: %w", r.Bytes, slowest, syscall.EINVAL)
	case r.Burst < 0 || r.Burst > longest:
		return fmt.Errorf("a burst of %v: write a time up to %v: %w", r.Burst, longest, syscall.EINVAL)
	}
	return nil
}

// cost is how long a request occupies each of the two rates.
type cost struct{ requests, bytes time.Duration }

// longer is how long the request occupies the rate that it needs most of.
func (c cost) longer() time.Duration { return max(c.requests, c.bytes) }

func (c cost) add(o cost) cost { return cost{c.requests + o.requests, c.bytes + o.bytes} }

// costOf returns what r costs.
func (r Rates) costOf(q *block.Request) (c cost) {
	if r.Requests > 0 {
		c.requests = time.Second / time.Duration(r.Requests)
	}
	if r.Bytes > 0 && (q.Op == block.Read || q.Op == block.Write) {
		c.bytes = time.Duration(math.Round(float64(q.Length) * float64(time.Second) / float64(r.Bytes)))
	}
	return c
}
