package main

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/viablk/viablk/cmd/viablk/internal/statuspage"
	"github.com/viablk/viablk/internal/block"
	"github.com/viablk/viablk/internal/latency"
	"github.com/viablk/viablk/internal/metrics"
	"github.com/viablk/viablk/internal/nbd"
	"github.com/viablk/viablk/target"
)

// busyProcess is the state of a target with disks, each of which had reads and
// writes of 100 µs to 3 ms over NBD and VIA.
func busyProcess(disks int) processStatus {
	var set latency.Set
	r := set.Acquire()
	for d := 100 * time.Microsecond; d < 3*time.Millisecond; d += d / 10 {
		for _, o := range []latency.Operation{latency.Read, latency.Write} {
			r.Add(latency.Request, o, d)
			r.Add(latency.Backend, o, d/2)
		}
	}
	set.Release(r)
	p := newStatus("target")
	p.NBD, p.Targets = &nbd.Status{}, []target.Status{{Provider: "shm"}}
	for i := range disks {
		name := fmt.Sprintf("disk-%05d", i)
		p.Exports = append(p.Exports, exportStatus{Name: name, Size: 1 << 30, URIs: []string{"nbd://192.0.2.1/" + name, "via+shm:///" + name}})
		p.Disks = append(p.Disks, diskStatus{Name: name, Backend: "file", UUID: "00112233-4455-6677-8899-aabbccddeeff"})
		p.NBD.Exports = append(p.NBD.Exports, nbd.ExportStatus{
			Name: name, Connections: 1, Counters: nbd.Counters{Reads: 10_000, Writes: 10_000, BytesRead: 1 << 30, BytesWritten: 1 << 30}, Latency: set.Read(),
		})
		p.Targets[0].Exports = append(p.Targets[0].Exports, target.ExportStatus{
			Name: name, Size: 1 << 30, Connections: 1, Latency: set.Read(),
			Stats: target.ExportCounts{Counts: block.Counts{Reads: 10_000, Writes: 10_000, BytesRead: 1 << 30, BytesWritten: 1 << 30}},
		})
	}
	return p
}

// BenchmarkScrape prints what each page of the metrics listener costs a process
// with disks that are all in use, and how long it is. Each round is a new
// state, which the process translates and encodes.
func BenchmarkScrape(b *testing.B) {
	for _, disks := range []int{1, 100, 1000} {
		p := busyProcess(disks)
		state := func() *statusDocument {
			now := p
			now.Faces = now.faces()
			return &statusDocument{status: now, metrics: newSnapshot(&now, nil, &certificates{}, metrics.Reloads{}, false), made: time.Now()}
		}
		b.Run(fmt.Sprintf("metrics/exports=%d", disks), func(b *testing.B) {
			var d *statusDocument
			page := metrics.NewPage(func(context.Context) (*metrics.Snapshot, error) { return d.metrics, nil }, nil)
			measure(b, page, func() { d = state() })
		})
		b.Run(fmt.Sprintf("status/exports=%d", disks), func(b *testing.B) {
			cache := &statusCache{}
			measure(b, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				d, err := cache.read(r.Context())
				cache.answer(w, d, err)
			}), func() {
				cache.mu.Lock()
				defer cache.mu.Unlock()
				cache.latest = state()
			})
		})
		b.Run(fmt.Sprintf("page/exports=%d", disks), func(b *testing.B) {
			var page statuspage.Page
			mux := http.NewServeMux()
			page.Register(mux)
			measure(b, mux, func() { page.Add(statuspage.Process{}, activityOf(time.Now(), []processStatus{state().status})) })
		})
	}
}

// measure asks a handler once for each state.
func measure(b *testing.B, h http.Handler, next func()) {
	written, begin := 0, usedTime(b)
	for b.Loop() {
		next()
		w := httptest.NewRecorder()
		h.ServeHTTP(w, httptest.NewRequestWithContext(b.Context(), http.MethodGet, "/", nil))
		if w.Code != http.StatusOK {
			b.Fatal(w.Code)
		}
		n, err := io.Copy(io.Discard, w.Body)
		if err != nil {
			b.Fatal(err)
		}
		written = int(n)
	}
	b.ReportMetric(float64(written), "bytes")
	b.ReportMetric(float64((usedTime(b)-begin).Microseconds())/1000/float64(b.N), "cpu-ms/op")
	b.ReportMetric(0, "ns/op")
}

// usedTime returns how long the process has used processors: other
// processes may be busy.
func usedTime(b *testing.B) time.Duration {
	b.Helper()
	var u unix.Rusage
	if err := unix.Getrusage(unix.RUSAGE_SELF, &u); err != nil {
		b.Fatal(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}
