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

// page is the report of a comparison of servers: NAME.json, and NAME.html,
// which needs no other file.
type page struct {
	Schema   string       `json:"schema"`
	Name     string       `json:"-"`
	Time     time.Time    `json:"time"`
	Machine  []string     `json:"machine"`
	Contests []section    `json:"contests"`
	Idle     []idleFigure `json:"idle,omitempty"`
}

// section is a contest in a page.
type section struct {
	Name      string        `json:"name"`
	Title     string        `json:"title"`
	Outcomes  []outcome     `json:"cells"`
	Summaries []summary     `json:"summaries"`
	Charts    template.HTML `json:"-"`
}

func newPage(t testing.TB, tools ...string) *page {
	return &page{Schema: "viablk.bench.nbd/v1", Name: "comparison", Time: time.Now().UTC(), Machine: machine(t, tools...)}
}

func (p *page) add(c contest, outcomes []outcome) { p.addSection(c.name, c.String(), outcomes) }

func (p *page) addSection(name, title string, outcomes []outcome) {
	p.Contests = append(p.Contests, section{Name: name, Title: title, Outcomes: outcomes, Summaries: summarize(outcomes)})
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
	testbed.Must(t, os.WriteFile(filepath.Join(folder, p.Name+".json"), append(text, '\n'), 0o644))
	var b bytes.Buffer
	testbed.Must(t, pageTemplate.Execute(&b, p))
	testbed.Must(t, os.WriteFile(filepath.Join(folder, p.Name+".html"), b.Bytes(), 0o644))
	for _, s := range p.Contests {
		if strings.Count(string(s.Charts), "<svg") != len(s.controls())+len(s.measures()) || !strings.Contains(b.String(), s.Title) {
			t.Errorf("the page lacks %s", s.Name)
		}
	}
	t.Logf("wrote %s", filepath.Join(folder, p.Name+".html"))
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

// measure is a figure of each server that is drawn as it is.
type measure struct {
	title, unit string
	of          func(*figure) []float64
}

// measures are those that were taken: processor time, and with it the latency,
// which tells something if all servers have the same rate.
func (s *section) measures() []measure {
	for _, o := range s.Outcomes {
		for _, f := range o.Figures {
			if len(f.CPU) == 0 {
				return nil
			}
		}
	}
	return []measure{
		{"processor time of a request", "µs of all processes", func(f *figure) []float64 { return f.CPU }},
		{"latency", "µs, median", func(f *figure) []float64 { return f.Median }},
	}
}

// draw makes a chart for each control, our servers as multiples of it, and for
// each measure.
func (s *section) draw(t testing.TB) {
	t.Helper()
	var all strings.Builder
	for _, control := range s.controls() {
		bars := s.bars(func(o *outcome, add func(string, float64)) {
			for _, r := range o.Ratios {
				if r.Control == control {
					add(r.Server, r.Median)
				}
			}
		})
		bars.Title, bars.Y = s.Name+", beside "+control, "requests per second, multiples of "+control
		bars.References = []chart.Reference{{Label: "as fast as " + control, Y: 1}}
		all.WriteString(svg(t, bars))
	}
	for _, m := range s.measures() {
		bars := s.bars(func(o *outcome, add func(string, float64)) {
			for i := range o.Figures {
				add(o.Figures[i].Server, median(m.of(&o.Figures[i])))
			}
		})
		bars.Title, bars.Y = s.Name+", "+m.title, m.unit
		all.WriteString(svg(t, bars))
	}
	s.Charts = template.HTML(all.String())
}

// bars has a group for each cell, with the values that each adds by name.
func (s *section) bars(each func(o *outcome, add func(name string, value float64))) *chart.Bars {
	bars := new(chart.Bars)
	for i := range s.Outcomes {
		o := &s.Outcomes[i]
		bars.Categories = append(bars.Categories, o.Cell)
		each(o, func(name string, value float64) {
			at := slices.IndexFunc(bars.Series, func(b chart.BarSeries) bool { return b.Name == name })
			if at < 0 {
				at = len(bars.Series)
				bars.Series = append(bars.Series, chart.BarSeries{Name: name})
			}
			bars.Series[at].Values = append(bars.Series[at].Values, value)
		})
	}
	return bars
}

// svg draws a chart for a page.
func svg(t testing.TB, bars *chart.Bars) string {
	t.Helper()
	var b bytes.Buffer
	testbed.Must(t, bars.Write(&b, "svg"))
	_, drawing, _ := strings.Cut(b.String(), "<svg") // what stands before is for files of its own
	return "<svg" + drawing
}

var pageTemplate = template.Must(template.New("page").Funcs(template.FuncMap{"median": median}).Parse(`<!doctype html>
<html lang="en"><meta charset="utf-8"><title>NBD servers</title>
<style>body{font:15px sans-serif;max-width:70em;margin:2em auto;padding:0 1em}table{border-collapse:collapse;margin:1em 0}
td,th{padding:.2em .7em;text-align:right;border-bottom:1px solid #ddd}td:first-child,th:first-child{text-align:left}svg{max-width:100%;height:auto}</style>
<h1>NBD servers, same machine, same run</h1>
<p>{{.Time.Format "2006-01-02 15:04"}} UTC. {{range $i, $m := .Machine}}{{if $i}}, {{end}}{{$m}}{{end}}.
Requests per second and ratios are medians over the rounds; ratios are taken within a round, least and most stand beside them; µs are the median latency.</p>
{{range .Contests}}<h2>{{.Name}}</h2><p>{{.Title}}</p>
<table><tr><th>cell{{with index .Outcomes 0}}{{range .Figures}}<th>{{.Server}}, 1/s<th>µs<th>CPU µs{{end}}{{range .Ratios}}<th>{{.Server}} / {{.Control}}{{end}}{{end}}
{{range .Outcomes}}<tr><td>{{.Cell}}{{range .Figures}}<td>{{printf "%.0f" (median .IOPS)}}<td>{{printf "%.1f" (median .Median)}}<td>{{with .CPU}}{{printf "%.1f" (median .)}}{{end}}{{end}}{{range .Ratios}}<td>{{printf "%.2f (%.2f–%.2f)" .Median .Least .Most}}{{with .CPU}}<br>CPU {{printf "%.2f" .}}{{end}}{{with .P50}}<br>µs {{printf "%.2f" .}}{{end}}{{end}}
{{end}}</table>
<ul>{{range .Summaries}}<li>{{.}}{{end}}</ul>
{{.Charts}}
{{end}}{{with .Idle}}<h2>idle</h2><ul>{{range .}}<li>{{.}}{{end}}</ul>{{end}}</html>
`))
