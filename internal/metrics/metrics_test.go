package metrics

import (
	"compress/gzip"
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"

	"github.com/viablk/viablk/internal/latency"
)

// fullSnapshot returns a snapshot with something in every field, of exports
// with the given names.
func fullSnapshot(names ...string) *Snapshot {
	s := &Snapshot{
		Version: "v1", Revision: "abc", Started: time.Unix(1700000000, 0), Draining: true, Panics: 1,
		NBD:          &NBD{Handshakes: 2, Dropped: 3},
		Targets:      []Target{{Provider: "shm", Sessions: 2, Registrations: 3, Quarantined: 1, DigestErrors: 1, Cache: Cache{1, 2, 3, 4, 5}}},
		Devices:      []Device{{Name: "/dev/nbd0", Connections: 1, Replaced: 2}},
		DeviceStates: []DeviceState{{"/dev/nbd0", "served"}},
		Networks:     []Network{{Local: "192.0.2.1", PacketsSent: 1, Dropped: []Wait{{"bad_icrc", 1}}}},
		Certificates: []Certificate{{"server-cert.pem", time.Unix(1800000000, 0)}, {"server-cert.pem", time.Unix(1750000000, 0)}},
		Reloads:      Reloads{Succeeded: 2, Failed: 1, Last: time.Unix(1700000001, 0)},
		Configured:   Reloads{Succeeded: 3, Failed: 4, Last: time.Unix(1700000003, 0)},
	}
	var set latency.Set
	recorder := set.Acquire()
	for i := range 100 { // 20 µs to 2 ms
		recorder.Add(latency.Request, latency.Read, time.Duration(i+1)*20*time.Microsecond)
		recorder.Add(latency.Backend, latency.Write, 3*time.Second)
	}
	set.Release(recorder)
	for _, name := range []string{"nbd", "via+shm"} {
		f := Face{Name: name, Accepted: 3, Refused: 1, Admitted: 2, Limit: 100, Waits: []Wait{{"memory", 1}}}
		for i, x := range names {
			f.Exports = append(f.Exports, Traffic{
				Export: x, Connections: 1, InFlight: 2, Requests: []Count{{"read", uint64(i)}, {"write", 1}}, Errors: 1, BytesRead: 512, BytesWritten: 1024,
				Latency: set.Read(),
			})
		}
		s.Faces = append(s.Faces, f)
	}
	corrupt := uint64(2)
	scrub := &Scrub{Running: true, Progress: 0.25, Corrupt: 3, Unreadable: 1, Ended: time.Unix(1700000002, 0)}
	for _, x := range names {
		s.Exports = append(s.Exports, Export{Name: x, Backend: "memory", UUID: "u", Size: 1 << 20, State: "waiting", Throttled: 1, ThrottledSeconds: 0.5, CorruptBlocks: &corrupt, Scrub: scrub})
		s.Remotes = append(s.Remotes, Remote{Export: x, Provider: "shm", Losses: 1, DigestErrors: 1, DisconnectedSeconds: 2, Waits: []Wait{{"credit", 1}}, QuarantinedBytes: 4096, Paths: []Path{{"a", true}, {"b", false}}})
	}
	return s
}

// gather returns the families of a snapshot, checked as the client library can.
func gather(t *testing.T, s *Snapshot, selected ...string) map[string]*dto.MetricFamily {
	t.Helper()
	registry := prometheus.NewPedanticRegistry()
	c := &collector{snapshot: s, selected: make(map[string]bool)}
	for _, name := range selected {
		c.selected[name] = true
	}
	registry.MustRegister(c)
	list, err := registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	all := make(map[string]*dto.MetricFamily)
	for _, f := range list {
		all[f.GetName()] = f
	}
	return all
}

// value returns the sum of the samples of a family that have a label's value.
func value(f *dto.MetricFamily, label, want string) (sum float64) {
	for _, m := range f.GetMetric() {
		for _, l := range m.GetLabel() {
			if l.GetName() == label && l.GetValue() == want {
				sum += m.GetGauge().GetValue() + m.GetCounter().GetValue()
			}
		}
	}
	return sum
}

// Names, types and helps keep the rules of Prometheus, and a full snapshot has
// every family.
func TestNamesKeepTheRules(t *testing.T) {
	registry := prometheus.NewPedanticRegistry()
	registry.MustRegister(&collector{snapshot: fullSnapshot("disk")})
	problems, err := testutil.GatherAndLint(registry)
	if err != nil || len(problems) != 0 {
		t.Errorf("got %v, %v", problems, err)
	}
	if got := gather(t, fullSnapshot("disk")); len(got) != len(families) {
		t.Errorf("a full snapshot has %d families of %d", len(got), len(families))
	}
}

