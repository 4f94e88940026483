package statuspage

import (
	"encoding/xml"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/viablk/viablk/cmd/viablk/internal/activity"
	"github.com/viablk/viablk/cmd/viablk/internal/show"
	"github.com/viablk/viablk/internal/latency"
)

// evil is the name of an export that a page must not run.
const evil = `<script>alert(1)</script>"' onload=x &amp;`

// process is that of these tests.
var process = Process{PID: 4711, Command: "target", Version: "v1.2.3", Started: time.Now().Add(-time.Hour)}

// load is a state n seconds after the first one: exports with reads that took
// a millisecond each.
func load(at time.Time, n int, exports ...string) activity.State {
	s := activity.State{Time: at.Add(time.Duration(n) * time.Second)}
	var set latency.Set
	r := set.Acquire()
	for range 100 * n {
		r.Add(latency.Request, latency.Read, time.Millisecond)
		r.Add(latency.Backend, latency.Read, time.Millisecond)
	}
	set.Release(r)
	durations := set.Read()
	for _, e := range exports {
		s.Exports = append(s.Exports, activity.Counters{
			Key: activity.Key{PID: 4711, Export: e, Face: "nbd"}, Started: process.Started, State: activity.Connected, Backend: "file",
			Reads: uint64(100 * n), BytesRead: uint64(100 * n << 20), Latency: durations,
		})
		s.Sessions = append(s.Sessions, activity.Session{PID: 4711, ID: evil, Face: "nbd", Peer: evil, Identity: evil, Exports: []string{e}})
	}
	s.Paths = []activity.Path{{PID: 4711, Export: evil, Provider: "roce", Target: evil, State: activity.Waiting, Reason: evil}}
	return s
}

// seen returns a page that has seen some seconds, which do not become old while
// a test runs.
func seen(seconds int, exports ...string) *Page {
	p := new(Page)
	start := time.Now().Add(time.Hour)
	for n := range seconds + 1 {
		p.Add(process, load(start, n, exports...))
	}
	return p
}

// get asks the page.
func get(t *testing.T, p *Page, target string) *http.Response {
	t.Helper()
	mux := http.NewServeMux()
	p.Register(mux)
	w := httptest.NewRecorder()
	mux.ServeHTTP(w, httptest.NewRequestWithContext(t.Context(), http.MethodGet, target, nil))
	return w.Result()
}

// text returns the page.
func text(t *testing.T, p *Page, target string) string {
	t.Helper()
	r := get(t, p, target)
	b, err := io.ReadAll(r.Body)
	if err != nil || r.StatusCode != http.StatusOK {
		t.Fatalf("%s: %s, %v", target, r.Status, err)
	}
	return string(b)
}

// TestHeaders: a browser runs and loads nothing but the files beside the page,
// and shows the page in no other.
func TestHeaders(t *testing.T) {
	p := seen(3, "disk")
	for _, target := range []string{"/", "/?export=disk", "/page.js", "/page.css"} {
		h := get(t, p, target).Header
		csp := h.Get("Content-Security-Policy")
		for _, want := range []string{"default-src 'none'", "script-src 'self';", "style-src 'self';", "base-uri 'none'", "frame-ancestors 'none'"} {
			if !strings.Contains(csp, want) {
				t.Errorf("%s: %q is not in the policy %q", target, want, csp)
			}
		}
		if strings.Contains(csp, "unsafe") || strings.Contains(csp, "http") || strings.Contains(csp, "*") {
			t.Errorf("%s: the policy allows more: %s", target, csp)
		}
		for name, want := range map[string]string{
			"X-Content-Type-Options": "nosniff", "X-Frame-Options": "DENY", "Referrer-Policy": "no-referrer",
			"Cache-Control": "no-store", "Cross-Origin-Resource-Policy": "same-origin",
		} {
			if got := h.Get(name); got != want {
				t.Errorf("%s: %s is %q", target, name, got)
			}
		}
	}
	for _, target := range []string{"/other", "/index.html", "/?export=" + strings.Repeat("x", longestQuery+1)} {
		if code := get(t, p, target).StatusCode; code < 400 {
			t.Errorf("%s answers %d", target, code)
		}
	}
	page := text(t, p, "/")
	if found := regexp.MustCompile(`(?i)<style|\sstyle=|<script>|https?:`).FindString(page); found != "" {
		t.Errorf("the page has %q in it, which the policy refuses", found)
	}
}

// TestEscaping: no name, peer, reason or query becomes an element or an
// attribute.
func TestEscaping(t *testing.T) {
	p := seen(3, evil, "b\x1b[2J\u202e")
	for _, target := range []string{"/", "/?filter=" + url.QueryEscape(evil), "/?export=" + url.QueryEscape(evil)} {
		page := text(t, p, target)
		d := xml.NewDecoder(strings.NewReader(page))
		d.Strict, d.AutoClose, d.Entity = false, xml.HTMLAutoClose, xml.HTMLEntity
		scripts, found := 0, false
		for {
			token, err := d.Token()
			if err == io.EOF {
				break
			}
			if err != nil {
				t.Fatalf("%s: %v", target, err)
			}
			switch x := token.(type) {
			case xml.StartElement:
				if x.Name.Local == "script" {
					scripts++
				}
				for _, a := range x.Attr {
					if strings.HasPrefix(a.Name.Local, "on") {
						t.Errorf("%s: an element has %s=%q", target, a.Name.Local, a.Value)
					}
				}
			case xml.CharData:
				found = found || string(x) == show.Text(evil)
			}
		}
		if scripts != 1 || !found {
			t.Errorf("%s: %d scripts, and the name is shown: %v", target, scripts, found)
		}
		if strings.ContainsAny(page, "\x1b\u202e") {
			t.Errorf("%s: control characters reach the browser", target)
		}
	}
}

