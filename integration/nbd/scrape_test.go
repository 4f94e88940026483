package nbd

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"path/filepath"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/viablk/viablk/integration/testbed"
)

// scrapers is how many clients ask for the state of a target at the same time,
// one half at the metrics listener and one half at the status socket.
const scrapers = 1000

// watched is a target with a metrics listener and a status socket.
type watched struct {
	*testbed.Process
	urls []string // of the metrics, and of the state
	http *http.Client
}

// startWatched starts a target.
func startWatched(t testing.TB) *watched {
	t.Helper()
	testbed.RaiseFiles(t, 4*scrapers)
	admin, port := filepath.Join(testbed.Folder(t), "admin"), testbed.FreePort(t)
	p := testbed.StartBinary(t, testbed.PlainProgram(t), "target", "--admin", admin, "--metrics-listen", ":"+port,
		"--listen", "nbd+unix:///?socket="+filepath.Join(testbed.Folder(t), "nbd"), "--export", "disk=memory:4MiB")
	dial := func(ctx context.Context, network, address string) (net.Conn, error) {
		if address == "admin:80" {
			network, address = "unix", admin
		}
		return new(net.Dialer).DialContext(ctx, network, address)
	}
	return &watched{p, []string{"http://127.0.0.1:" + port + "/metrics", "http://admin/v1/status"}, &http.Client{
		Transport: &http.Transport{DialContext: dial, DisableKeepAlives: true}, Timeout: testbed.WaitLimit,
	}}
}

// scrape makes a request, which must be answered in full.
func (w *watched) scrape(ctx context.Context, url string) error {
	q, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return err
	}
	answer, err := w.http.Do(q)
	if err != nil {
		return err
	}
	defer answer.Body.Close()
	if n, err := io.Copy(io.Discard, answer.Body); err != nil || answer.StatusCode != http.StatusOK || n == 0 {
		return fmt.Errorf("%s: %s, %d bytes, %w", url, answer.Status, n, err)
	}
	return nil
}

// scrapeAtOnce has all scrapers make a request at the same time, and returns
// how many were not answered.
func (w *watched) scrapeAtOnce(t testing.TB) (refused int64) {
	var all sync.WaitGroup
	var n atomic.Int64
	for i := range scrapers {
		all.Go(func() {
			if err := w.scrape(context.Background(), w.urls[i%len(w.urls)]); err != nil {
				t.Log(err)
				n.Add(1)
			}
		})
	}
	all.Wait()
	return n.Load()
}

// scrapeUntil has all scrapers make requests, one behind the other, until the
// caller calls stop, which returns how many were answered.
func (w *watched) scrapeUntil() (stop func() int64) {
	ctx, cancel := context.WithCancel(context.Background())
	var all sync.WaitGroup
	var n atomic.Int64
	for i := range scrapers {
		all.Go(func() {
			for ctx.Err() == nil {
				if w.scrape(ctx, w.urls[i%len(w.urls)]) == nil {
					n.Add(1)
				}
			}
		})
	}
	return func() int64 {
		cancel()
		all.Wait()
		return n.Load()
	}
}

// maximumGrowth is how much memory a thousand requests at once may take: 128
// connections, and the kernel has the others.
const maximumGrowth = 48 << 20

// TestScrapesUnderLoad: a thousand clients that ask for the state at once are
// all answered, beside requests of fio, and memory and descriptors are bounded.
func TestScrapesUnderLoad(t *testing.T) {
	w := startWatched(t)
	before := w.ProcessorTime()
	if n := w.scrapeAtOnce(t); n != 0 {
		t.Errorf("%d requests were refused", n)
	}
	t.Logf("%.2f ms of processor time for each request", (w.ProcessorTime()-before).Seconds()*1000/scrapers)
	fio := testbed.StartFio(t, w.URI("disk", "nbd+unix"), "--rw=randread", "--bs=4k", "--iodepth=8", "--size=4M", "--time_based", "--runtime=600")
	testbed.Eventually(t, "requests of fio", func() (any, bool) { return w.reads() })
	files, memory := w.Files(), w.Memory("VmRSS")
	begin, _ := w.reads()
	if n := w.scrapeAtOnce(t); n != 0 {
		t.Errorf("%d requests were refused beside fio", n)
	}
	if end, _ := w.reads(); end == begin {
		t.Error("fio stands still")
	}
	if grown := w.Memory("VmHWM") - memory; grown > maximumGrowth {
		t.Errorf("the process has grown by %d bytes", grown)
	}
	fio.Kill()
	testbed.Eventually(t, "descriptors are free", func() (any, bool) { n := w.Files(); return n, n <= files })
}

// reads returns how many reads the target has answered, and whether it has
// answered some.
func (w *watched) reads() (n uint64, some bool) {
	for _, c := range w.Status().NBD.Connections {
		n += c.Reads
	}
	return n, n > 0
}

// BenchmarkScrapesBesideFio runs fio alone, beside a thousand clients that ask
// for the target's state again and again, and beside as many that ask another
// target: they take processors too. Figures are medians, of rounds by turns.
func BenchmarkScrapesBesideFio(b *testing.B) {
	used, other := startWatched(b), startWatched(b)
	iops := make(map[string][]float64)
	var answered int64
	var spent, began time.Duration
	for b.Loop() {
		for _, c := range []struct {
			name string
			w    *watched
		}{{"alone", nil}, {"beside", used}, {"control", other}} {
			var stop func() int64
			if c.w != nil {
				began = c.w.ProcessorTime()
				stop = c.w.scrapeUntil()
			}
			jobs := testbed.Fio(b, used.URI("disk", "nbd+unix"), "--rw=randread", "--bs=4k", "--iodepth=8", "--size=4M", "--time_based", "--runtime=2")
			iops[c.name] = append(iops[c.name], jobs[0].Read.IOPS)
			if stop != nil {
				if n := stop(); c.w == other {
					answered, spent = answered+n, spent+other.ProcessorTime()-began
				}
			}
		}
	}
	median := func(name string) float64 {
		all := slices.Sorted(slices.Values(iops[name]))
		return all[len(all)/2]
	}
	b.ReportMetric(median("alone"), "iops-alone")
	b.ReportMetric(median("beside")/median("alone"), "beside/alone")
	b.ReportMetric(median("control")/median("alone"), "control/alone")
	b.ReportMetric(median("beside")/median("control"), "beside/control")
	b.ReportMetric(float64(answered)/float64(len(iops["control"])), "answers/round")
	b.ReportMetric(spent.Seconds()*1000/float64(max(1, answered)), "cpu-ms/answer")
	b.ReportMetric(0, "ns/op")
}