// No label names a client.
func TestNoLabelNamesAClient(t *testing.T) {
	allowed := []string{
		"version", "revision", "export", "backend", "uuid", "state", "face", "op", "direction", "reason", "provider",
		"device", "local", "role", "result", "host", // of a target
	}
	for name, f := range gather(t, fullSnapshot("disk")) {
		for _, m := range f.GetMetric() {
			for _, l := range m.GetLabel() {
				if !slices.Contains(allowed, l.GetName()) {
					t.Errorf("%s has the label %q", name, l.GetName())
				}
			}
		}
	}
}

// Beyond the limit only selected exports have series, and the others' are sums:
// no count is lost, and more exports add no series.
func TestSeriesAreBounded(t *testing.T) {
	count := func(n int, selected ...string) (series int, all map[string]*dto.MetricFamily) {
		var names []string
		for i := range n {
			names = append(names, fmt.Sprintf("disk%d", i))
		}
		all = gather(t, fullSnapshot(names...), selected...)
		for _, f := range all {
			series += len(f.GetMetric())
		}
		return series, all
	}
	each, all := count(MaximumExports)
	if got := value(all["viablk_transferred_bytes_total"], "export", "disk255"); got != 2*(512+1024) || each < MaximumExports*20 {
		t.Errorf("at the limit an export has %v bytes, and there are %d series", got, each)
	}
	bounded, all := count(MaximumExports+1, "disk7", "absent")
	if more, _ := count(10_000, "disk7", "absent"); more != bounded || bounded >= 200 {
		t.Errorf("%d series beyond the limit, %d with 10,000 exports", bounded, more)
	}
	for family, want := range map[string]float64{
		"viablk_export_size_bytes": MaximumExports << 20, "viablk_connections": 2 * MaximumExports,
		"viablk_request_errors_total": 2 * MaximumExports, "viablk_disk_state": MaximumExports,
		"viablk_target_losses_total": MaximumExports, "viablk_scrub_running": MaximumExports, "viablk_scrub_corrupt_blocks": 3 * MaximumExports,
	} {
		if got := value(all[family], "export", Others); got != want {
			t.Errorf("%s of the others is %v, not %v", family, got, want)
		}
		if got, want := value(all[family], "export", "disk7"), want/MaximumExports; got != want {
			t.Errorf("%s of the selected export is %v, not %v", family, got, want)
		}
	}
}

// A face without a limit, that of the kernel, has no series of one.
func TestLimitsOfConnections(t *testing.T) {
	s := fullSnapshot("disk")
	s.Faces = append(s.Faces, Face{Name: "device"})
	all := gather(t, s)
	for name, want := range map[string]float64{"viablk_connections_limit": 100, "viablk_limited_connections": 2} {
		if got := value(all[name], "face", "nbd"); got != want || len(all[name].GetMetric()) != 2 {
			t.Errorf("%s is %v, not %v: %v", name, got, want, all[name])
		}
	}
}

// A device has a series for each state, one of which is 1. Beyond the limit the
// devices are sums.
func TestDeviceStates(t *testing.T) {
	s := fullSnapshot()
	s.DeviceStates = []DeviceState{{"/dev/nbd0", "served"}, {"/dev/nbd1", "waiting"}}
	f := gather(t, s)["viablk_device_state"]
	for device, want := range map[string]string{"/dev/nbd0": "served", "/dev/nbd1": "waiting"} {
		got := make(map[string]float64)
		for _, m := range f.GetMetric() {
			if l := m.GetLabel(); l[0].GetValue() == device {
				got[l[1].GetValue()] = m.GetGauge().GetValue()
			}
		}
		if len(got) != 3 || got["served"]+got["waiting"]+got["detached"] != 1 || got[want] != 1 {
			t.Errorf("%s is %v, not %s", device, got, want)
		}
	}
	for i := 2; i < maximumDevices+9; i++ {
		s.DeviceStates = append(s.DeviceStates, DeviceState{fmt.Sprintf("/dev/nbd%d", i), "waiting"})
	}
	f = gather(t, s)["viablk_device_state"]
	if n := len(f.GetMetric()); n != 3*(maximumDevices+1) || value(f, "device", Others) != 9 || value(f, "state", "waiting") != maximumDevices+8 {
		t.Errorf("%d devices have %d series: %v", len(s.DeviceStates), n, f)
	}
}

