package initiator_test

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/viablk/viablk/initiator"
	"github.com/viablk/viablk/internal/block"
	"github.com/viablk/viablk/target"
	"github.com/viablk/viablk/target/backend"
	"github.com/viablk/viablk/via"
)

// remote is a real target in this process and the NIC of its initiators.
type remote struct {
	host   string
	nic    *via.NIC
	cfg    target.Config
	folder string // of certificates; "" is sessions in clear
	digest bool   // of payload
	server *target.Server
	stop   func()
}

// newRemote serves disks, by their specifications, named "a", "b" and so on.
func newRemote(t testing.TB, cfg target.Config, specs ...string) *remote {
	t.Helper()
	return serveRemote(t, &remote{host: filepath.Join(t.TempDir(), "target.sock"), nic: openNIC(t), cfg: cfg}, specs...)
}

// newDigestRemote serves disks in sessions with data digests only.
func newDigestRemote(t testing.TB, cfg target.Config, specs ...string) *remote {
	t.Helper()
	cfg.RequireDigest = true
	return serveRemote(t, &remote{host: filepath.Join(t.TempDir(), "target.sock"), nic: openNIC(t), cfg: cfg, digest: true}, specs...)
}

// newSealedRemote serves disks in sealed sessions only.
func newSealedRemote(t testing.TB, cfg target.Config, specs ...string) *remote {
	t.Helper()
	folder := certificates(t, "alice", "mallory")
	cfg.Security = targetSecurity(t, folder)
	return serveRemote(t, &remote{host: filepath.Join(t.TempDir(), "target.sock"), nic: openNIC(t), cfg: cfg, folder: folder}, specs...)
}

func serveRemote(t testing.TB, r *remote, specs ...string) *remote {
	t.Helper()
	if r.cfg.KeepAlive == 0 {
		r.cfg.KeepAlive = 1500 * time.Millisecond // no peer dies because the machine is slow
	}
	for i, spec := range specs {
		d, err := backend.Open(spec, backend.Options{})
		must(t, err)
		r.cfg.Exports = append(r.cfg.Exports, target.Export{Name: string(rune('a' + i)), Device: d})
	}
	r.start(t)
	t.Cleanup(func() {
		r.stop()
		must(t, r.nic.Close())
		for _, x := range r.cfg.Exports {
			must(t, x.Device.Close())
		}
	})
	return r
}

// start begins to serve the disks, also after stop.
func (r *remote) start(t testing.TB) {
	t.Helper()
	r.cfg.NIC = openNIC(t)
	var err error
	r.server, err = target.New(r.cfg)
	must(t, err)
	l, err := r.server.Listen(r.host)
	must(t, err)
	ctx, cancel := context.WithCancel(context.Background())
	served, nic := make(chan error, 1), r.cfg.NIC
	go func() { served <- r.server.Serve(ctx, l) }()
	r.stop = sync.OnceFunc(func() {
		cancel()
		must(t, <-served)
		must(t, nic.Close())
	})
}

// dial attaches; the device is closed with the test.
func (r *remote) dial(t testing.TB, export string, change func(*initiator.Config)) *initiator.Device {
	t.Helper()
	cfg := initiator.Config{NIC: r.nic, Host: r.host, Export: export, Digest: r.digest, Log: slog.New(slog.DiscardHandler)}
	if r.folder != "" {
		cfg.Security = initiatorSecurity(r.folder, "alice", targetName)
	}
	if change != nil {
		change(&cfg)
	}
	d, err := initiator.Dial(context.Background(), cfg)
	must(t, err)
	t.Cleanup(func() { must(t, d.Close()) })
	return d
}

// fileSpec is a sparse file.
func fileSpec(t testing.TB, size int64) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "disk.img")
	must(t, os.WriteFile(path, nil, 0o600))
	must(t, os.Truncate(path, size))
	return "file:" + path
}

// pattern fills memory with bytes that do not repeat.
func pattern(b []byte, seed byte) {
	var piece [4096]byte
	for at := 0; at < len(b); at += len(piece) {
		scatter(&piece, at, seed)
		copy(b[at:], piece[:])
	}
}

// scatter fills a piece of memory of its caller's with what belongs at a place.
// The race detector, which would look at every byte, sees the copy of the
// piece.
//
//go:norace
func scatter(piece *[4096]byte, at int, seed byte) {
	for k := range piece {
		i := at + k
		piece[k] = byte(i) ^ byte(i>>8)*3 ^ byte(i>>16)*7 ^ seed
	}
}

