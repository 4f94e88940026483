// Package statuspage is the page for people of the metrics listener: exports,
// clients, the ways to targets, and ten minutes of them as charts.
//
// The page is HTML that the server makes, to read only. Its script does no more
// than load it again: without it the page refreshes itself.
package statuspage

import (
	"bytes"
	"cmp"
	_ "embed"
	"fmt"
	"html/template"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/viablk/viablk/cmd/viablk/internal/activity"
	"github.com/viablk/viablk/cmd/viablk/internal/show"
	"github.com/viablk/viablk/internal/latency"
)

// Interval is between two states.
const Interval = time.Second

// Limits of what the page shows and keeps.
const (
	mostRows     = 256 // of each table
	longestQuery = 256 // bytes of a filter, or of the name of an export
	mostBodies   = 16  // pages of one state, by their queries
)

// Process is what the page says of the process.
type Process struct {
	PID              int
	Command, Version string
	Started          time.Time
}

// Page keeps what happened, and shows it. The zero value has seen nothing. Its
// methods are safe for concurrent use.
type Page struct {
	mu sync.Mutex
	// +checklocks:mu
	process Process
	// +checklocks:mu
	tracker activity.Tracker
	// +checklocks:mu
	history history
	// +checklocks:mu
	rows activity.Rows
	// +checklocks:mu
	bodies map[query][]byte // of rows
}

// Add adds a state of a process, Interval after the last one. The page keeps
// it.
func (p *Page) Add(of Process, s activity.State) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.process = of
	p.rows = p.tracker.Add(s)
	p.history.add(p.rows.Exports)
	sortRows(p.rows.Exports)
	p.bodies = make(map[query][]byte)
}

// sortRows puts the rows first whose requests are not answered, then those
// with the longest.
func sortRows(rows []activity.Row) {
	slices.SortFunc(rows, func(a, b activity.Row) int {
		if x, y := a.Troubled(), b.Troubled(); x != y {
			if x {
				return -1
			}
			return 1
		}
		return cmp.Or(cmp.Compare(b.P99, a.P99), strings.Compare(a.Export, b.Export), strings.Compare(a.Face, b.Face))
	})
}

// policy is the Content-Security-Policy: the page loads its own script and
// style sheet, and itself.
const policy = "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self'; " +
	"base-uri 'none'; form-action 'self'; frame-ancestors 'none'"

//go:embed page.html
var pageText string

//go:embed page.css
var style []byte

//go:embed page.js
var script []byte

var pageTemplate = template.Must(template.New("page").Parse(pageText))

// Register adds the routes of the page.
func (p *Page) Register(mux *http.ServeMux) {
	mux.HandleFunc("GET /{$}", p.serve)
	for _, f := range []struct {
		route, kind string
		content     []byte
	}{{"GET /page.css", "text/css; charset=utf-8", style}, {"GET /page.js", "text/javascript; charset=utf-8", script}} {
		mux.HandleFunc(f.route, func(w http.ResponseWriter, _ *http.Request) { answer(w, f.kind, f.content) })
	}
}

// answer sends a file or a page. An error is a client that went away.
func answer(w http.ResponseWriter, kind string, body []byte) {
	h := w.Header()
	h.Set("Content-Type", kind)
	h.Set("Content-Length", strconv.Itoa(len(body)))
	h.Set("Content-Security-Policy", policy)
	h.Set("X-Content-Type-Options", "nosniff")
	h.Set("X-Frame-Options", "DENY")
	h.Set("Referrer-Policy", "no-referrer")
	h.Set("Cross-Origin-Resource-Policy", "same-origin")
	h.Set("Cross-Origin-Opener-Policy", "same-origin")
	h.Set("Cache-Control", "no-store")
	_, _ = w.Write(body)
}

// query is what a client asks for.
type query struct {
	filter string // text that exports have
	export string // whose charts; empty for all exports
}

func (p *Page) serve(w http.ResponseWriter, r *http.Request) {
	values := r.URL.Query()
	q := query{values.Get("filter"), values.Get("export")}
	if len(q.filter) > longestQuery || len(q.export) > longestQuery {
		http.Error(w, fmt.Sprintf("the query is longer than %d bytes", longestQuery), http.StatusBadRequest)
		return
	}
	body, err := p.body(q, time.Now())
	if err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	answer(w, "text/html; charset=utf-8", body)
}

// body returns the page, which it makes once for each state. One is made at a
// time.
func (p *Page) body(q query, now time.Time) ([]byte, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	late := now.Sub(p.rows.Time) > staleAfter // then it says how late
	if b, ok := p.bodies[q]; ok && !late {
		return b, nil
	}
	var b bytes.Buffer
	if err := pageTemplate.Execute(&b, p.content(q, now)); err != nil {
		return nil, fmt.Errorf("make the page: %w", err)
	}
	if !late && len(p.bodies) < mostBodies {
		p.bodies[q] = b.Bytes()
	}
	return b.Bytes(), nil
}

// staleAfter is when the page says that the state is old.
const staleAfter = 3 * Interval

