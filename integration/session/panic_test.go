package session

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"net/netip"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/viablk/viablk/initiator"
	"github.com/viablk/viablk/integration/testbed"
	"github.com/viablk/viablk/internal/contain"
	"github.com/viablk/viablk/target"
	"github.com/viablk/viablk/via"
	"github.com/viablk/viablk/via/roce"
	"github.com/viablk/viablk/via/roce/port"
	"github.com/viablk/viablk/via/roce/port/porttest"
)

// verifiedLoad writes to a disk and reads back, until it is stopped.
type verifiedLoad struct {
	rounds atomic.Int64
	stop   atomic.Bool
}

func (l *verifiedLoad) run(d *initiator.Device) error {
	out, in := make([]byte, 64<<10), make([]byte, 64<<10)
	for n := 0; !l.stop.Load(); n++ {
		for i := range out {
			out[i] = byte(n + i>>8)
		}
		at := int64(n%64) * int64(len(out))
		if _, err := d.WriteAt(out, at); err != nil {
			return fmt.Errorf("write %d: %w", n, err)
		}
		if _, err := d.ReadAt(in, at); err != nil {
			return fmt.Errorf("read %d: %w", n, err)
		}
		if !bytes.Equal(in, out) {
			return fmt.Errorf("round %d reads something else than it wrote", n)
		}
		l.rounds.Add(1)
	}
	return nil
}

// TestPanicsInRoCE: panics in the goroutines and pollers of a RoCE endpoint end
// connections, at whichever end they are. Devices return by themselves, no
// request fails, and the other device notices nothing.
func TestPanicsInRoCE(t *testing.T) {
	before := slog.Default()
	slog.SetDefault(slog.New(slog.DiscardHandler)) // of what is planted
	t.Cleanup(func() { slog.SetDefault(before) })
	var panics porttest.Panics
	open := panics.Wrap(func(local netip.AddrPort) (port.Port, error) { return port.OpenUDP(local, port.UDPOptions{}) })
	c := newChainOver(t, func() via.Provider { return roce.New(roce.Options{Open: open, Timeout: 200 * time.Millisecond}) }, testbed.FreeAddress(t), target.Config{},
		target.Export{Name: "a", Device: openBackend(t, "file:"+testbed.SparseFile(t, 16<<20))},
		target.Export{Name: "b", Device: openBackend(t, "file:"+testbed.SparseFile(t, 16<<20))})
	var devices [2]*initiator.Device
	var loads [2]verifiedLoad
	var running sync.WaitGroup
	for i, name := range []string{"a", "b"} {
		devices[i] = c.attach(t, name, func(c *initiator.Config) { c.LossTimeout, c.ReconnectDelay = initiator.Forever, time.Millisecond })
		running.Go(func() {
			if err := loads[i].run(devices[i]); err != nil {
				t.Errorf("disk %s: %v", name, err)
			}
		})
	}
	moves := func() {
		t.Helper()
		for i := range loads {
			from := loads[i].rounds.Load()
			testbed.Eventually(t, "requests", func() (any, bool) { return devices[i].Status(), loads[i].rounds.Load() > from+2 || t.Failed() })
		}
	}
	losses := func() (n [2]uint64) {
		for i, d := range devices {
			s := d.Status()
			n[i] = s.SessionLosses + s.Stats.Reconnects
		}
		return n
	}
	caught := contain.Count()
	want := uint64(0)
	for round := range 6 {
		moves()
		had := losses()
		arm := func(x porttest.Panic) {
			t.Helper()
			panics.Plant(x)
			want++
			testbed.Eventually(t, "the panic", func() (any, bool) { return contain.Count() - caught, contain.Count()-caught == want || t.Failed() })
		}
		arm(porttest.Panic{Call: []string{"Receive", "Send"}[round%2]})
		if round%3 > 0 { // while the connection ends, or is made again
			arm(porttest.Panic{Manager: true, Call: []string{"", "Receive", "Send"}[round%3]})
		}
		moves()
		has := losses()
		if has[0] != had[0] && has[1] != had[1] {
			t.Errorf("round %d: both devices lost something, %v after %v", round, has, had)
		}
	}
	for i, d := range devices {
		loads[i].stop.Store(true)
		if s := d.Status(); s.State != initiator.StateConnected || s.Quarantine != nil {
			t.Errorf("status %+v", s)
		}
	}
	running.Wait()
	for _, d := range devices {
		testbed.Must(t, d.Close())
	}
	again, err := initiator.Dial(context.Background(), initiator.Config{NIC: c.nic, Host: c.host, Export: "a"})
	testbed.Must(t, err)
	testbed.Must(t, again.Close())
}
