package top

import (
	"fmt"
	"slices"
	"strconv"
	"time"

	"charm.land/lipgloss/v2"

	"github.com/viablk/viablk/cmd/viablk/internal/activity"
	"github.com/viablk/viablk/cmd/viablk/internal/show"
	"github.com/viablk/viablk/internal/latency"
)

// column is one column of the table of exports.
type column struct {
	name  string
	width int // 0: what is left
	left  bool
	rank  int // when there is no room, the highest go first
	cell  func(*activity.Row) string
	shown func([]activity.Row) bool // nil: always
}

// gap is between columns.
const gap = 2

// Width of the column of names, if their length lets it be.
const (
	leastName = 10
	mostName  = 40
)

// columns are in the order of the table.
var columns = []column{
	{name: "PID", width: 7, rank: 14, shown: severalProcesses, cell: func(r *activity.Row) string { return strconv.Itoa(r.PID) }},
	{name: "EXPORT", left: true, rank: 0, cell: func(r *activity.Row) string { return r.Export }},
	{name: "FACE", left: true, width: 9, rank: 5, cell: func(r *activity.Row) string { return r.Face }},
	{name: "STATE", left: true, width: 12, rank: 8, cell: stateCell},
	{name: "CONN", width: 4, rank: 13, cell: func(r *activity.Row) string { return strconv.Itoa(r.Connections) }},
	{name: "READ/s", width: 6, rank: 2, cell: rateCell(func(r *activity.Row) string { return show.Rate(r.ReadRate) })},
	{name: "WRITE/s", width: 7, rank: 3, cell: rateCell(func(r *activity.Row) string { return show.Rate(r.WriteRate) })},
	{name: "MB/s-R", width: 6, rank: 6, cell: rateCell(func(r *activity.Row) string { return show.Megabytes(r.ReadBytes) })},
	{name: "MB/s-W", width: 6, rank: 7, cell: rateCell(func(r *activity.Row) string { return show.Megabytes(r.WriteBytes) })},
	{name: "P50", width: 5, rank: 10, cell: func(r *activity.Row) string { return duration(r, r.P50) }},
	{name: "P99", width: 5, rank: 1, cell: func(r *activity.Row) string { return duration(r, r.P99) }},
	{name: "P99.9", width: 5, rank: 15, cell: func(r *activity.Row) string { return duration(r, r.P999) }},
	{name: "INFLIGHT", width: 8, rank: 9, cell: func(r *activity.Row) string { return strconv.Itoa(r.InFlight) }},
	{name: "WAIT%", width: 5, rank: 11, cell: func(r *activity.Row) string { return show.Percent(r.Waited) }},
	{name: "RETRANS", width: 7, rank: 12, shown: networked, cell: retransCell},
	{name: "TIME-IN", left: true, width: 13, rank: 4, cell: whereCell},
}

func severalProcesses(rows []activity.Row) bool {
	return slices.ContainsFunc(rows, func(r activity.Row) bool { return r.PID != rows[0].PID })
}

func networked(rows []activity.Row) bool {
	return slices.ContainsFunc(rows, func(r activity.Row) bool { return r.Network != nil })
}

// stateCell returns the state, with the time of a target that is away, or how
// many of the paths to it are up.
func stateCell(r *activity.Row) string {
	if r.Degraded() {
		return fmt.Sprintf("paths %d/%d", r.PathsUp(), len(r.Paths))
	}
	if r.State == activity.Waiting && r.Away > 0 {
		return r.State + " " + show.Age(r.Away)
	}
	return r.State
}

// rateCell is a cell that needs an earlier state.
func rateCell(cell func(*activity.Row) string) func(*activity.Row) string {
	return func(r *activity.Row) string {
		if r.Interval == 0 {
			return "-"
		}
		return cell(r)
	}
}

// duration formats a duration; without requests there is none.
func duration(r *activity.Row, d time.Duration) string {
	if r.Interval == 0 || d == 0 {
		return "-"
	}
	return latency.Text(d)
}

// retransCell returns how many packets were retransmitted in a second.
func retransCell(r *activity.Row) string {
	if r.Network == nil || r.Interval == 0 {
		return "-"
	}
	return show.Rate(r.Retransmit)
}

// whereCell says where the time of requests goes: of an export that does not
// answer, why.
func whereCell(r *activity.Row) string {
	if r.State == activity.Waiting || r.State == activity.Failed {
		return stateCell(r)
	}
	where, share := r.Where()
	switch {
	case where == activity.NoAnswer:
		return string(where) + " " + show.Age(r.Silent)
	case share < 0:
		return string(where)
	}
	return string(where) + " " + show.Percent(share) + "%"
}

// layout is the columns that a table has, and their widths.
type layout []column

// newLayout returns the columns that fit, the important ones first.
func newLayout(width int, rows []activity.Row) layout {
	longest := 0
	for i := range rows {
		longest = max(longest, lipgloss.Width(show.Text(rows[i].Export)))
	}
	name := max(leastName, min(longest, mostName))
	byRank := slices.SortedFunc(slices.Values(columns), func(a, b column) int { return a.rank - b.rank })
	chosen, left := make(map[string]bool), width-leastName
	for _, c := range byRank {
		switch {
		case c.shown != nil && !c.shown(rows):
		case c.width == 0:
			chosen[c.name] = true
		case left >= c.width+gap:
			chosen[c.name], left = true, left-c.width-gap
		}
	}
	var l layout
	for _, c := range columns {
		if !chosen[c.name] {
			continue
		}
		if c.width == 0 {
			c.width = min(name, leastName+max(0, left))
		}
		l = append(l, c)
	}
	return l
}

// Table returns all columns of rows, with their heading.
func Table(rows []activity.Row) [][]string {
	var head []string
	var used []column
	for _, c := range columns {
		if c.shown == nil || c.shown(rows) {
			head, used = append(head, c.name), append(used, c)
		}
	}
	table := [][]string{head}
	for i := range rows {
		var line []string
		for _, c := range used {
			line = append(line, c.cell(&rows[i]))
		}
		table = append(table, line)
	}
	return table
}