// The last scrub is a time, of which there is no sum: 0 stands for none.
func TestScrubs(t *testing.T) {
	s := fullSnapshot("a", "b")
	s.Exports[1].Scrub = &Scrub{}
	all := gather(t, s)
	for name, want := range map[string][2]float64{
		"viablk_scrub_last_end_timestamp_seconds": {1700000002, 0}, "viablk_scrub_progress_ratio": {0.25, 0},
		"viablk_scrub_unreadable_blocks": {1, 0}, "viablk_scrub_running": {1, 0},
	} {
		if a, b := value(all[name], "export", "a"), value(all[name], "export", "b"); a != want[0] || b != want[1] || len(all[name].GetMetric()) != 2 {
			t.Errorf("%s is %v and %v, not %v", name, a, b, want)
		}
	}
	names := []string{"a"}
	for i := range MaximumExports {
		names = append(names, fmt.Sprint(i))
	}
	for _, name := range []string{"viablk_scrub_last_end_timestamp_seconds", "viablk_scrub_progress_ratio"} {
		if f := gather(t, fullSnapshot(names...), "a")[name]; len(f.GetMetric()) != 1 {
			t.Errorf("%s has %d series", name, len(f.GetMetric()))
		}
	}
}

// Names of exports may be any bytes, and become one label with others.
func TestNamesOfExportsAreLabels(t *testing.T) {
	long := strings.Repeat("é", 2000)
	names := []string{"", "*", "a\xffb", "a\xfeb", "a\ufffdb", "quote\"\\\n", long + "1", long + "2"}
	all := gather(t, fullSnapshot(names...))
	seen := make(map[string]float64)
	for _, m := range all["viablk_export_size_bytes"].GetMetric() {
		label := m.GetLabel()[0].GetValue()
		seen[label] = m.GetGauge().GetValue()
		if len(label) > maximumLabel {
			t.Errorf("a label has %d bytes", len(label))
		}
	}
	if len(seen) != 6 || seen["a\ufffdb"] != 3<<20 {
		t.Errorf("got %v", seen)
	}
}

// A histogram is both classic and native, and its quantiles are those of the
// durations.
func TestHistograms(t *testing.T) {
	names := []string{"a", "b"}
	for i := range MaximumExports { // so that a and b are sums
		names = append(names, fmt.Sprint(i))
	}
	all := gather(t, fullSnapshot(names...))
	if n := len(all["viablk_request_duration_seconds"].GetMetric()); n != 2 {
		t.Fatalf("two faces have %d histograms", n)
	}
	h := all["viablk_request_duration_seconds"].GetMetric()[0].GetHistogram()
	exports := uint64(len(names))
	if h.GetSampleCount() != 100*exports || math.Abs(h.GetSampleSum()/float64(exports)-0.101) > 1e-9 {
		t.Errorf("%d requests of %v s", h.GetSampleCount(), h.GetSampleSum())
	}
	if len(h.GetBucket()) != classicCount {
		t.Errorf("%d classic buckets", len(h.GetBucket()))
	}
	for _, b := range h.GetBucket() {
		want := min(100, b.GetUpperBound()/20e-6) // requests of an export
		if got := float64(b.GetCumulativeCount()) / float64(exports); math.Abs(got-want) > want/8+1 {
			t.Errorf("%v requests took at most %v s, not %v", got, b.GetUpperBound(), want)
		}
	}
	var count, sum int64
	if h.GetSchema() != nativeSchema || len(h.GetPositiveSpan()) == 0 {
		t.Fatal("there is no native histogram")
	}
	for _, delta := range h.GetPositiveDelta() {
		count += delta
		sum += count
	}
	if sum != int64(100*exports) {
		t.Errorf("the native histogram has %d requests", sum)
	}
	slow := all["viablk_backend_duration_seconds"].GetMetric()[0].GetHistogram()
	if last := slow.GetBucket()[classicCount-1]; last.GetCumulativeCount() != 0 || slow.GetSampleCount() != 100*exports {
		t.Errorf("3 s are not longer than %v s", last.GetUpperBound())
	}
	// (2^(6/4), 2^(7/4)] has the seconds from 2.83 to 3.36.
	if s := slow.GetPositiveSpan(); len(s) != 1 || s[0].GetOffset() != 7 || s[0].GetLength() != 1 {
		t.Errorf("3 s are in %v", s)
	}
}

