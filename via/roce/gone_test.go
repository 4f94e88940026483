package roce_test

import (
	"testing"
	"time"

	"github.com/viablk/viablk/via"
	"github.com/viablk/viablk/via/roce"
)

// unhurried are options by which no retry ends while a test runs: only news of
// the peer end a connection.
var unhurried = roce.Options{Timeout: time.Hour, Retries: 7}

// lost posts a send, and waits until it has failed and broken the connection.
func (x *party) lost(t *testing.T) {
	t.Helper()
	check(t, x.vi.PostSend(x.build(via.OpSend, 0, 64, nil)))
	var status via.Status
	within(t, "the loss", func() bool {
		if x.cq.Poll(x.batch[:]) != 0 {
			status = x.batch[0].Status
		}
		return x.vi.State() == via.StateError
	})
	if status&via.StatusErrorMask != via.StatusTransportError {
		t.Errorf("the send completed with %v", status)
	}
}

// TestRefusedPort: the kernel of the host where the peer's process died refuses
// its port, and that ends the connection.
func TestRefusedPort(t *testing.T) {
	x, cmd := spawn(t, unhurried)
	check(t, cmd.Process.Kill())
	_ = cmd.Wait() // it was killed
	x.lost(t)
	x.close()
}

// TestRestartedPeer: a process that took the place of the peer's denies the
// queue pair, and that ends the connection.
func TestRestartedPeer(t *testing.T) {
	host := freePort(t, "127.0.0.1")
	x, cmd := spawnAt(t, host, unhurried)
	check(t, cmd.Process.Kill())
	_ = cmd.Wait() // it was killed
	y := newParty(t, roce.New(roce.Options{}), "")
	l, err := y.nic.Listen(via.Address{Host: host, Discriminator: "other"})
	check(t, err)
	x.lost(t)
	x.close()
	check(t, l.Close())
	y.close()
}
