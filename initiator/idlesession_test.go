package initiator_test

import (
	"testing"
	"time"

	"github.com/viablk/viablk/initiator"
	"github.com/viablk/viablk/target"
	"github.com/viablk/viablk/via"
	"github.com/viablk/viablk/via/hook"
	"github.com/viablk/viablk/via/shm"
)

// TestIdleDiskSendsLittle: over shared memory, both ends of an idle session see
// that the other is alive, and send few keepalives.
func TestIdleDiskSendsLittle(t *testing.T) {
	const interval, intervals, most = 100 * time.Millisecond, 12, 4
	r := newRemote(t, target.Config{KeepAlive: interval}, "memory:1MiB")
	provider := hook.Stats(shm.New(shm.Options{}))
	nic, err := via.OpenNic(provider, "")
	must(t, err)
	t.Cleanup(func() { must(t, nic.Close()) })
	d := r.dial(t, "a", func(c *initiator.Config) { c.NIC = nic })
	_, err = d.ReadAt(make([]byte, 4096), 0)
	must(t, err)
	sent := uint64(intervals)
	for range 50 { // the machine may be slow: then keepalives are right
		before := provider.Counters().Send.Posts
		time.Sleep(intervals * interval)
		if sent = provider.Counters().Send.Posts - before; sent <= most {
			return
		}
	}
	t.Errorf("%d messages in %d intervals", sent, intervals)
}
