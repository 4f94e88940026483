// Package metrics presents the state of a process as metrics for Prometheus.
//
// A [Snapshot] is plain data: the caller translates its state into one, and the
// package names, sums and encodes it. It alone knows the client library.
//
// The number of series is bounded, whatever clients do: no address, port or
// process of a client is a label, and with more than [MaximumExports] exports
// only those have series of their own that the caller selected.
package metrics

import (
	"time"

	"github.com/viablk/viablk/internal/latency"
)

// Snapshot is the state of a process. Elements with equal names are summed.
type Snapshot struct {
	Version, Revision string
	Started           time.Time
	Draining          bool
	Panics            uint64 // caught

	Exports      []Export
	Faces        []Face
	NBD          *NBD // nil without an NBD server
	Targets      []Target
	Remotes      []Remote
	Devices      []Device
	DeviceStates []DeviceState // of the host, by name
	Networks     []Network
	Certificates []Certificate
	Reloads      Reloads // of certificates
	Configured   Reloads // of the exports in the configuration
}

// Export is a disk that the process exports.
type Export struct {
	Name     string
	Backend  string // its kind
	UUID     string
	Size     int64 // bytes
	ReadOnly bool
	State    string // one of States

	Throttled        uint64 // requests that waited for limits
	ThrottledSeconds float64

	// Of a disk with checksums; nil without.
	CorruptBlocks *uint64 // reads of blocks that are not what was written
	Scrub         *Scrub
}

// Scrub is the scrubs of a disk.
type Scrub struct {
	Running  bool
	Progress float64 // of the running one, 0 to 1

	// Of the last one of the whole disk.
	Corrupt, Unreadable uint64    // blocks
	Ended               time.Time // zero: there was none
}

// States are those of an export.
var States = []string{"connected", "waiting", "failed"}

// Face is one way in: nbd, device or via+PROVIDER.
type Face struct {
	Name              string
	Accepted, Refused uint64 // connections
	Admitted, Limit   int    // connections of those that are limited, and how many there may be
	Exports           []Traffic
	Waits             []Wait
}

// NBD is what the NBD server counts of handshakes.
type NBD struct {
	Handshakes int    // now
	Dropped    uint64 // for newer ones
}

// Traffic is the requests to an export through one face.
type Traffic struct {
	Export      string
	Connections int
	InFlight    int // requests
	Requests    []Count
	Errors      uint64

	BytesRead, BytesWritten uint64

	Latency *latency.Status // nil before the first request
}

// Count is a number of requests by operation.
type Count struct {
	Operation string
	N         uint64
}

// Wait is how often requests waited, by reason.
type Wait struct {
	Reason string
	N      uint64
}

// Target is the side of a VIA provider that serves.
type Target struct {
	Provider      string
	Sessions      int
	Registrations uint64
	Quarantined   uint64 // connections
	DigestErrors  uint64
	Cache         Cache
}

// Remote is a disk of another process, by the name of its export.
type Remote struct {
	Export, Provider    string
	Connected           bool
	Losses              uint64
	DigestErrors        uint64
	DisconnectedSeconds float64
	Waits               []Wait
	Registrations       uint64
	QuarantinedBytes    int64
	Cache               Cache
	Paths               []Path // of a target with several hosts
}

// Path is the way to a host of a target.
type Path struct {
	Host string
	Up   bool
}

// Cache is a cache of registrations.
type Cache struct {
	Hits, Misses, Evictions, Refusals uint64
	Bytes                             int64
}

// Device is a block device of the kernel.
type Device struct {
	Name        string
	Connections int
	Replaced    uint64
}

// DeviceState is the state of a block device that viablk attached, by whichever
// process.
type DeviceState struct {
	Name  string
	State string // one of DeviceStates
}

// DeviceStates are those of a device: a process serves it, its requests wait
// for one, or it is none any more.
var DeviceStates = []string{"served", "waiting", "detached"}

// Network is one UDP address of RoCE. Local is its host.
type Network struct {
	Local                           string
	PacketsSent, PacketsReceived    uint64
	PacketsRetransmitted            uint64 // of those sent
	BytesSent, BytesReceived        uint64
	ManagerSent, ManagerRetransmits uint64
	Dropped                         []Wait // packets by reason
}

// Certificate is a file with a certificate or revocation list.
type Certificate struct {
	File  string
	Until time.Time
}

// Reloads counts how often something was read again.
type Reloads struct {
	Succeeded, Failed uint64
	Last              time.Time // success; zero before the first
}
