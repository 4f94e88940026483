//go:build page

package page

import (
	"encoding/json"
	"image/color"
	"image/png"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/viablk/viablk/integration/testbed"
)

// evil is the name of an export that a browser must not run.
const evil = `<script>document.write(12345*10001)</script>`

// product is what it would write.
const product = "123462345"

// browserLimit bounds how long the browser may take.
const browserLimit = 3 * time.Minute

// start starts a target with a page and returns its URL.
func start(t *testing.T) (*testbed.Process, string) {
	t.Helper()
	p := testbed.Start(t, "target", "--metrics-listen", ":0", "--listen", "nbd+unix:///?socket="+filepath.Join(testbed.Folder(t), "n"),
		"--export", "slow=delay:read=5ms:memory:16M", "--export", evil+"=memory:1M")
	var ready struct {
		Metrics string `json:"metrics"`
	}
	testbed.Must(t, json.NewDecoder(strings.NewReader(p.Stdout.String())).Decode(&ready))
	return p, ready.Metrics + "/"
}

// load gets a page as a client without a script.
func load(t *testing.T, url string) string {
	t.Helper()
	request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, url, nil)
	testbed.Must(t, err)
	response, err := http.DefaultClient.Do(request)
	testbed.Must(t, err)
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	testbed.Must(t, err)
	return string(body)
}

// view is what the browser made of a page.
type view struct {
	dom     string
	picture string // file
}

// open has the browser load a page and run its script for seven seconds.
func open(t *testing.T, url string) view {
	t.Helper()
	v := view{picture: filepath.Join(t.TempDir(), "page.png")}
	place := testbed.Folder(t)
	c := testbed.StartPath(t, []string{"HOME=" + place}, testbed.Locate("chromium"),
		"--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run", "--user-data-dir="+filepath.Join(place, "profile"),
		"--hide-scrollbars", "--window-size=760,1400", "--force-device-scale-factor=2", "--enable-logging=stderr",
		"--virtual-time-budget=7000", "--screenshot="+v.picture, "--dump-dom", url)
	if code := c.Wait(t, browserLimit); code != 0 {
		t.Fatalf("%s: exit code %d\n%s", c, code, c.Output())
	}
	v.dom = c.Stdout.String()
	for line := range strings.Lines(c.Stderr.String()) {
		if strings.Contains(line, "CONSOLE") || strings.Contains(line, "Refused to") {
			t.Errorf("the browser complains: %s", line)
		}
	}
	return v
}

// second is the colour of the second line of each chart, which is that of
// nothing else but its legend.
var second = color.RGBA{0xc2, 0x41, 0x0c, 0xff}

// drawn counts the points of a picture that have the colour of the second
// lines.
func (v view) drawn(t *testing.T) (points int) {
	t.Helper()
	f, err := os.Open(v.picture)
	testbed.Must(t, err)
	defer f.Close()
	picture, err := png.Decode(f)
	testbed.Must(t, err)
	b := picture.Bounds()
	for y := b.Min.Y; y < b.Max.Y; y++ {
		for x := b.Min.X; x < b.Max.X; x++ {
			if c := color.RGBAModel.Convert(picture.At(x, y)); c == second {
				points++
			}
		}
	}
	return points
}

// keep keeps the pictures of a test that fails.
func keep(t *testing.T, views ...view) {
	if !t.Failed() {
		return
	}
	folder, err := os.MkdirTemp("", "viablk-page")
	testbed.Must(t, err)
	for i, v := range views {
		picture, err := os.ReadFile(v.picture)
		testbed.Must(t, err)
		testbed.Must(t, os.WriteFile(filepath.Join(folder, strconv.Itoa(i)+".png"), picture, 0o600))
		testbed.Must(t, os.WriteFile(filepath.Join(folder, strconv.Itoa(i)+".html"), []byte(v.dom), 0o600))
	}
	t.Logf("what the browser saw is in %s", folder)
}

var (
	rowOfSlow = regexp.MustCompile(`<tr><td><a href="/\?export=slow[^>]*>slow</a></td><td>nbd</td><td>connected</td><td>delay</td><td class="n">1</td><td class="n">([1-9]\d*)</td>.*>backend \d+%</td></tr>`)
	lineOf99  = regexp.MustCompile(`<path class="line p99" d="M[^"]*"`)
)

// TestPage: under requests the page shows a row with their figures and a line
// of their latency, its script loads it again, and no name is run.
func TestPage(t *testing.T) {
	testbed.Requires(t, "chromium")
	_, idleURL := start(t)
	p, url := start(t)
	fio := testbed.StartFio(t, p.URI("slow", "nbd+unix"), "--rw=randread", "--bs=4k", "--iodepth=8", "--size=16M", "--time_based", "--runtime=600")
	testbed.Eventually(t, "ten seconds of requests on the page", func() (any, bool) {
		page := load(t, url)
		return page, rowOfSlow.MatchString(page) && strings.Count(lineOf99.FindString(page), "L") >= 10
	})
	idle, busy := open(t, idleURL), open(t, url)
	fio.Kill()
	defer keep(t, idle, busy)
	for _, v := range []view{idle, busy} {
		if !regexp.MustCompile(`<html[^>]* data-loads="[1-9]`).MatchString(v.dom) {
			t.Error("the script has not loaded the page again")
		}
		if strings.Contains(v.dom, product) || !strings.Contains(v.dom, "&lt;script&gt;document.write") {
			t.Error("the name of an export is not shown, or was run")
		}
	}
	if row := rowOfSlow.FindStringSubmatch(busy.dom); row == nil {
		t.Error("the browser has no row of the export with its figures")
	} else if n, _ := strconv.Atoi(row[1]); n > 8*200 {
		t.Errorf("%d reads in a second, of eight at a time that take 5 ms", n)
	}
	if n := strings.Count(lineOf99.FindString(busy.dom), "L"); n < 10 {
		t.Errorf("the line of the latency has %d points", n)
	}
	if lineOf99.MatchString(idle.dom) || rowOfSlow.MatchString(idle.dom) {
		t.Error("a process without requests shows some")
	}
	before, after := idle.drawn(t), busy.drawn(t)
	t.Logf("points of the second colour: %d without requests, %d with them", before, after)
	if before == 0 || after < before+30 {
		t.Errorf("the line of the latency is not drawn: %d points of its colour, %d without requests", after, before)
	}
}
