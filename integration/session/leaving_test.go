package session

import (
	"bytes"
	"context"
	"errors"
	"flag"
	"math/rand/v2"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/viablk/viablk/initiator"
	"github.com/viablk/viablk/integration/history"
	"github.com/viablk/viablk/integration/testbed"
	"github.com/viablk/viablk/internal/block"
	"github.com/viablk/viablk/internal/nbd"
	"github.com/viablk/viablk/target"
	"github.com/viablk/viablk/via"
)

var returns = flag.Int("session.returns", 10, "returns of a target whose clients leave")

const (
	leavers   = 16
	leaveSpan = 30 * time.Millisecond // after the return
	leaveUnit = 4096
)

// replaced is a target in this process that is stopped and started again.
type replaced struct {
	fabric testbed.Fabric
	host   string
	disk   block.Device
	cancel context.CancelFunc
	served chan error
	nic    *via.NIC
}

func openShm(t testing.TB) *via.NIC { return openNIC(t, testbed.Fabrics["shm"]) }

func openNIC(t testing.TB, f testbed.Fabric) *via.NIC {
	t.Helper()
	nic, err := via.OpenNic(f.Provider(), "")
	testbed.Must(t, err)
	nic.ErrorCallback(func(via.AsyncError) {})
	return nic
}

func (r *replaced) start(t testing.TB) {
	t.Helper()
	r.nic = openNIC(t, r.fabric)
	s, err := target.New(target.Config{NIC: r.nic, Exports: []target.Export{{Name: "disk", Device: r.disk}}})
	testbed.Must(t, err)
	l, err := s.Listen(r.host)
	testbed.Must(t, err)
	ctx, cancel := context.WithCancel(context.Background())
	served := make(chan error, 1)
	go func() { served <- s.Serve(ctx, l) }()
	r.cancel, r.served = cancel, served
}

func (r *replaced) stop(t testing.TB) {
	t.Helper()
	r.cancel()
	testbed.Must(t, <-r.served)
	testbed.Must(t, r.nic.Close())
}

// leaver is a client of a block of its own that leaves when the target is back.
type leaver struct {
	conn *history.Conn
	at   int64
	may  []byte // what its block may be filled with
}

// come connects, checks the block and fills it.
func (l *leaver) come(ctx context.Context, socket string, fill byte) error {
	var err error
	if l.conn, err = history.Dial(ctx, "unix", socket, ""); err != nil {
		return err
	}
	p := make([]byte, leaveUnit)
	if _, err := l.conn.ReadAt(p, l.at); err != nil {
		return err
	}
	if !bytes.Contains(l.may, p[:1]) || !bytes.Equal(p, bytes.Repeat(p[:1], leaveUnit)) {
		return errors.New("the block is not what was written")
	}
	l.may = []byte{fill}
	_, err = l.conn.WriteAt(bytes.Repeat(l.may, leaveUnit), l.at)
	return err
}

// write fills the block, unless the client leaves before.
func (l *leaver) write(fill byte) {
	before := l.may
	l.may = append(before, fill)
	if _, err := l.conn.WriteAt(bytes.Repeat([]byte{fill}, leaveUnit), l.at); err == nil {
		l.may = []byte{fill}
	}
}

// TestClientsLeaveAtReturns: every queue ends whose client leaves while the
// target comes back, with a request in flight or without.
func TestClientsLeaveAtReturns(t *testing.T) {
	t.Parallel()
	r := &replaced{
		fabric: testbed.Fabrics["shm"],
		host:   filepath.Join(t.TempDir(), "target.sock"),
		disk:   openBackend(t, "file:"+testbed.SparseFile(t, leavers*leaveUnit)),
	}
	r.start(t)
	nic := openShm(t)
	d, err := initiator.Dial(t.Context(), initiator.Config{
		NIC: nic, Host: r.host, LossTimeout: initiator.Forever, ReconnectDelay: 10 * time.Millisecond,
	})
	testbed.Must(t, err)
	exports, err := nbd.NewExports(nbd.Export{Name: "disk", Device: d})
	testbed.Must(t, err)
	socket := filepath.Join(t.TempDir(), "n")
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	listener, err := nbd.Listen(ctx, "unix", socket)
	testbed.Must(t, err)
	served := make(chan error, 1)
	go func() { served <- (&nbd.Server{Exports: exports}).Serve(ctx, listener) }()

	random := rand.New(rand.NewPCG(1, 1))
	clients := make([]leaver, leavers)
	for i := range clients {
		clients[i].at, clients[i].may = int64(i)*leaveUnit, []byte{0}
	}
	for round := range *returns {
		for i := range clients {
			testbed.Must(t, clients[i].come(ctx, socket, byte(2*round)))
		}
		r.stop(t)
		back := make(chan struct{})
		var left sync.WaitGroup
		for i := range clients {
			c, delay := &clients[i], time.Duration(random.Int64N(int64(leaveSpan)))
			if i%2 == 0 {
				left.Go(func() { c.write(byte(2*round + 1)) })
			}
			left.Go(func() {
				<-back
				time.Sleep(delay)
				if err := c.conn.Abort(); err != nil {
					t.Error(err)
				}
			})
		}
		r.start(t)
		close(back)
		left.Wait()
		testbed.Eventually(t, "the end of every queue", func() (any, bool) {
			n := d.Status().Queues
			return n, n == 0
		})
	}
	t.Logf("%d returns: %+v", *returns, d.Status().Stats)
	cancel()
	if err := <-served; !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
	testbed.Must(t, d.Close())
	r.stop(t)
	testbed.Must(t, errors.Join(nic.Close(), r.disk.Close()))
}
