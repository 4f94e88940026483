package top

import (
	"fmt"
	"slices"
	"strconv"
	"time"

	"github.com/viablk/viablk/cmd/viablk/internal/activity"
	"github.com/viablk/viablk/cmd/viablk/internal/show"
)

// pathLines describes the paths to the hosts of a target, and says why one is
// not up.
func (m *Model) pathLines(paths []activity.PathRow) []string {
	rows := [][]string{{"PATH", "SHARE%", "CONN", "LOSSES", "LAST-LOSS", "HOST"}}
	widths := []int{-4, 6, 4, 6, 9, 0}
	left := m.width - gap*(len(widths)-1)
	for _, w := range widths {
		left -= max(w, -w)
	}
	widths[len(widths)-1] = -max(leastName, left)
	var reasons []string
	for i := range paths {
		p := &paths[i]
		rows = append(rows, []string{
			p.State, show.Percent(p.Share), strconv.FormatInt(p.Queues, 10), strconv.FormatUint(p.Losses, 10),
			lossCell(p.LastLoss, m.now.Time), show.Text(p.Host),
		})
		if p.State != activity.PathUp && p.Reason != "" {
			reasons = append(reasons, m.fit(fmt.Sprintf("%s: %s", show.Text(p.Host), show.Text(p.Reason))))
		}
	}
	return append(m.fixed(widths, rows), reasons...)
}

// lossCell returns how long ago the last loss of a path was.
func lossCell(last, now time.Time) string {
	if last.IsZero() {
		return "-"
	}
	return show.Age(max(0, now.Sub(last))) + " ago"
}

// degraded says which export, the first, goes on without a path; "" if none
// does.
func degraded(rows []activity.Row) string {
	i := slices.IndexFunc(rows, func(r activity.Row) bool { return r.Degraded() })
	if i < 0 {
		return ""
	}
	r := &rows[i]
	return fmt.Sprintf("%d of %d paths of %s are up: Enter shows them", r.PathsUp(), len(r.Paths), show.Text(r.Export))
}
