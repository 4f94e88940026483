package nemesis

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"path/filepath"
	"testing"

	"github.com/viablk/viablk/integration/history"
	"github.com/viablk/viablk/integration/testbed"
)

// keepalive is short, so that a loss over a network is noticed soon.
const keepalive = "70ms"

// run is a run of a setup. The goroutine of the test owns it.
type run struct {
	Setup
	t       *testing.T
	monitor *history.Monitor
	random  *rand.Rand
	target  *testbed.Process
	attach  *testbed.Process
	uri     string // of the disk, at the target

	kills  int
	faults map[string]int // by name

	first int            // number of the next client
	conns []history.Disk // of the clients
	stop  chan struct{}  // closed: the clients end
	ended chan error     // the result of the clients
}

// startTarget starts the target, anew or for the first time.
func (r *run) startTarget() {
	r.t.Helper()
	// The hosts of a network trust each other.
	args := []string{"target", "--insecure", "--listen", r.Listen}
	for _, u := range r.More {
		args = append(args, "--listen", u)
	}
	if r.Digest {
		args = append(args, "--require-data-digest")
	}
	r.target = testbed.StartBinaryAt(r.t, r.Target, testbed.Program(r.t), append(args,
		"--admin", filepath.Join(testbed.Folder(r.t), "target"), "--export", r.Disk.Name+"="+r.Disk.Spec, "--keepalive", keepalive)...)
	if r.uri = r.target.URI(r.Disk.Name, r.Scheme); r.Hosts != "" {
		r.uri = r.Scheme + "://" + r.Hosts + "/" + r.Disk.Name
	}
}

// startAttach starts the initiator.
func (r *run) startAttach(more ...string) {
	r.t.Helper()
	more = append(more, "--reconnect-delay", "20ms")
	if r.Digest {
		more = append(more, "--data-digest")
	}
	for _, u := range r.Paths {
		more = append(more, "--path", u)
	}
	r.attach = testbed.AttachURIAt(r.t, r.Attach, testbed.Program(r.t), r.uri, r.Disk.Name, more...)
}

// startClients connects clients and has them begin.
func (r *run) startClients() {
	r.t.Helper()
	_, socket := testbed.AddressOf(r.t, r.attach.URI(r.Disk.Name, "nbd+unix"))
	r.conns = nil
	for range connections {
		c, err := history.Dial(r.t.Context(), "unix", socket, r.Disk.Name)
		testbed.Must(r.t, err)
		r.conns = append(r.conns, c)
	}
	l, first, conns := load, r.first, r.conns
	r.stop, r.ended = make(chan struct{}), make(chan error, 1)
	l.Seed, l.Stop = *seed, r.stop
	r.first += connections * load.Clients
	ended := r.ended
	go func() { ended <- l.Run(r.monitor, first, conns...) }()
}

// step is how many operations must not take too long.
const step = 2000

// await waits until there are more operations.
func (r *run) await(more int) {
	r.t.Helper()
	for ; more > 0; more -= step {
		enough := r.monitor.Counts().Operations + min(more, step)
		testbed.Eventually(r.t, "more operations", func() (any, bool) {
			select {
			case err := <-r.ended:
				r.t.Fatalf("the clients ended: %v", err)
			default:
			}
			n := r.monitor.Counts().Operations
			return fmt.Sprintf("%d, %d are enough", n, enough), n >= enough
		})
	}
}

// stopClients ends the clients; each of their requests has been answered.
func (r *run) stopClients() {
	r.t.Helper()
	close(r.stop)
	testbed.Must(r.t, <-r.ended)
	for _, c := range r.conns {
		testbed.Must(r.t, c.(*history.Conn).Close())
	}
}

// crashAttach kills the initiator. Its clients lose what they have in flight.
func (r *run) crashAttach() {
	r.t.Helper()
	r.kills++
	r.attach.Crash()
	if err := <-r.ended; err == nil || errors.Is(err, history.ErrTorn) {
		r.t.Fatalf("the clients of a killed initiator ended: %v", err)
	}
	for _, c := range r.conns {
		_ = c.(*history.Conn).Close() // it is broken
	}
}

// crashTarget kills the target.
func (r *run) crashTarget() {
	r.t.Helper()
	r.kills++
	r.target.Crash()
}

// attachAgain has another initiator take the disk over. From its first request
// on, what its predecessor sent has no effect any more.
func (r *run) attachAgain() {
	r.t.Helper()
	var more []string
	if r.random.IntN(2) == 0 {
		more = []string{"--preempt"}
	} else {
		testbed.Eventually(r.t, "the end of the session of the killed initiator", func() (any, bool) {
			x := r.target.Status().Targets[0].Exports[0]
			return x, len(x.Clients) == 0
		})
	}
	r.startAttach(more...)
	r.monitor.ExpireLost()
	r.startClients()
}
