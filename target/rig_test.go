package target_test

import (
	"bytes"
	"context"
	"log/slog"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/viablk/viablk/internal/block"
	"github.com/viablk/viablk/target"
	"github.com/viablk/viablk/target/backend"
	"github.com/viablk/viablk/via"
	"github.com/viablk/viablk/via/shm"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// testTimeout bounds how long a test waits for a condition.
const testTimeout = time.Minute

// rig is a server in this process and the NIC of those who connect to it.
type rig struct {
	t           testing.TB
	host        string
	nic         *via.NIC
	server      *target.Server
	exports     []target.Export
	log         *logBook
	cancel      context.CancelFunc
	served      chan error
	quarantines bool // connections of the server stay quarantined: its NIC does not close
}

// newRig serves the exports until the test ends. No connection is left then, or
// the NIC would not close.
func newRig(t testing.TB, cfg target.Config, exports ...target.Export) *rig {
	t.Helper()
	t.Cleanup(func() {
		for _, e := range exports {
			must(t, e.Device.Close())
		}
	})
	return serve(t, cfg, exports...)
}

// serve is newRig for exports whose disks the caller closes.
func serve(t testing.TB, cfg target.Config, exports ...target.Export) *rig {
	t.Helper()
	r := &rig{t: t, host: filepath.Join(t.TempDir(), "target.sock"), exports: exports, log: &logBook{}, served: make(chan error, 1)}
	if cfg.NIC == nil {
		cfg.NIC = openNIC(t)
	}
	r.nic = openNIC(t)
	if cfg.KeepAlive == 0 {
		cfg.KeepAlive = time.Hour // no peer dies because the machine is slow
	}
	cfg.Exports = exports
	cfg.Log = slog.New(slog.NewTextHandler(r.log, &slog.HandlerOptions{Level: slog.LevelWarn}))
	var err error
	r.server, err = target.New(cfg)
	must(t, err)
	l, err := r.server.Listen(r.host)
	must(t, err)
	ctx, cancel := context.WithCancel(context.Background())
	r.cancel = cancel
	go func() { r.served <- r.server.Serve(ctx, l) }()
	t.Cleanup(func() {
		cancel()
		must(t, <-r.served)
		if err := cfg.NIC.Close(); (err != nil) != r.quarantines {
			t.Errorf("close the NIC of the target: %v", err)
		}
		must(t, r.nic.Close())
	})
	return r
}

func openNIC(t testing.TB) *via.NIC {
	t.Helper()
	nic, err := via.OpenNic(shm.New(shm.Options{}), "")
	must(t, err)
	nic.ErrorCallback(func(via.AsyncError) {})
	return nic
}

// disk is an export of memory, where data moves by RDMA to and from the disk:
// no part of it is a hole.
func disk(t testing.TB, name string) target.Export {
	t.Helper()
	d := openDevice(t, "memory:16MiB")
	d.(block.Mapped).Access(0, 16<<20, true)
	return target.Export{Name: name, Device: d}
}

// fileDisk is an export of a file, where data moves through the pool.
func fileDisk(t testing.TB, name string) target.Export {
	t.Helper()
	path := filepath.Join(t.TempDir(), name+".img")
	must(t, os.WriteFile(path, nil, 0o600))
	must(t, os.Truncate(path, 16<<20))
	return target.Export{Name: name, Device: openDevice(t, "file:"+path)}
}

func openDevice(t testing.TB, spec string) block.Device {
	t.Helper()
	d, err := backend.Open(spec, backend.Options{})
	must(t, err)
	return d
}

// state is what must be the same again when a connection has ended.
type state struct {
	connections, sessions int
	opens                 string
}

func (r *rig) state() state {
	s := r.server.Status()
	b := state{connections: s.Connections, sessions: s.Sessions}
	for _, x := range s.Exports {
		b.opens += x.Name + string(rune('0'+x.Opens)) + " "
	}
	return b
}

// reaches waits until the server is in a state.
func (r *rig) reaches(want state) {
	r.t.Helper()
	waitFor(r.t, "the server to be as before", func() bool { return r.state() == want })
}

// waitFor waits for a condition that no event announces.
func waitFor(t testing.TB, what string, ok func() bool) {
	t.Helper()
	for deadline := time.Now().Add(testTimeout); !ok(); time.Sleep(200 * time.Microsecond) {
		if time.Now().After(deadline) {
			t.Fatalf("waited %v for %s", testTimeout, what)
		}
	}
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// logBook keeps what the server logs.
type logBook struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (l *logBook) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(p)
}

func (l *logBook) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.String()
}
