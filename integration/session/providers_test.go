package session

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"path/filepath"
	"testing"

	"github.com/viablk/viablk/integration/history"
	"github.com/viablk/viablk/integration/testbed"
	"github.com/viablk/viablk/internal/sched"
	"github.com/viablk/viablk/target"
	"github.com/viablk/viablk/target/backend"
	"github.com/viablk/viablk/target/reserve"
	"github.com/viablk/viablk/via"
)

var providerCuts = flag.Int("session.providercuts", 2, "how often TestCutOfOneProvider cuts each of two providers")

// providersLoad has requests in flight at any time, on few blocks.
var providersLoad = history.Load{Blocks: 16, Longest: 4, Clients: 4, Requests: 1 << 30, Durable: 50, Seed: 1}

// way is a target's server of one provider, which comes and goes while others
// of the target stay.
type way struct {
	t      testing.TB
	host   string
	server *target.Server
	cancel context.CancelFunc // nil: cut
	served chan error
}

// newWay serves an export over a provider, with the sessions of the target.
func newWay(t testing.TB, f testbed.Fabric, sessions *target.Sessions, x target.Export) *way {
	t.Helper()
	nic, err := via.OpenNic(f.Provider(), "")
	testbed.Must(t, err)
	nic.ErrorCallback(func(via.AsyncError) {})
	w := &way{t: t, host: f.Host(t), served: make(chan error, 1)}
	w.server, err = target.New(target.Config{NIC: nic, Exports: []target.Export{x}, Sessions: sessions})
	testbed.Must(t, err)
	w.mend()
	t.Cleanup(func() {
		if w.cancel != nil {
			w.cut()
		}
		testbed.Must(t, nic.Close())
	})
	return w
}

// mend listens and serves.
func (w *way) mend() {
	w.t.Helper()
	l, err := w.server.Listen(w.host)
	testbed.Must(w.t, err)
	ctx, cancel := context.WithCancel(context.Background())
	w.cancel = cancel
	go func() { w.served <- w.server.Serve(ctx, l) }()
}

// cut ends all connections, with what is in flight, and the listener.
func (w *way) cut() {
	w.t.Helper()
	w.cancel()
	w.cancel = nil
	testbed.Must(w.t, <-w.served)
}

// TestCutOfOneProvider: an attached disk has a path over shared memory and one
// over RoCE. Either is cut while many requests are in flight, which go on over
// the other: none fails, the session stays the same, and the disk is
// linearizable.
func TestCutOfOneProvider(t *testing.T) {
	sessions, err := target.NewSessions(nil)
	testbed.Must(t, err)
	disk, err := backend.Open("delay:read=1ms,write=5ms:memory:1MiB", backend.Options{})
	testbed.Must(t, err)
	t.Cleanup(func() { testbed.Must(t, disk.Close()) })
	x := target.Export{Name: "disk", Device: disk, Reservations: reserve.New(disk, sched.Real)}
	ways := []*way{newWay(t, testbed.Fabrics["shm"], sessions, x), newWay(t, testbed.Fabrics["roce"], sessions, x)}

	a := testbed.AttachURIAt(t, testbed.StartCommand, testbed.Program(t), "via+shm:///disk?socket="+ways[0].host, "disk", "--path", "via+roce://"+ways[1].host)
	_, socket := testbed.AddressOf(t, a.URI("disk", "nbd+unix"))
	up := func(what string, done func() bool) {
		t.Helper()
		testbed.Eventually(t, what, func() (any, bool) {
			p := a.Status().Initiators[0].Paths
			return p, p[0].State == "up" && p[1].State == "up" && done()
		})
	}
	up("both paths", func() bool { return true })
	session := a.Status().Initiators[0].Session

	m, stop := history.NewMonitor(), make(chan struct{})
	load := providersLoad
	load.Stop = stop
	ended := make(chan error, 1)
	disks := dialHistory(t, socket, "disk")
	go func() { ended <- load.Run(m, 0, disks...) }()
	progress := func(over int) func() bool { // of requests over a path, by all connections
		before := a.Status().Initiators[0].Paths[over].Requests
		return func() bool {
			p := a.Status().Initiators[0].Paths[over]
			return p.Queues >= historyConnections && p.Requests > before+200
		}
	}
	up("requests over shared memory", progress(0))
	for n := range 2 * *providerCuts {
		lost := n % 2
		ways[lost].cut()
		progressed := progress(1 - lost) // before queues may move back
		testbed.Eventually(t, fmt.Sprintf("requests over the other path, cut %d", n+1), func() (any, bool) {
			return a.Status().Initiators[0].Paths, progressed()
		})
		ways[lost].mend()
		up(fmt.Sprintf("the path after cut %d", n+1), func() bool { return true })
	}
	close(stop)
	testbed.Must(t, <-ended)
	for _, found := range m.Finish() {
		path := filepath.Join(t.TempDir(), "violation.json")
		t.Error(errors.Join(found, found.History().Save(path)))
	}
	st := a.Status()
	i := st.Initiators[0]
	t.Logf("%d operations; paths %+v", m.Counts().Operations, i.Paths)
	if st.NBD.Total.Errors != 0 || i.Stats.Errors != 0 || i.SessionLosses != 0 || i.Session != session ||
		i.Paths[0].Losses < uint64(*providerCuts) || i.Paths[1].Losses < uint64(*providerCuts) {
		t.Errorf("nbd: %d errors; initiator: %+v", st.NBD.Total.Errors, i)
	}
}