// TestFile: the device as a file, small and large, at the end and beyond.
func TestFile(t *testing.T) {
	for name, serve := range serves {
		t.Run(name, func(t *testing.T) { readsAndWrites(t, serve(t, target.Config{}, "memory:80MiB", fileSpec(t, 80<<20))) })
	}
}

func readsAndWrites(t *testing.T, r *remote) {
	for _, export := range []string{"a", "b"} {
		d := r.dial(t, export, nil)
		for _, n := range []int{1, 512, 4096, 4097, 64 << 10, 1 << 20, 1<<20 + 1, 70 << 20} {
			out, in := make([]byte, n), make([]byte, n)
			pattern(out, byte(n))
			if k, err := d.WriteAt(out, 511); k != n || err != nil {
				t.Fatalf("write %d bytes: %d, %v", n, k, err)
			}
			if k, err := d.ReadAt(in, 511); k != n || err != nil || !bytes.Equal(in, out) {
				t.Fatalf("read %d bytes: %d, %v, equal %v", n, k, err, bytes.Equal(in, out))
			}
		}
		must(t, d.Sync())
		must(t, d.WriteZeroes(4096, 8<<20))
		must(t, d.Trim(0, 16<<20))
		b := make([]byte, 1024)
		if n, err := d.ReadAt(b, d.Size()-100); n != 100 || err != io.EOF {
			t.Errorf("read over the end: %d, %v", n, err)
		}
		if n, err := d.WriteAt(b, d.Size()-100); n != 0 || block.Errno(err) != syscall.ENOSPC {
			t.Errorf("write over the end: %d, %v", n, err)
		}
		if st := d.Status(); !st.Connected || st.Queues == 0 || st.Stats.Reads == 0 || st.Stats.Errors+st.Stats.Forged+st.Stats.DigestErrors != 0 ||
			st.DataDigest != r.digest || (r.folder != "") != (st.Stats.SealedBytes > 140<<20) {
			t.Errorf("status %+v", st)
		}
		must(t, d.Close())
		if _, err := d.ReadAt(b, 0); err == nil {
			t.Error("a closed device reads")
		}
	}
}

// TestReadOnly: a reader beside a writer, which writes nothing.
func TestReadOnly(t *testing.T) {
	r := newRemote(t, target.Config{}, "memory:16MiB")
	w := r.dial(t, "a", nil)
	if _, err := initiator.Dial(context.Background(), initiator.Config{NIC: r.nic, Host: r.host}); block.Errno(err) != syscall.EBUSY {
		t.Errorf("a second writer: %v", err)
	}
	d := r.dial(t, "a", func(c *initiator.Config) { c.ReadOnly = true })
	if d.Info().Features&block.ReadOnly == 0 {
		t.Error("the device does not say that it is read-only")
	}
	_, err := w.WriteAt([]byte("hello"), 5)
	must(t, err)
	b := make([]byte, 5)
	if _, err := d.ReadAt(b, 5); err != nil || string(b) != "hello" {
		t.Errorf("read %q, %v", b, err)
	}
	if _, err := d.WriteAt(b, 0); block.Errno(err) != syscall.EPERM {
		t.Errorf("write: %v", err)
	}
}

// TestReattach: the export is free once Close has returned, and the connection
// index of a queue soon after.
func TestReattach(t *testing.T) {
	r := newRemote(t, target.Config{Depth: 1024}, fileSpec(t, 16<<20)) // 63 connections a session
	for range 30 {
		d := r.dial(t, "a", nil)
		_, err := d.WriteAt(make([]byte, 8192), 0)
		must(t, err)
		must(t, d.Close())
	}
	d := r.dial(t, "a", nil)
	for range 200 {
		q, err := d.NewQueue(4)
		must(t, err)
		must(t, q.Close())
	}
}

// TestIdleFile: a file works after a long idle time. With keepalives of 10 ms a
// process that waits 40 ms for a busy processor is declared dead.
func TestIdleFile(t *testing.T) {
	r := newRemote(t, target.Config{KeepAlive: 350 * time.Millisecond}, "memory:16MiB")
	d := r.dial(t, "a", nil)
	b := make([]byte, 512)
	_, err := d.ReadAt(b, 0)
	must(t, err)
	slept := r.server.Status().Stats.Sleeps
	waitFor(t, "many keepalives", func() bool {
		if err := d.Err(); err != nil {
			t.Fatalf("lost while idle: %v", err)
		}
		return r.server.Status().Stats.Sleeps > slept+10
	})
	if _, err := d.ReadAt(b, 0); err != nil {
		t.Error(err)
	}
}