// TestFigures: the page has the rates, where the time goes, and lines.
func TestFigures(t *testing.T) {
	p := seen(5, "disk", "other")
	page := text(t, p, "/")
	row := regexp.MustCompile(`<tr><td><a href="/\?export=disk&amp;filter=">disk</a></td><td>nbd</td><td>connected</td><td>file</td>(.*)</tr>`).FindString(page)
	for _, want := range []string{`>100</td>`, `>105</td>`, `>backend 100%</td>`} {
		if !strings.Contains(row, want) {
			t.Errorf("the row lacks %s: %s", want, row)
		}
	}
	for _, want := range []string{"reads 200", "read 210", "p99 1.", "<td>waiting</td>", "up 60m", "PID 4711"} {
		if !strings.Contains(page, want) {
			t.Errorf("the page lacks %q", want)
		}
	}
	if one := text(t, p, "/?export=disk"); !strings.Contains(one, "reads 100") || !strings.Contains(one, "Export disk") {
		t.Error("the charts of one export are not its own")
	}
	if none := text(t, p, "/?export=none"); !strings.Contains(none, "nothing to draw") {
		t.Error("an export without requests has charts")
	}
	lines := regexp.MustCompile(`<path class="line (\w+)" d="([^"]*)"/>`).FindAllStringSubmatch(page, -1)
	for _, l := range lines {
		if want := l[1] != "writes" && l[1] != "written"; strings.Count(l[2], "L") < 4 && want {
			t.Errorf("the line of %s has no five points: %s", l[1], l[2])
		}
	}
	if len(lines) != 6 {
		t.Errorf("%d lines", len(lines))
	}
	if filtered := text(t, p, "/?filter=OTH"); strings.Contains(filtered, ">disk</a>") || !strings.Contains(filtered, ">other</a>") || !strings.Contains(filtered, "1 of 2") {
		t.Error("the filter does not choose")
	}
}

// TestBounds: with 10,000 exports the page, and what is kept of them, is
// bounded, and so is the number of pages that queries make.
func TestBounds(t *testing.T) {
	var names []string
	for i := range 10_000 {
		names = append(names, fmt.Sprintf("export-%05d", i))
	}
	p := seen(2, names...)
	if n := len(p.history.exports); n != historyExports {
		t.Errorf("%d exports have a history", n)
	}
	page := text(t, p, "/")
	if n := strings.Count(page, `<tr><td><a href="/?export=`); n != mostRows || len(page) > 512<<10 {
		t.Errorf("%d rows, %d bytes", n, len(page))
	}
	if !strings.Contains(page, "filter to see others") {
		t.Error("the page does not say that there are more")
	}
	if last := text(t, p, "/?filter=09999"); !strings.Contains(last, "export-09999") {
		t.Error("an export is not to be found")
	}
	for i := range 2 * mostBodies {
		text(t, p, fmt.Sprintf("/?filter=%d", i))
	}
	if n := len(p.bodies); n != mostBodies {
		t.Errorf("%d pages are kept", n)
	}
	p.Add(process, load(time.Now().Add(time.Hour), 3, "one"))
	if n := len(p.history.exports); n != 0 {
		t.Errorf("%d exports that are gone have a history", n)
	}
}

// TestHistoryWraps: the last ten minutes are kept, and the oldest go.
func TestHistoryWraps(t *testing.T) {
	var h history
	row := activity.Row{Counters: &activity.Counters{Key: activity.Key{Export: "d"}}}
	for n := range historySeconds + 7 {
		row.ReadRate = float64(n + 1)
		h.add([]activity.Row{row})
	}
	for _, export := range []string{"", "d"} {
		all := h.of(export)
		if len(all) != historySeconds || all[0].reads != 8 || all[historySeconds-1].reads != historySeconds+7 {
			t.Errorf("%q: %d samples from %v to %v", export, len(all), all[0].reads, all[len(all)-1].reads)
		}
	}
}

// TestOldState: a page whose process has not told its state says so, and that
// page is not kept.
func TestOldState(t *testing.T) {
	p := new(Page)
	if page := text(t, p, "/"); !strings.Contains(page, "no state yet") {
		t.Error("a page without a state says nothing of it")
	}
	p.Add(process, load(time.Now().Add(-time.Minute), 0, "d"))
	if page := text(t, p, "/"); !strings.Contains(page, "has not reported its state for 60s") || len(p.bodies) != 0 {
		t.Error("an old state looks like a new one")
	}
}

// TestScales: figures are inside of the chart, at a readable distance.
func TestScales(t *testing.T) {
	for _, c := range []struct {
		values []float64
		high   float64
	}{{nil, 1}, {[]float64{0}, 1}, {[]float64{0.3}, 0.5}, {[]float64{1}, 1}, {[]float64{11}, 20}, {[]float64{501}, 1000}, {[]float64{5e6}, 5e6}} {
		if s := linearScale(c.values); s.high < c.high*0.999 || s.high > c.high*1.001 {
			t.Errorf("%v end at %v, not %v", c.values, s.high, c.high)
		}
	}
	for _, values := range [][]float64{nil, {0}, {0.3}, {10}, {10, 10}, {12, 900_000}} {
		s := logScale(values)
		for _, v := range append(values, s.low, s.high) {
			if v <= 0 {
				continue
			}
			if y := s.place(v); y < marginTop-0.01 || y > chartHeight-marginFoot+0.01 {
				t.Errorf("%v of %v is at %v", v, values, y)
			}
		}
		if len(s.marks) < 2 || len(s.marks) > 12 {
			t.Errorf("%v: %d marks", values, len(s.marks))
		}
	}
}
