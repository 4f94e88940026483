package attack

import (
	"flag"
	"fmt"
	"testing"

	"github.com/viablk/viablk/integration/history"
	"github.com/viablk/viablk/integration/testbed"
)

var onWay = flag.Int("attack.onway", 8, "packets and messages that an attacker on the cable changes, of each kind")

// users are clients of an attached disk whose reads are compared with what was
// written, in its first part.
type users struct {
	t       *testing.T
	monitor *history.Monitor
	conns   []history.Disk
	stop    chan struct{}
	ended   chan error
}

// newUsers connects clients and has them begin, with requests of up to so many
// blocks of 4 KiB.
func newUsers(t *testing.T, c *cable, longest int) *users {
	t.Helper()
	u := &users{t: t, monitor: history.NewMonitor(), stop: make(chan struct{}), ended: make(chan error, 1)}
	_, socket := testbed.AddressOf(t, c.uri())
	for range 2 {
		conn, err := history.Dial(t.Context(), "unix", socket, c.disk.Name)
		testbed.Must(t, err)
		u.conns = append(u.conns, conn)
	}
	load := history.Load{Blocks: 48, Longest: longest, Hot: 8, Durable: 50, Clients: 4, Requests: 1 << 30, Seed: 3, Stop: u.stop}
	go func() { u.ended <- load.Run(u.monitor, 0, u.conns...) }()
	return u
}

// progress waits for more requests.
func (u *users) progress(more int) {
	u.t.Helper()
	from := u.monitor.Counts().Operations
	testbed.Eventually(u.t, "more requests", func() (any, bool) {
		u.alive()
		n := u.monitor.Counts().Operations
		return fmt.Sprintf("%d of %d", n-from, more), n-from >= more
	})
}

// alive fails the test if the clients ended, by a request that failed or a read
// that brought no block that was ever written.
func (u *users) alive() {
	u.t.Helper()
	select {
	case err := <-u.ended:
		u.t.Fatalf("the clients ended: %v", err)
	default:
	}
}

// finish ends the clients, all of whose requests must have succeeded, and
// whose reads must have brought what was written.
func (u *users) finish() {
	u.t.Helper()
	close(u.stop)
	testbed.Must(u.t, <-u.ended)
	for _, c := range u.conns {
		testbed.Must(u.t, c.(*history.Conn).Close())
	}
	for _, a := range u.monitor.Finish() {
		u.t.Errorf("a read brought something else: %v", a)
	}
}

// attackOnWay uses a disk in sealed sessions while a man in the middle does
// each of these, and checks that nothing of it is accepted.
func attackOnWay(t *testing.T, kinds []tampering) {
	t.Helper()
	t.Parallel()
	c := newCable(t, true)
	c.startTarget()
	c.startInitiator()
	// Its connection stands before the attacks: meanwhile a client that comes
	// may be refused.
	big := testbed.StartFio(t, c.uri(), testbed.WithVerify("--rw=randrw", "--bssplit=4k/20:64k/40:1m/40", "--iodepth=4", "--offset=4m", "--size=4m", "--rate=1m,1m")...)
	testbed.Eventually(t, "requests of fio", func() (any, bool) {
		n := c.target.Status().Targets[0].Exports[0].Stats
		return n, n.Reads+n.Writes > 5
	})
	u := newUsers(t, c, 3)
	u.progress(50)
	a := newTamperer(c.bed)
	m := c.bed.Interpose(a.decide)
	u.progress(50)
	for i := range kinds {
		k := &kinds[i]
		before := c.failedTags()
		a.begin(k)
		testbed.Eventually(t, "attacks on "+k.name, func() (any, bool) {
			u.alive()
			n, found := a.attacks(), c.failedTags()-before
			enough := max(1, *onWay/k.slow)
			return fmt.Sprintf("%d attacks, %d found", n, found), n >= enough && (found > 0 || !k.found || n >= 20*enough)
		})
		n := a.begin(nil)
		u.progress(20)
		found := c.failedTags() - before
		t.Logf("%s: %d attacks, %d failed tags", k.name, n, found)
		if k.found && found == 0 {
			t.Errorf("%s: no tag failed in %d attacks", k.name, n)
		}
	}
	m.Stop()
	u.progress(100)
	u.finish()
	testbed.Succeed(t, big)
	c.flawless()
	if i := c.attach.Status().Initiators[0]; i.SessionLosses+i.Stats.Reconnects == 0 {
		t.Error("no connection ended")
	}
}

// TestFlipsOnCable: no bit that a man in the middle flips reaches the disk or a
// reader, in messages, payload, headers and what connects, although the
// checksums and tags of packets are right: what is found to be forged ends its
// connection, and the device goes on by another one.
func TestFlipsOnCable(t *testing.T) { attackOnWay(t, flips) }

// TestMessagesOnCable: no message is accepted twice, in another order or in the
// place of another one, nor is one missed that its sender believes to have
// arrived.
func TestMessagesOnCable(t *testing.T) { attackOnWay(t, others) }
