package activity

import (
	"time"

	"github.com/viablk/viablk/internal/latency"
)

// Row is what happened at an export in an interval. Rates are by the second;
// shares are in 0 to 1, and -1 where there is nothing to share.
type Row struct {
	*Counters
	Interval time.Duration // 0 if there is no earlier state of the process

	ReadRate, WriteRate, OtherRate, ErrorRate float64
	ReadBytes, WriteBytes                     float64

	P50, P99, P999 time.Duration         // of all requests; 0 without
	Durations      *latency.Distribution // of them; nil without
	Operations     [latency.Operations]Operation

	InBackend  float64 // share of the requests' time in the disk
	InLimit    float64 // share that they waited for limits
	Waited     float64 // share of the requests that waited in the server
	Retransmit float64 // packets that were retransmitted
	Repeated   float64 // their share of the packets

	// Silent is how long requests have been in flight and none was answered.
	Silent time.Duration

	Paths []PathRow // to the hosts of a target that has several

	where Place
}

// Operation is the requests of one kind.
type Operation struct {
	Rate           float64
	Mean           time.Duration
	InBackend      time.Duration // mean, in the disk
	P50, P99, P999 time.Duration
	count          uint64
	total, behind  time.Duration // sums, of all and in the disk
}

// Place is where most of the time of requests goes.
type Place string

// The places.
const (
	Nowhere   Place = "-"        // there were no requests
	InBackend Place = "backend"  // the disk
	InTarget  Place = "target"   // the target of a remote disk, and the way to it
	InNetwork Place = "network"  // packets are lost, or on their way
	InLimits  Place = "limit"    // of the export
	InQueue   Place = "queue"    // in the server: for memory, a place in a queue, or a range
	InTransit Place = "transfer" // in the server and between it and the client
	NoAnswer  Place = "stuck"    // the disk does not answer
)

// Limits of the rules that find a place.
const (
	most       = 0.5             // of the time
	lossy      = 0.01            // of the packets
	silentTime = 2 * time.Second // without an answer
)

// Rate returns the requests in a second.
func (r *Row) Rate() float64 { return r.ReadRate + r.WriteRate + r.OtherRate }

// Bytes returns the payload in a second.
func (r *Row) Bytes() float64 { return r.ReadBytes + r.WriteBytes }

// Troubled reports whether requests are not answered.
func (r *Row) Troubled() bool {
	return r.State == Waiting || r.State == Failed || r.where == NoAnswer
}

// Where returns where most of the time of requests goes, and the share of it
// if that is known, else -1.
func (r *Row) Where() (Place, float64) {
	share := -1.0
	switch r.where {
	case InBackend, InTarget:
		share = r.InBackend
	case InLimits:
		share = r.InLimit
	case InQueue:
		share = r.Waited
	}
	return r.where, share
}

// Degraded reports whether requests go on although a path is not up.
func (r *Row) Degraded() bool { return r.State == Connected && r.PathsUp() < len(r.Counters.Paths) }

// newRow compares counters with earlier ones of the same process.
func newRow(now, earlier *Counters, interval time.Duration) Row {
	r := Row{Counters: now, Interval: interval, InBackend: -1, InLimit: -1, Waited: -1, Repeated: -1, where: Nowhere, Paths: pathRows(now.Paths, earlier.Paths)}
	if interval <= 0 {
		return r
	}
	rate := func(a, b uint64) float64 { return float64(since(a, b)) / interval.Seconds() }
	r.ReadRate, r.WriteRate = rate(now.Reads, earlier.Reads), rate(now.Writes, earlier.Writes)
	r.OtherRate, r.ErrorRate = rate(now.Others, earlier.Others), rate(now.Errors, earlier.Errors)
	r.ReadBytes, r.WriteBytes = rate(now.BytesRead, earlier.BytesRead), rate(now.BytesWritten, earlier.BytesWritten)
	if n := r.answered(earlier); n > 0 {
		r.Waited = min(1, float64(since(now.Waits, earlier.Waits))/float64(n))
	}
	if a, b := now.Network, earlier.Network; a != nil && b != nil {
		again, sent := since(a.Retransmitted, b.Retransmitted), since(a.Sent, b.Sent)
		r.Retransmit = float64(again) / interval.Seconds()
		if sent > 0 {
			r.Repeated = min(1, float64(again)/float64(sent))
		}
	}
	r.measure(earlier.Latency)
	return r
}

// answered returns how many requests were answered since.
func (r *Row) answered(earlier *Counters) uint64 {
	return since(r.Reads, earlier.Reads) + since(r.Writes, earlier.Writes) + since(r.Others, earlier.Others)
}

// since returns how much a counter advanced. One that is a sum over peers
// falls when a peer leaves.
func since(now, earlier uint64) uint64 { return max(now, earlier) - earlier }

// measure adds how long requests took.
func (r *Row) measure(earlier *latency.Status) {
	if r.Latency == nil {
		return
	}
	var all latency.Distribution
	var total, behind time.Duration
	for o := range r.Operations {
		requests, disk := r.Latency.Requests[o], r.Latency.Backend[o]
		if earlier != nil {
			requests, disk = requests.Since(&earlier.Requests[o]), disk.Since(&earlier.Backend[o])
		}
		if requests.Count == 0 {
			continue
		}
		x := &r.Operations[o]
		x.count, x.total, x.behind = requests.Count, requests.Sum, disk.Sum
		x.Rate = float64(x.count) / r.Interval.Seconds()
		x.Mean = requests.Sum / time.Duration(requests.Count)
		x.P50, x.P99, x.P999 = requests.Quantile(0.5), requests.Quantile(0.99), requests.Quantile(0.999)
		if disk.Count > 0 {
			x.InBackend = disk.Sum / time.Duration(disk.Count)
		}
		total, behind = total+x.total, behind+x.behind
		all.Merge(&requests)
	}
	if all.Count > 0 {
		r.P50, r.P99, r.P999, r.Durations = all.Quantile(0.5), all.Quantile(0.99), all.Quantile(0.999), &all
	}
	if total > 0 {
		r.InBackend = min(1, behind.Seconds()/total.Seconds())
	}
}

// place finds where the time goes. total is the time of the requests of the
// export over all faces, and throttled how long they waited for its limits.
func (r *Row) place(total, throttled time.Duration) {
	if total > 0 && r.Limited {
		r.InLimit = min(1, throttled.Seconds()/total.Seconds())
	}
	switch {
	case r.Silent >= silentTime:
		r.where = NoAnswer
	case r.Rate() == 0:
		r.where = Nowhere
	case r.InLimit >= most:
		r.where = InLimits
	case r.Repeated >= lossy, r.distant():
		r.where = InNetwork
	case r.InBackend >= most && r.Remote:
		r.where = InTarget
	case r.InBackend >= most:
		r.where = InBackend
	case r.Waited >= most:
		r.where = InQueue
	default:
		r.where = InTransit
	}
}

// distant reports whether a round trip of packets is most of the time of a
// request to a target.
func (r *Row) distant() bool {
	if !r.Remote || r.Network == nil {
		return false
	}
	var n uint64
	var total time.Duration
	for i := range r.Operations {
		n += r.Operations[i].count
		total += r.Operations[i].total
	}
	return n > 0 && r.Network.RoundTrip.Seconds() >= most*total.Seconds()/float64(n)
}