// content is what the template shows.
type content struct {
	Process Process
	Uptime  string
	Time    string // of the state
	Stale   string // how old it is, if that is too old

	Filter, Export string
	ExportName     string // as it is shown
	Charts         []chart
	NoHistory      bool

	Exports, Clients   []row
	Total, TotalFilter int // exports
	TotalClients       int
	Paths              []row
}

// row is a row of a table.
type row struct {
	Class string // of the style sheet
	Link  string // the name of an export
	Name  string
	Cells []string
}

// content makes the content. The caller holds mu.
//
// +checklocks:p.mu
func (p *Page) content(q query, now time.Time) *content {
	c := &content{
		Process: p.process, Uptime: show.Age(max(0, now.Sub(p.process.Started))), Time: "no state yet",
		Filter: q.filter, Export: q.export, ExportName: show.Text(q.export), Total: len(p.rows.Exports), TotalClients: len(p.rows.Clients),
	}
	if !p.rows.Time.IsZero() {
		c.Time = p.rows.Time.Format(time.DateTime)
		if age := now.Sub(p.rows.Time); age > staleAfter {
			c.Stale = show.Age(age)
		}
	}
	samples := p.history.of(q.export)
	c.Charts, c.NoHistory = charts(samples), samples == nil
	filter := strings.ToLower(q.filter)
	for i := range p.rows.Exports {
		r := &p.rows.Exports[i]
		if !strings.Contains(strings.ToLower(r.Export), filter) {
			continue
		}
		if c.TotalFilter++; c.TotalFilter <= mostRows {
			c.Exports = append(c.Exports, exportRow(r))
		}
	}
	c.Clients = clientRows(p.rows.Clients, p.rows.Time)
	for i := range p.rows.Paths[:min(len(p.rows.Paths), mostRows)] {
		c.Paths = append(c.Paths, pathRow(&p.rows.Paths[i]))
	}
	return c
}

// exportRow describes an export.
func exportRow(r *activity.Row) row {
	where, share := r.Where()
	in := string(where)
	switch {
	case r.State == activity.Waiting || r.State == activity.Failed:
		in = show.Text(cmp.Or(r.Reason, r.State))
	case where == activity.NoAnswer:
		in += " " + show.Age(r.Silent)
	case share >= 0:
		in += " " + show.Percent(share) + "%"
	}
	state := r.State
	if state == activity.Waiting && r.Away > 0 {
		state += " " + show.Age(r.Away)
	}
	again := "-"
	if r.Network != nil {
		again = show.Rate(r.Retransmit)
	}
	x := row{Link: r.Export, Name: show.Text(r.Export), Cells: []string{
		r.Face, state, show.Text(r.Backend), strconv.Itoa(r.Connections), show.Rate(r.ReadRate), show.Rate(r.WriteRate),
		show.Megabytes(r.ReadBytes), show.Megabytes(r.WriteBytes), duration(r.P50), duration(r.P99), strconv.Itoa(r.InFlight),
		show.Percent(r.Waited), again, in,
	}}
	switch {
	case r.State == activity.Failed:
		x.Class = "failed"
	case r.Troubled() || r.State == activity.Draining:
		x.Class = "waiting"
	}
	return x
}

func duration(d time.Duration) string {
	if d == 0 {
		return "-"
	}
	return latency.Text(d)
}

// clientRows describes those clients that do most.
func clientRows(clients []activity.ClientRow, now time.Time) (rows []row) {
	clients = slices.Clone(clients)
	slices.SortStableFunc(clients, func(a, b activity.ClientRow) int {
		return cmp.Compare(b.ReadRate+b.WriteRate, a.ReadRate+a.WriteRate)
	})
	for i := range clients[:min(len(clients), mostRows)] {
		c := &clients[i]
		exports := make([]string, 0, len(c.Exports))
		for _, e := range c.Exports[:min(len(c.Exports), 4)] {
			exports = append(exports, show.Text(e))
		}
		if more := len(c.Exports) - len(exports); more > 0 {
			exports = append(exports, fmt.Sprintf("and %d more", more))
		}
		idle := "-"
		if !c.LastActive.IsZero() {
			idle = show.Age(max(0, now.Sub(c.LastActive)))
		}
		rows = append(rows, row{Name: c.ID[:min(len(c.ID), 8)], Cells: []string{
			c.Face, show.Text(c.Peer), show.Text(c.Identity), strings.Join(exports, " "), strconv.Itoa(c.Connections),
			show.Age(max(0, now.Sub(c.Opened))), idle, show.Rate(c.ReadRate), show.Rate(c.WriteRate),
			show.Megabytes(c.ReadBytes), show.Megabytes(c.WriteBytes), show.Percent(c.Waited),
		}})
	}
	return rows
}

// pathRow describes the way to a target.
func pathRow(p *activity.Path) row {
	state := p.State
	if state == activity.Waiting && p.Away > 0 {
		state += " " + show.Age(p.Away)
	}
	x := row{Name: show.Text(p.Export), Cells: []string{
		"via+" + p.Provider, p.Target[:min(len(p.Target), 8)], state, strconv.FormatUint(p.Losses, 10), show.Text(p.Reason),
	}}
	switch p.State {
	case activity.Failed:
		x.Class = "failed"
	case activity.Waiting:
		x.Class = "waiting"
	}
	return x
}
