package simulation

import (
	"context"
	"fmt"
	"log/slog"
)

// Counts are how often happened in a run what the run is there for: a schedule
// that does not exercise it proves nothing.
type Counts struct {
	PathLosses int // paths that a session lost

	// FailOvers are those of them that the target fenced, whose requests go on
	// over another path. HeldFailOvers are those with packets of the old path
	// that the network holds back.
	FailOvers, HeldFailOvers int

	// LatePackets were held back and arrived when their connection had ended.
	// Misrouted are those that met a later connection, which must refuse them.
	LatePackets, Misrouted int

	Takeovers       int // of a target by a successor that got its disk
	FailedTakeovers int // after which the target served on

	// Orphans are successors whose target died before it had given them
	// everything. Unfinished are targets that did so with requests in the disk.
	Orphans, Unfinished int
}

// add adds the counts of another run.
func (c *Counts) add(o Counts) {
	c.PathLosses += o.PathLosses
	c.FailOvers += o.FailOvers
	c.HeldFailOvers += o.HeldFailOvers
	c.LatePackets += o.LatePackets
	c.Misrouted += o.Misrouted
	c.Takeovers += o.Takeovers
	c.FailedTakeovers += o.FailedTakeovers
	c.Orphans += o.Orphans
	c.Unfinished += o.Unfinished
}

// String is the counts for people.
func (c *Counts) String() string {
	return fmt.Sprintf("%d paths lost, %d fail-overs, %d of them with packets held back; %d packets after the end of their connection, %d of them at a later one; "+
		"%d takeovers, %d failed, %d of a target that died, %d of them with requests in the disk",
		c.PathLosses, c.FailOvers, c.HeldFailOvers, c.LatePackets, c.Misrouted, c.Takeovers, c.FailedTakeovers, c.Orphans, c.Unfinished)
}

// observer is the log of a client, which counts the events of its paths.
type observer struct {
	world  *World
	client *client
	path   uint64       // that the events are of
	next   slog.Handler // nil: none
}

// Enabled implements [slog.Handler], as do the other methods.
func (*observer) Enabled(context.Context, slog.Level) bool { return true }

// Handle counts an event.
func (o *observer) Handle(ctx context.Context, r slog.Record) error {
	r.Attrs(func(a slog.Attr) bool {
		if a.Key == "event" {
			o.count(a.Value.String())
		}
		return a.Key != "event"
	})
	if o.next == nil {
		return nil
	}
	return o.next.Handle(ctx, r)
}

func (o *observer) count(event string) {
	w := o.world
	switch event {
	case "path_lost":
		w.counts.PathLosses++
	case "path_fenced":
		w.counts.FailOvers++
		if w.network.path(targetHosts[o.path], o.client.host).packets > 0 {
			w.counts.HeldFailOvers++
		}
	}
}

// WithAttrs notes the path of further events.
func (o *observer) WithAttrs(attrs []slog.Attr) slog.Handler {
	with := *o
	for _, a := range attrs {
		if a.Key == "path" {
			with.path = a.Value.Uint64()
		}
	}
	if o.next != nil {
		with.next = o.next.WithAttrs(attrs)
	}
	return &with
}

// WithGroup returns the same log: the product has no groups.
func (o *observer) WithGroup(string) slog.Handler { return o }
