package session

import (
	"fmt"
	"net"
	"path/filepath"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/viablk/viablk/initiator"
	"github.com/viablk/viablk/integration/testbed"
	"github.com/viablk/viablk/internal/block"
	"github.com/viablk/viablk/internal/handshake"
	"github.com/viablk/viablk/internal/pki"
	"github.com/viablk/viablk/target"
	"github.com/viablk/viablk/target/backend/backendtest"
	"github.com/viablk/viablk/target/limit"
	"github.com/viablk/viablk/via"
	"github.com/viablk/viablk/via/roce"
	"github.com/viablk/viablk/via/shm"
)

// security is that of an initiator of the chain.
func (c *chain) security() (handshake.Config, error) {
	tls, err := pki.ClientConfig(filepath.Join(c.folder, "alice"), "localhost", true)
	return handshake.Config{TLS: tls}, err
}

// fabric is a way to connect the ends of a chain in this process.
type fabric struct {
	provider func() via.Provider
	host     func(testing.TB) string
}

var fabrics = map[string]fabric{
	"shm": {
		func() via.Provider { return shm.New(shm.Options{}) },
		func(t testing.TB) string { return filepath.Join(t.TempDir(), "target.sock") },
	},
	"roce": {func() via.Provider { return roce.New(roce.Options{}) }, freeAddress},
}

// freeAddress returns a UDP address of this host that is not in use.
func freeAddress(t testing.TB) string {
	t.Helper()
	c, err := net.ListenPacket("udp", "127.0.0.1:0")
	testbed.Must(t, err)
	defer c.Close()
	return c.LocalAddr().String()
}

// newSealedChain serves the devices in sealed sessions only.
func newSealedChain(t testing.TB, f fabric, cfg target.Config, exports ...target.Export) *chain {
	t.Helper()
	folder := testbed.Certificates(t, "alice")
	certificates, err := pki.NewServerCertificates(filepath.Join(folder, "server"), true)
	testbed.Must(t, err)
	cfg.Security = &handshake.Guard{TLS: certificates.Config()}
	c := newChainOver(t, f.provider, f.host(t), cfg, exports...)
	c.folder = folder
	return c
}

// TestSealedDiskPassesDeviceKit runs the kit on disks of sealed sessions.
func TestSealedDiskPassesDeviceKit(t *testing.T) {
	for name, f := range fabrics {
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
	for name, f := range fabrics {
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

// BenchmarkSealed compares sealed with plain sessions, both ends in this
// process. Requests wait for their memory as those of a local client do.
func BenchmarkSealed(b *testing.B) {
	for name, f := range fabrics {
		for _, n := range []int64{4 << 10, 128 << 10} {
			for _, depth := range []int{1, 16} {
				for op, what := range map[block.Op]string{block.Read: "read", block.Write: "write"} {
					for _, sealed := range []bool{false, true} {
						b.Run(fmt.Sprintf("%s/%d/%s/%d/sealed=%v", name, n, what, depth, sealed), func(b *testing.B) {
							disk := target.Export{Name: "disk", Device: openBackend(b, "memory:16MiB")}
							serve := func() *chain { return newChainOver(b, f.provider, f.host(b), target.Config{}, disk) }
							if sealed {
								serve = func() *chain { return newSealedChain(b, f, target.Config{}, disk) }
							}
							d := serve().attach(b, "", nil)
							defer d.Close()
							benchmarkDepth(b, d, op, n, depth)
						})
					}
				}
			}
		}
	}
}

// benchmarkDepth keeps requests in flight.
func benchmarkDepth(b *testing.B, d *initiator.Device, op block.Op, n int64, depth int) {
	q, err := d.NewQueue(depth)
	testbed.Must(b, err)
	defer q.Close()
	requests, done := make([]block.Request, depth), make([]*block.Request, depth)
	begin := func(r *block.Request) {
		*r = block.Request{Op: op, Offset: r.Offset, Length: n}
		if !q.Reserve(r) || !q.Submit(r) {
			b.Fatal("the queue is full")
		}
	}
	reap := func() int {
		for {
			if k := q.Reap(done); k > 0 {
				return k
			}
			if timeout, ok := q.Arm(); ok {
				t := unix.NsecToTimespec(int64(max(timeout, 0)))
				if timeout < 0 {
					t = unix.Timespec{Sec: 1}
				}
				_, _ = unix.Ppoll([]unix.PollFd{{Fd: int32(q.FD()), Events: unix.POLLIN}}, &t, nil)
			}
		}
	}
	b.SetBytes(n)
	b.ReportAllocs()
	b.ResetTimer()
	for i := range requests {
		requests[i].Offset = int64(i) * n
		begin(&requests[i])
	}
	q.Kick()
	for left := b.N; left > 0; {
		k := reap()
		for _, r := range done[:k] {
			testbed.Must(b, r.Err)
			q.Release(r)
			begin(r)
		}
		q.Kick()
		left -= k
	}
	for inFlight := depth; inFlight > 0; {
		k := reap()
		for _, r := range done[:k] {
			q.Release(r)
		}
		inFlight -= k
	}
}
