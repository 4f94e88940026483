package top

import (
	"cmp"
	"slices"
	"strings"

	"github.com/viablk/viablk/cmd/viablk/internal/activity"
)

// order is an order of the table.
type order struct {
	key     string // that a person presses
	name    string
	compare func(a, b *activity.Row) int
}

// most is an order by a figure, the highest first.
func most[T cmp.Ordered](figure func(*activity.Row) T) func(a, b *activity.Row) int {
	return func(a, b *activity.Row) int { return cmp.Compare(figure(b), figure(a)) }
}

// orders are the orders; the first is the usual one.
var orders = []order{
	{"l", "P99", most(func(r *activity.Row) int64 { return int64(r.P99) })},
	{"i", "IOPS", most((*activity.Row).Rate)},
	{"b", "MB/s", most((*activity.Row).Bytes)},
	{"f", "in flight", most(func(r *activity.Row) int { return r.InFlight })},
	{"w", "WAIT%", most(func(r *activity.Row) float64 { return r.Waited })},
	{"e", "export", byName},
}

func byName(a, b *activity.Row) int {
	return cmp.Or(strings.Compare(a.Export, b.Export), strings.Compare(a.Face, b.Face), cmp.Compare(a.PID, b.PID))
}

// Sort sorts rows by P99. In every order those come first whose requests are
// not answered.
func Sort(rows []activity.Row) { sortRows(rows, orders[0], false) }

// sortRows sorts rows.
func sortRows(rows []activity.Row, o order, reverse bool) {
	slices.SortFunc(rows, func(a, b activity.Row) int {
		if x, y := a.Troubled(), b.Troubled(); x != y {
			if x {
				return -1
			}
			return 1
		}
		n := o.compare(&a, &b)
		if reverse {
			n = -n
		}
		return cmp.Or(n, byName(&a, &b))
	})
}

// matching returns the rows whose export, face or state has the text.
func matching(rows []activity.Row, text string) []activity.Row {
	text = strings.ToLower(text)
	var found []activity.Row
	for _, r := range rows {
		if strings.Contains(strings.ToLower(r.Export), text) || strings.Contains(r.Face, text) || strings.Contains(r.State, text) {
			found = append(found, r)
		}
	}
	return found
}