// TestCloseInFlight: a queue closes with requests in flight and reserved
// memory.
func TestCloseInFlight(t *testing.T) {
	r := newRemote(t, target.Config{}, "delay:any=50ms:memory:16MiB")
	d := r.dial(t, "a", nil)
	q, err := d.NewQueue(8)
	must(t, err)
	submit(t, q, request(block.Read, 0, 512), request(block.Write, 0, 64<<10), request(block.Read, 0, 1<<20), request(block.Flush, 0, 0))
	q.Reserve(&block.Request{Op: block.Write, Length: 4096})
	must(t, q.Close())
	if _, err := d.ReadAt(make([]byte, 512), 0); err != nil {
		t.Error(err)
	}
}

// TestTargetStops: the end of the target ends requests, and nothing hangs.
func TestTargetStops(t *testing.T) {
	r := newRemote(t, target.Config{}, "fault:read=hang:memory:16MiB")
	d := r.dial(t, "a", nil)
	q := open(t, d, 8)
	held := &block.Request{Op: block.Write, Length: 64 << 10}
	q.Reserve(held)
	submit(t, q, request(block.Read, 0, 512), request(block.Read, 0, 1<<20), held)
	wantAll(t, q, 1, 0)
	r.stop()
	wantAll(t, q, 2, syscall.EIO)
	<-d.Done()
	q.Release(held)
	if !q.Reserve(held) {
		t.Error("a lost queue has no memory")
	}
	submit(t, q, held)
	wantAll(t, q, 1, syscall.EIO)
	q.Release(held)
	if st := d.Status(); st.Connected || st.Error == "" {
		t.Errorf("status %+v", st)
	}
}

// TestNoAllocations: in steady state a request costs neither an allocation nor
// a registration, at both ends.
func TestNoAllocations(t *testing.T) {
	for name, serve := range serves {
		t.Run(name, func(t *testing.T) {
			// A session that a busy machine loses costs hundreds of allocations,
			// which are no request's.
			allocatesNothing(t, serve(t, target.Config{KeepAlive: time.Minute}, "memory:16MiB", fileSpec(t, 16<<20)))
		})
	}
}

// serves are the ways to serve disks.
var serves = map[string]func(testing.TB, target.Config, ...string) *remote{
	"plain": newRemote, "digest": newDigestRemote, "sealed": newSealedRemote,
}

func allocatesNothing(t *testing.T, r *remote) {
	for _, export := range []string{"a", "b"} {
		d := r.dial(t, export, nil)
		q := open(t, d, 4)
		buf := make([]*block.Request, 4)
		for _, reserve := range []bool{false, true} {
			for what, a := range asks {
				x := request(a.op, 0, a.n)
				run := func() {
					if reserve {
						q.Reserve(x)
					}
					q.Submit(x)
					q.Kick()
					for q.Reap(buf) == 0 {
						_ = nap(q)
					}
					if x.Err != nil {
						t.Fatal(x.Err)
					}
					q.Release(x)
				}
				registrations := d.Status().Registrations
				if n := testing.AllocsPerRun(100, run); n != 0 {
					t.Errorf("%s, %s, reserved %v: %v allocations", export, what, reserve, n)
				}
				if n := d.Status().Registrations; n != registrations {
					t.Errorf("%s, %s: %d registrations", export, what, n-registrations)
				}
			}
		}
	}
}

// BenchmarkQueue is one request at a time, through both ends.
func BenchmarkQueue(b *testing.B) {
	b.Run("plain", func(b *testing.B) { benchmarkQueue(b, newRemote(b, target.Config{}, "memory:16MiB")) })
	b.Run("digest", func(b *testing.B) { benchmarkQueue(b, newDigestRemote(b, target.Config{}, "memory:16MiB")) })
	b.Run("sealed", func(b *testing.B) { benchmarkQueue(b, newSealedRemote(b, target.Config{}, "memory:16MiB")) })
}

func benchmarkQueue(b *testing.B, r *remote) {
	d := r.dial(b, "a", nil)
	q := open(b, d, 4)
	done := make([]*block.Request, 4)
	for _, n := range []int64{4 << 10, 64 << 10, 128 << 10} {
		for op, name := range map[block.Op]string{block.Read: "read", block.Write: "write"} {
			b.Run(fmt.Sprintf("%s %d KiB", name, n>>10), func(b *testing.B) {
				b.ReportAllocs()
				x := &block.Request{Op: op, Length: n}
				for b.Loop() {
					q.Reserve(x)
					q.Submit(x)
					q.Kick()
					for q.Reap(done) == 0 {
						_ = nap(q)
					}
					if x.Err != nil {
						b.Fatal(x.Err)
					}
					q.Release(x)
				}
			})
		}
	}
}
