package compare

import "testing"

// spreadOver is how many connections part spread has beside one.
const spreadOver = 4

// compareSpread measures what a server loses if its load comes over several
// connections: each cell over one, and over spreadOver with the same depth in
// all. They take turns.
func (b *comparison) compareSpread(t testing.TB, server *contender, list []cell) (outcomes []outcome) {
	t.Helper()
	for _, c := range list {
		many := c
		many.jobs, many.depth = spreadOver, c.depth/spreadOver
		o := outcome{Cell: c.String(), Figures: []figure{{Server: "four"}, {Server: "one"}}}
		for round := range b.rounds {
			for i := range 2 {
				i = (i + round) % 2
				o.Figures[i].add(b.runCell(t, server, []cell{many, c}[i]))
			}
		}
		r := compareFigures(&o.Figures[0], &o.Figures[1])
		o.Ratios = []ratio{r}
		t.Logf("%s, %s, four connections to one: %.2f (%.2f..%.2f; %s)", server.name, c, r.Median, r.Least, r.Most, r.costs())
		outcomes = append(outcomes, o)
	}
	return outcomes
}

// A ratio has the costs of the rounds, where they are known.
func TestRatioOfFigures(t *testing.T) {
	a := figure{Server: "a", IOPS: []float64{10, 30, 20}, Median: []float64{2, 2, 2}, CPU: []float64{4, 4, 4}}
	b := figure{Server: "b", IOPS: []float64{10, 10, 10}, Median: []float64{4, 1, 4}, CPU: []float64{2, 2, 8}}
	if got, want := compareFigures(&a, &b), (ratio{"a", "b", 2, 1, 3, 2, 0.5}); got != want {
		t.Errorf("%+v, want %+v", got, want)
	}
	b.CPU = b.CPU[:2]
	if got := compareFigures(&a, &b); got.CPU != 0 || got.costs() != "p50 0.50" {
		t.Errorf("without all processor times: %+v, %q", got, got.costs())
	}
}
