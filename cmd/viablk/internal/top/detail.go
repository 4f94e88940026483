package top

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/viablk/viablk/cmd/viablk/internal/activity"
	"github.com/viablk/viablk/cmd/viablk/internal/show"
	"github.com/viablk/viablk/internal/latency"
)

// detailLines describes an export: why it is slow, each operation, and its
// clients, those that do most first.
func (m *Model) detailLines() []string {
	i := slices.IndexFunc(m.now.Exports, func(r activity.Row) bool { return r.Key == *m.detail })
	if i < 0 {
		return []string{"", m.fit(fmt.Sprintf("%s is not there any more", show.Text(m.detail.Export)))}
	}
	r := &m.now.Exports[i]
	var lines []string
	for _, line := range describe(r) {
		lines = append(lines, m.fit(line))
	}
	lines = append(lines, "")
	lines = append(lines, m.fixed([]int{-7, 8, 8, 10, 6, 6, 6}, operationRows(r))...)
	if len(r.Paths) > 0 {
		lines = append(lines, "")
		lines = append(lines, m.pathLines(r.Paths)...)
	}
	lines = append(lines, "")
	clients := m.now.Of(r.Key)
	slices.SortStableFunc(clients, func(a, b activity.ClientRow) int {
		return int(b.ReadRate + b.WriteRate - a.ReadRate - a.WriteRate)
	})
	widths := []int{-8, 0, 4, 6, 7, 6, 6, 5, 4}
	widths[1] = -max(leastName, m.width-8-4-6-7-6-6-5-4-gap*(len(widths)-1))
	return append(lines, m.fixed(widths, clientRows(clients, m.now.Time))...)
}

// describe says what the export is, and where the time of its requests goes.
func describe(r *activity.Row) []string {
	lines := []string{
		fmt.Sprintf("EXPORT %s  FACE %s  BACKEND %s  STATE %s  PID %d", show.Text(r.Export), r.Face, show.Text(r.Backend), stateCell(r), r.PID),
	}
	if r.Reason != "" {
		lines = append(lines, "reason: "+show.Text(r.Reason))
	}
	parts := []string{"time in " + whereCell(r), "in flight " + strconv.Itoa(r.InFlight)}
	for _, p := range []struct {
		name  string
		share float64
	}{{"backend", r.InBackend}, {"limits", r.InLimit}, {"waited", r.Waited}} {
		if p.share >= 0 {
			parts = append(parts, p.name+" "+show.Percent(p.share)+"%")
		}
	}
	if n := r.Network; n != nil {
		parts = append(parts, "round trip "+latency.Text(n.RoundTrip), "retransmitted "+retransCell(r)+"/s")
		if r.Repeated >= 0 {
			parts = append(parts, show.Percent(r.Repeated)+"% of packets")
		}
	}
	if r.ErrorRate > 0 {
		parts = append(parts, "errors "+show.Rate(r.ErrorRate)+"/s")
	}
	return append(lines, strings.Join(parts, ", "))
}

// operationRows returns a table of the operations.
func operationRows(r *activity.Row) [][]string {
	rows := [][]string{{"OP", "PER-SEC", "MEAN", "IN-BACKEND", "P50", "P99", "P99.9"}}
	for o := range r.Operations {
		x := &r.Operations[o]
		if x.Rate > 0 {
			rows = append(rows, []string{
				latency.Names[o], show.Rate(x.Rate), latency.Text(x.Mean), latency.Text(x.InBackend), latency.Text(x.P50), latency.Text(x.P99), latency.Text(x.P999),
			})
		}
	}
	return rows
}

// shortID is how much of the ID of a client the table has.
const shortID = 8

// clientRows returns a table of clients.
func clientRows(clients []activity.ClientRow, now time.Time) [][]string {
	rows := [][]string{{"SESSION", "CLIENT", "CONN", "READ/s", "WRITE/s", "MB/s-R", "MB/s-W", "WAIT%", "IDLE"}}
	for i := range clients {
		c := &clients[i]
		name := c.Identity
		if name == "" || name == "anonymous" {
			name = c.Peer
		}
		idle := "-"
		if !c.LastActive.IsZero() {
			idle = show.Age(max(0, now.Sub(c.LastActive)))
		}
		rows = append(rows, []string{
			c.ID[:min(len(c.ID), shortID)], show.Text(name), strconv.Itoa(c.Connections), show.Rate(c.ReadRate), show.Rate(c.WriteRate),
			show.Megabytes(c.ReadBytes), show.Megabytes(c.WriteBytes), show.Percent(c.Waited), idle,
		})
	}
	return rows
}

// fixed sets rows in columns of these widths; negative ones stand to the left.
// The first row is a heading.
func (m *Model) fixed(widths []int, rows [][]string) []string {
	var lines []string
	for n, row := range rows {
		cells := make([]string, 0, len(row))
		for i, text := range row {
			w := widths[i]
			cells = append(cells, cell(text, max(w, -w), w < 0))
		}
		line := m.fit(strings.Join(cells, strings.Repeat(" ", gap)))
		if n == 0 {
			line = headStyle.Render(line)
		}
		lines = append(lines, line)
	}
	return lines
}