// Of certificates in several folders the first to end counts.
func TestFirstCertificateToEnd(t *testing.T) {
	if got := value(gather(t, fullSnapshot())["viablk_tls_certificate_expiry_seconds"], "role", "server-cert.pem"); got != 1750000000 {
		t.Errorf("got %v", got)
	}
}

// scrape gets the page with headers.
func scrape(t *testing.T, p *Page, accept, encoding string) *http.Response {
	t.Helper()
	r := httptest.NewRequestWithContext(t.Context(), http.MethodGet, "/metrics", nil)
	r.Header.Set("Accept", accept)
	r.Header.Set("Accept-Encoding", encoding)
	w := httptest.NewRecorder()
	p.ServeHTTP(w, r)
	return w.Result()
}

// Every format is complete, and says what it is.
func TestFormats(t *testing.T) {
	s := fullSnapshot("disk")
	p := NewPage(func(context.Context) (*Snapshot, error) { return s, nil }, nil)
	for _, c := range []struct{ accept, encoding, contentType string }{
		{"", "", "text/plain"},
		{"application/openmetrics-text;version=1.0.0", "gzip;q=0", "application/openmetrics-text"},
		{"application/vnd.google.protobuf;proto=io.prometheus.client.MetricFamily;encoding=delimited", "deflate, gzip", "application/vnd.google.protobuf"},
	} {
		for range 2 { // made, and kept
			r := scrape(t, p, c.accept, c.encoding)
			if r.StatusCode != http.StatusOK || !strings.HasPrefix(r.Header.Get("Content-Type"), c.contentType) {
				t.Fatalf("%+v: got %s, %s", c, r.Status, r.Header.Get("Content-Type"))
			}
			body := decompress(t, r)
			if c.contentType == "application/openmetrics-text" {
				if !strings.HasSuffix(string(body), "# EOF\n") || !strings.Contains(string(body), "\nviablk_up 1") {
					t.Errorf("OpenMetrics is not whole")
				}
				continue
			}
			d := expfmt.NewDecoder(strings.NewReader(string(body)), expfmt.ResponseFormat(r.Header))
			found := 0
			for {
				var f dto.MetricFamily
				if d.Decode(&f) != nil {
					break
				}
				if strings.HasPrefix(f.GetName(), "viablk_") {
					found++
				}
			}
			if found != len(families) {
				t.Errorf("%+v: %d families of %d", c, found, len(families))
			}
		}
	}
}

// One snapshot is gathered once, another one again.
func TestPageIsMadeOnce(t *testing.T) {
	s := fullSnapshot("disk")
	p := NewPage(func(context.Context) (*Snapshot, error) { return s, nil }, nil)
	first := decompress(t, scrape(t, p, "", ""))
	s.Panics = 77 // what is not seen
	if again := decompress(t, scrape(t, p, "", "")); string(again) != string(first) {
		t.Error("the page changed with the same snapshot")
	}
	changed := *s
	s = &changed
	if next := decompress(t, scrape(t, p, "", "")); !strings.Contains(string(next), "\nviablk_panics_total 77\n") {
		t.Error("the page does not have the next snapshot")
	}
}

func TestSourceFails(t *testing.T) {
	p := NewPage(func(context.Context) (*Snapshot, error) { return nil, errors.New("stuck") }, nil)
	if r := scrape(t, p, "", ""); r.StatusCode != http.StatusServiceUnavailable {
		t.Errorf("got %s", r.Status)
	}
}

// Clients that send any Accept header make no more forms than are kept.
func TestFormsAreBounded(t *testing.T) {
	s := fullSnapshot("disk")
	p := NewPage(func(context.Context) (*Snapshot, error) { return s, nil }, nil)
	for i := range 100 {
		scrape(t, p, fmt.Sprintf("text/plain;version=0.0.4;escaping=%s;q=0.%d", model.EscapingScheme(i%4), i), []string{"", "gzip"}[i%2])
		scrape(t, p, fmt.Sprintf("application/openmetrics-text;version=1.0.0;escaping=x%d", i), "")
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(p.encoded) == 0 || len(p.encoded) > maximumVariants {
		t.Errorf("%d forms are kept", len(p.encoded))
	}
}

// decompress returns the body of a response.
func decompress(t *testing.T, r *http.Response) []byte {
	t.Helper()
	from := io.Reader(r.Body)
	if r.Header.Get("Content-Encoding") == "gzip" {
		z, err := gzip.NewReader(from)
		if err != nil {
			t.Fatal(err)
		}
		from = z
	}
	body, err := io.ReadAll(from)
	if err != nil {
		t.Fatal(err)
	}
	return body
}
