package top

import (
	"time"

	"github.com/viablk/viablk/cmd/viablk/internal/activity"
)

// Document is a sample for programs.
type Document struct {
	Schema  string           `json:"schema"` // viablk.top/v1
	Time    time.Time        `json:"time"`
	Error   string           `json:"error,omitempty"` // why there is no state
	Exports []ExportDocument `json:"exports"`
}

// ExportDocument is what happened at an export. Shares are absent where there
// is nothing to share.
type ExportDocument struct {
	activity.Key

	Interval       float64  `json:"interval_seconds"` // 0: there is no earlier state, and no rate
	State          string   `json:"state"`
	Reason         string   `json:"reason,omitempty"`
	WaitingSeconds float64  `json:"waiting_seconds,omitempty"`
	Backend        string   `json:"backend"`
	Connections    int      `json:"connections"`
	InFlight       int      `json:"in_flight"`
	Reads          float64  `json:"reads_per_second"`
	Writes         float64  `json:"writes_per_second"`
	Others         float64  `json:"others_per_second"`
	Errors         float64  `json:"errors_per_second"`
	ReadBytes      float64  `json:"read_bytes_per_second"`
	WrittenBytes   float64  `json:"written_bytes_per_second"`
	P50            float64  `json:"p50_us"`
	P99            float64  `json:"p99_us"`
	P999           float64  `json:"p99_9_us"`
	TimeIn         string   `json:"time_in"` // backend, target, network, limit, queue, transfer, stuck or -
	InBackend      *float64 `json:"share_in_backend,omitempty"`
	InLimit        *float64 `json:"share_in_limits,omitempty"`
	Waited         *float64 `json:"share_waited,omitempty"`
	SilentSeconds  float64  `json:"silent_seconds,omitempty"`
	Retransmitted  *float64 `json:"retransmitted_per_second,omitempty"`
	RoundTrip      *float64 `json:"round_trip_us,omitempty"`

	Paths []PathDocument `json:"paths,omitempty"` // to a target with several hosts
}

// PathDocument is a path to a host of the target of an attached disk.
type PathDocument struct {
	Host        string    `json:"host"`
	State       string    `json:"state"` // up, lost or down
	Reason      string    `json:"reason,omitempty"`
	Connections int64     `json:"connections"`
	Share       *float64  `json:"share_of_requests,omitempty"`
	Losses      uint64    `json:"path_losses"` // in this session
	LastLoss    time.Time `json:"last_loss,omitzero"`
}

// NewDocument describes a sample, or why there is none.
func NewDocument(r *activity.Rows, at time.Time, err error) Document {
	d := Document{Schema: "viablk.top/v1", Time: at, Exports: []ExportDocument{}}
	if err != nil {
		d.Error = err.Error()
		return d
	}
	for i := range r.Exports {
		d.Exports = append(d.Exports, newExportDocument(&r.Exports[i]))
	}
	return d
}

func newExportDocument(r *activity.Row) ExportDocument {
	where, _ := r.Where()
	d := ExportDocument{
		Key: r.Key, Interval: r.Interval.Seconds(), State: r.State, Reason: r.Reason, WaitingSeconds: r.Away.Seconds(),
		Backend: r.Backend, Connections: r.Connections, InFlight: r.InFlight,
		Reads: r.ReadRate, Writes: r.WriteRate, Others: r.OtherRate, Errors: r.ErrorRate,
		ReadBytes: r.ReadBytes, WrittenBytes: r.WriteBytes, P50: micros(r.P50), P99: micros(r.P99), P999: micros(r.P999), TimeIn: string(where),
		InBackend: share(r.InBackend), InLimit: share(r.InLimit), Waited: share(r.Waited), SilentSeconds: r.Silent.Seconds(),
	}
	for _, p := range r.Paths {
		d.Paths = append(d.Paths, PathDocument{p.Host, p.State, p.Reason, p.Queues, share(p.Share), p.Losses, p.LastLoss})
	}
	if n := r.Network; n != nil {
		rtt := micros(n.RoundTrip)
		d.RoundTrip = &rtt
		if r.Interval > 0 {
			d.Retransmitted = &r.Retransmit
		}
	}
	return d
}

// share returns a share that is known.
func share(f float64) *float64 {
	if f < 0 {
		return nil
	}
	return &f
}

func micros(d time.Duration) float64 { return float64(d) / float64(time.Microsecond) }
