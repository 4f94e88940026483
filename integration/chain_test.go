package integration

import (
	"context"
	"log/slog"
	"os"
	"path/filepath"
	"testing"

	"github.com/viablk/viablk/initiator"
	"github.com/viablk/viablk/internal/block"
	"github.com/viablk/viablk/target"
	"github.com/viablk/viablk/target/backend"
	"github.com/viablk/viablk/target/backend/backendtest"
	"github.com/viablk/viablk/via"
	"github.com/viablk/viablk/via/shm"
)

// chain is a target in this process and what attaches to it.
type chain struct {
	host   string
	nic    *via.NIC // of the initiators
	server *target.Server
}

// newChain serves the devices at a socket; it ends with the test.
func newChain(t testing.TB, cfg target.Config, exports ...target.Export) *chain {
	t.Helper()
	log := slog.New(slog.DiscardHandler)
	if testing.Verbose() {
		log = slog.New(slog.NewTextHandler(os.Stderr, nil))
	}
	c := &chain{host: filepath.Join(t.TempDir(), "target.sock")}
	var err error
	cfg.NIC, err = via.OpenNic(shm.New(shm.Options{}), "")
	must(t, err)
	c.nic, err = via.OpenNic(shm.New(shm.Options{}), "")
	must(t, err)
	for _, nic := range []*via.NIC{cfg.NIC, c.nic} {
		nic.ErrorCallback(func(via.AsyncError) {})
	}
	cfg.Exports, cfg.Log = exports, log
	c.server, err = target.New(cfg)
	must(t, err)
	l, err := c.server.Listen(c.host)
	must(t, err)
	ctx, cancel := context.WithCancel(context.Background())
	served := make(chan error, 1)
	go func() { served <- c.server.Serve(ctx, l) }()
	t.Cleanup(func() {
		cancel()
		must(t, <-served)
		must(t, cfg.NIC.Close())
		must(t, c.nic.Close())
		for _, e := range exports {
			must(t, e.Device.Close())
		}
	})
	return c
}

// attach opens an export; the caller closes the device.
func (c *chain) attach(t testing.TB, export string, change func(*initiator.Config)) *initiator.Device {
	t.Helper()
	cfg := initiator.Config{NIC: c.nic, Host: c.host, Export: export}
	if change != nil {
		change(&cfg)
	}
	d, err := initiator.Dial(context.Background(), cfg)
	must(t, err)
	return d
}

func openBackend(t testing.TB, spec string) block.Device {
	t.Helper()
	d, err := backend.Open(spec, backend.Options{})
	must(t, err)
	return d
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// TestRemoteDiskPassesDeviceKit runs the kit that every backend passes on disks
// with a whole target behind them.
func TestRemoteDiskPassesDeviceKit(t *testing.T) {
	specs := map[string]func(testing.TB) string{
		"memory": func(testing.TB) string { return "memory:16MiB" },
		"file":   func(t testing.TB) string { return "file:" + sparseFile(t, 16<<20) },
	}
	for name, spec := range specs {
		t.Run(name, func(t *testing.T) {
			backendtest.Run(t, func(t testing.TB) block.Device {
				c := newChain(t, target.Config{}, target.Export{Name: "disk", Device: openBackend(t, spec(t))})
				return c.attach(t, "", nil)
			}, backendtest.Options{
				Broken: func(t testing.TB) block.Device {
					c := newChain(t, target.Config{}, target.Export{Name: "disk", Device: openBackend(t, "fault:write=EIO:memory:16MiB")})
					return c.attach(t, "", nil)
				},
			})
		})
	}
}

func sparseFile(t testing.TB, size int64) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "disk.img")
	must(t, os.WriteFile(path, nil, 0o600))
	must(t, os.Truncate(path, size))
	return path
}
