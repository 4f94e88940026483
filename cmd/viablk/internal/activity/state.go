// Package activity says what happens at exports between two states of
// processes: rates, how long requests took, and where their time went.
//
// A [State] is plain data that the caller makes of what processes report. A
// [Tracker] compares each with the one before.
package activity

import (
	"time"

	"github.com/viablk/viablk/internal/latency"
)

// State is what processes had counted at one time.
type State struct {
	Time     time.Time
	Exports  []Counters
	Sessions []Session
	Paths    []Path
}

// Key names an export as a process serves it in one way.
type Key struct {
	PID    int    `json:"pid"`
	Export string `json:"export"`
	Face   string `json:"face"` // nbd, device or via+PROVIDER
}

// The states of an export.
const (
	Connected = "connected"
	Waiting   = "waiting" // for a target that is away
	Failed    = "failed"
	Draining  = "draining"
)

// Counters are what a process counted of an export, since it started.
type Counters struct {
	Key
	Started time.Time // the process; counters of another start again

	State       string        // connected, waiting, failed or draining
	Away        time.Duration // of the target, while State is waiting
	Reason      string        // why it is not connected
	Backend     string        // kind of disk, or via+PROVIDER
	Remote      bool          // the disk is that of another process
	Connections int
	InFlight    int

	Reads, Writes, Others   uint64 // requests answered
	BytesRead, BytesWritten uint64
	Errors                  uint64 // of the requests
	Waits                   uint64 // of the requests, for memory, a place in a queue or a range

	// Throttled is how long requests waited for the limits of the export, over
	// all of its faces; Limited says that there are limits.
	Throttled time.Duration
	Limited   bool

	Paths []HostPath // to the hosts of a target that has several

	// Network is the packets to the peers of the export; nil without packets.
	Network *Network

	Latency *latency.Status // nil before the first request
}

// Network is what packets to peers did.
type Network struct {
	Sent, Retransmitted uint64
	RoundTrip           time.Duration // the longest of the peers; 0 before it was measured
}

// HostPath is the way to one host of a target.
type HostPath struct {
	Host, State, Reason string
	Queues              int64  // that use it
	Requests, Losses    uint64 // in the present session
	LastLoss            time.Time
}

// PathUp is the state of a path that requests may use.
const PathUp = "up"

// PathsUp returns how many paths are up.
func (c *Counters) PathsUp() (n int) {
	for i := range c.Paths {
		if c.Paths[i].State == PathUp {
			n++
		}
	}
	return n
}

// Session is a client of a process.
type Session struct {
	PID                int
	ID, Face           string
	Peer, Identity     string
	Exports            []string
	Connections        int
	Opened, LastActive time.Time

	Reads, Writes           uint64
	BytesRead, BytesWritten uint64
	Waits                   uint64
}

// Path is the way to the target of a remote disk.
type Path struct {
	PID              int
	Export, Provider string
	Target           string // its identity
	State, Reason    string
	Away             time.Duration
	Losses           uint64
}
