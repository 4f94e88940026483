package compare

import (
	"bytes"
	"encoding/json"
	"html/template"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/viablk/viablk/cmd/viablk/internal/chart"
	"github.com/viablk/viablk/integration/testbed"
)

// page is the report of a comparison of servers: comparison.json, and
// comparison.html, which needs no other file.
type page struct {
	Schema   string    `json:"schema"`
	Time     time.Time `json:"time"`
	Machine  []string  `json:"machine"`
	Contests []section `json:"contests"`
}

// section is a contest in a page.
type section struct {
	Name      string        `json:"name"`
	Title     string        `json:"title"`
	Outcomes  []outcome     `json:"cells"`
	Summaries []summary     `json:"summaries"`
	Charts    template.HTML `json:"-"`
}

func newPage(t testing.TB) *page {
	return &page{Schema: "viablk.bench.nbd/v1", Time: time.Now().UTC(), Machine: machine(t)}
}

func (p *page) add(c contest, outcomes []outcome) {
	p.Contests = append(p.Contests, section{Name: c.name, Title: c.String(), Outcomes: outcomes, Summaries: summarize(outcomes)})
}

// save writes the page into a folder, and reads it back.
func (p *page) save(t testing.TB, folder string) {
	t.Helper()
	testbed.Must(t, os.MkdirAll(folder, 0o755))
	for i := range p.Contests {
		p.Contests[i].draw(t)
	}
	text, err := json.MarshalIndent(p, "", "  ")
	testbed.Must(t, err)
	testbed.Must(t, os.WriteFile(filepath.Join(folder, "comparison.json"), append(text, '\n'), 0o644))
	var b bytes.Buffer
	testbed.Must(t, pageTemplate.Execute(&b, p))
	testbed.Must(t, os.WriteFile(filepath.Join(folder, "comparison.html"), b.Bytes(), 0o644))
	for _, s := range p.Contests {
		if strings.Count(string(s.Charts), "<svg") != len(s.controls()) || !strings.Contains(b.String(), s.Title) {
			t.Errorf("the page lacks %s", s.Name)
		}
	}
	t.Logf("wrote %s", filepath.Join(folder, "comparison.html"))
}

// controls are the names of the controls.
func (s *section) controls() (names []string) {
	for _, r := range s.Summaries {
		if !slices.Contains(names, r.Control) {
			names = append(names, r.Control)
		}
	}
	return names
}

// draw makes a chart for each control: our servers as multiples of it.
func (s *section) draw(t testing.TB) {
	t.Helper()
	var all strings.Builder
	for _, control := range s.controls() {
		bars := chart.Bars{
			Title: s.Name + ", beside " + control, Y: "requests per second, multiples of " + control,
			References: []chart.Reference{{Label: "as fast as " + control, Y: 1}},
		}
		series := make(map[string]int)
		for _, o := range s.Outcomes {
			bars.Categories = append(bars.Categories, o.Cell)
			for _, r := range o.Ratios {
				if r.Control != control {
					continue
				}
				at, found := series[r.Server]
				if !found {
					at = len(bars.Series)
					series[r.Server] = at
					bars.Series = append(bars.Series, chart.BarSeries{Name: r.Server})
				}
				bars.Series[at].Values = append(bars.Series[at].Values, r.Median)
			}
		}
		var b bytes.Buffer
		testbed.Must(t, bars.Write(&b, "svg"))
		_, svg, _ := strings.Cut(b.String(), "<svg") // what stands before is for files of its own
		all.WriteString("<svg" + svg)
	}
	s.Charts = template.HTML(all.String())
}

var pageTemplate = template.Must(template.New("page").Funcs(template.FuncMap{"median": median}).Parse(`<!doctype html>
<html lang="en"><meta charset="utf-8"><title>NBD servers</title>
<style>body{font:15px sans-serif;max-width:70em;margin:2em auto;padding:0 1em}table{border-collapse:collapse;margin:1em 0}
td,th{padding:.2em .7em;text-align:right;border-bottom:1px solid #ddd}td:first-child,th:first-child{text-align:left}svg{max-width:100%;height:auto}</style>
<h1>NBD servers, same machine, same run</h1>
<p>{{.Time.Format "2006-01-02 15:04"}} UTC. {{range $i, $m := .Machine}}{{if $i}}, {{end}}{{$m}}{{end}}.
Requests per second and ratios are medians over the rounds; ratios are taken within a round, least and most stand beside them.</p>
{{range .Contests}}<h2>{{.Name}}</h2><p>{{.Title}}</p>
<table><tr><th>cell{{with index .Outcomes 0}}{{range .Figures}}<th>{{.Server}}, 1/s<th>µs{{end}}{{range .Ratios}}<th>{{.Server}} / {{.Control}}{{end}}{{end}}
{{range .Outcomes}}<tr><td>{{.Cell}}{{range .Figures}}<td>{{printf "%.0f" (median .IOPS)}}<td>{{printf "%.1f" (median .Latency)}}{{end}}{{range .Ratios}}<td>{{printf "%.2f (%.2f–%.2f)" .Median .Least .Most}}{{end}}
{{end}}</table>
<ul>{{range .Summaries}}<li>{{.}}{{end}}</ul>
{{.Charts}}
{{end}}</html>
`))
