package session

import (
	"path/filepath"
	"testing"
	"time"

	"github.com/viablk/viablk/initiator"
	"github.com/viablk/viablk/integration/testbed"
	"github.com/viablk/viablk/internal/block"
	"github.com/viablk/viablk/internal/handshake"
	"github.com/viablk/viablk/internal/pki"
	"github.com/viablk/viablk/target"
	"github.com/viablk/viablk/target/backend/backendtest"
	"github.com/viablk/viablk/target/limit"
)

// security is that of an initiator of the chain.
func (c *chain) security() (handshake.Config, error) {
	tls, err := pki.ClientConfig(filepath.Join(c.folder, "alice"), "localhost", true)
	return handshake.Config{TLS: tls}, err
}

// newSealedChain serves the devices in sealed sessions only.
func newSealedChain(t testing.TB, f testbed.Fabric, cfg target.Config, exports ...target.Export) *chain {
	t.Helper()
	folder := testbed.Certificates(t, "alice")
	certificates, err := pki.NewServerCertificates(filepath.Join(folder, "server"), true)
	testbed.Must(t, err)
	cfg.Security = &handshake.Guard{TLS: certificates.Config()}
	c := newChainOver(t, f.Provider, f.Host(t), cfg, exports...)
	c.folder = folder
	return c
}

// TestSealedDiskPassesDeviceKit runs the kit on disks of sealed sessions.
func TestSealedDiskPassesDeviceKit(t *testing.T) {
	for name, f := range testbed.Fabrics {
		t.Run(name, func(t *testing.T) {
			attach := func(t testing.TB, d block.Device) block.Device {
				return newSealedChain(t, f, target.Config{}, target.Export{Name: "disk", Device: d}).attach(t, "", nil)
			}
			backendtest.Run(t, func(t testing.TB) block.Device {
				return attach(t, openBackend(t, "file:"+testbed.SparseFile(t, 16<<20)))
			}, backendtest.Options{
				Slow: func(t testing.TB) block.Device {
					limited, err := limit.NewExport(openBackend(t, "memory:16MiB"), limit.Rates{Requests: 4, Burst: time.Nanosecond}, limit.Rates{})
					testbed.Must(t, err)
					return attach(t, limited)
				},
				Broken: func(t testing.TB) block.Device {
					return attach(t, openBackend(t, "fault:write=EIO:memory:16MiB"))
				},
			})
		})
	}
}

// TestSealedLengths: every length around the limits moves over every fabric,
// with limits of all sizes, through small pools.
func TestSealedLengths(t *testing.T) {
	t.Parallel()
	for name, f := range testbed.Fabrics {
		for _, cfg := range []target.Config{{}, {InlineMax: 512, MaxIO: 64 << 10, PoolBytes: 64 << 10, Depth: 2}, {InlineMax: 16 << 10, MaxIO: 8 << 20}} {
			t.Run(name, func(t *testing.T) {
				c := newSealedChain(t, f, cfg, target.Export{Name: "disk", Device: openBackend(t, "memory:32MiB")})
				d := c.attach(t, "", func(c *initiator.Config) { c.PoolBytes = 1 << 20 })
				for _, n := range []int{1, 511, 512, 513, 4095, 4096, 4097, 16 << 10, 16<<10 + 1, 128<<10 - 1, 128 << 10, 128<<10 + 1, 1<<20 + 1, 9 << 20} {
					out, in := testbed.RandomBytes(n), make([]byte, n)
					if _, err := d.WriteAt(out, 777); err != nil {
						t.Fatalf("write %d: %v", n, err)
					}
					if _, err := d.ReadAt(in, 777); err != nil || string(in) != string(out) {
						t.Fatalf("read %d: %v", n, err)
					}
				}
				if s := c.server.Status().Stats; s.BytesPulled == 0 || s.BytesPlaced == 0 || s.Forged != 0 {
					t.Errorf("stats %+v", s)
				}
				testbed.Must(t, d.Close())
			})
		}
	}
}
