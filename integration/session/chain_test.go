package session

import (
	"context"
	"log/slog"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/viablk/viablk/initiator"
	"github.com/viablk/viablk/integration/testbed"
	"github.com/viablk/viablk/internal/block"
	"github.com/viablk/viablk/target"
	"github.com/viablk/viablk/target/backend"
	"github.com/viablk/viablk/target/backend/backendtest"
	"github.com/viablk/viablk/target/limit"
	"github.com/viablk/viablk/via"
	"github.com/viablk/viablk/via/shm"
)

// chain is a target in this process and what attaches to it.
type chain struct {
	host   string
	nic    *via.NIC // of the initiators
	server *target.Server
	folder string // of certificates, if sessions are sealed
}

// newChain serves the devices at a socket; it ends with the test.
func newChain(t testing.TB, cfg target.Config, exports ...target.Export) *chain {
	t.Helper()
	host := filepath.Join(t.TempDir(), "target.sock")
	return newChainOver(t, func() via.Provider { return shm.New(shm.Options{}) }, host, cfg, exports...)
}

// newChainOver serves the devices at a host address of a provider.
func newChainOver(t testing.TB, provider func() via.Provider, host string, cfg target.Config, exports ...target.Export) *chain {
	t.Helper()
	log := slog.New(slog.DiscardHandler)
	if testing.Verbose() {
		log = slog.New(slog.NewTextHandler(os.Stderr, nil))
	}
	c := &chain{host: host}
	var err error
	cfg.NIC, err = via.OpenNic(provider(), "")
	testbed.Must(t, err)
	c.nic, err = via.OpenNic(provider(), "")
	testbed.Must(t, err)
	for _, nic := range []*via.NIC{cfg.NIC, c.nic} {
		nic.ErrorCallback(func(via.AsyncError) {})
	}
	if cfg.KeepAlive == 0 {
		cfg.KeepAlive = 1500 * time.Millisecond // no peer dies because the machine is slow
	}
	cfg.Exports, cfg.Log = exports, log
	c.server, err = target.New(cfg)
	testbed.Must(t, err)
	l, err := c.server.Listen(c.host)
	testbed.Must(t, err)
	ctx, cancel := context.WithCancel(context.Background())
	served := make(chan error, 1)
	go func() { served <- c.server.Serve(ctx, l) }()
	t.Cleanup(func() {
		cancel()
		testbed.Must(t, <-served)
		testbed.Must(t, cfg.NIC.Close())
		testbed.Must(t, c.nic.Close())
		for _, e := range exports {
			testbed.Must(t, e.Device.Close())
		}
	})
	return c
}

// attach opens an export; the caller closes the device.
func (c *chain) attach(t testing.TB, export string, change func(*initiator.Config)) *initiator.Device {
	t.Helper()
	cfg := initiator.Config{NIC: c.nic, Host: c.host, Export: export}
	if c.folder != "" {
		cfg.Security = c.security
	}
	if change != nil {
		change(&cfg)
	}
	d, err := initiator.Dial(context.Background(), cfg)
	testbed.Must(t, err)
	return d
}

func openBackend(t testing.TB, spec string) block.Device {
	t.Helper()
	d, err := backend.Open(spec, backend.Options{})
	testbed.Must(t, err)
	return d
}

// TestRemoteDiskPassesDeviceKit runs the kit that every backend passes on disks
// with a whole target behind them, also with data digests.
func TestRemoteDiskPassesDeviceKit(t *testing.T) {
	specs := map[string]func(testing.TB) string{
		"memory": func(testing.TB) string { return "memory:16MiB" },
		"file":   func(t testing.TB) string { return "file:" + testbed.SparseFile(t, 16<<20) },
		"digest": func(testing.TB) string { return "memory:16MiB" },
	}
	for name, spec := range specs {
		t.Run(name, func(t *testing.T) {
			digest := func(c *initiator.Config) { c.Digest = name == "digest" }
			backendtest.Run(t, func(t testing.TB) block.Device {
				c := newChain(t, target.Config{}, target.Export{Name: "disk", Device: openBackend(t, spec(t))})
				return c.attach(t, "", digest)
			}, backendtest.Options{
				Slow: func(t testing.TB) block.Device {
					limited, err := limit.NewExport(openBackend(t, spec(t)), limit.Rates{Requests: 4, Burst: time.Nanosecond}, limit.Rates{})
					testbed.Must(t, err)
					return newChain(t, target.Config{}, target.Export{Name: "disk", Device: limited}).attach(t, "", digest)
				},
				Broken: func(t testing.TB) block.Device {
					c := newChain(t, target.Config{}, target.Export{Name: "disk", Device: openBackend(t, "fault:write=EIO:memory:16MiB")})
					return c.attach(t, "", digest)
				},
			})
		})
	}
}
