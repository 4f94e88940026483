package viatest

import (
	"testing"

	"github.com/viablk/viablk/via"
)

func TestCasesAreDescribed(t *testing.T) {
	names := make(map[string]bool)
	count := make(map[Level]int)
	for _, c := range Cases() {
		if names[c.Name] {
			t.Errorf("two cases are named %q", c.Name)
		}
		names[c.Name] = true
		count[c.Level]++
		if c.Name == "" || c.Group == "" || c.Rule == "" || c.Reliability == 0 || c.Reliability&^anyLevel != 0 || c.Level < EarlyAdopter || c.Level > Full {
			t.Errorf("case is not described: %+v", c)
		}
		if c.Needs&NeedsRdmaRead != 0 && (c.Level != Full || c.Reliability&unreliable != 0) {
			t.Errorf("case %s needs RDMA Read, which is reliable and of the full level", c.Name)
		}
	}
	for _, l := range []Level{EarlyAdopter, Functional, Full} {
		if count[l] == 0 {
			t.Errorf("no case of the %v level", l)
		}
	}
}

// The matrix has a cell for each error at each level, and each cell expects
// something.
func TestMatrixIsComplete(t *testing.T) {
	cells := 0
	for i, r := range matrix() {
		if r.number != i+1 || r.name == "" || len(r.variants) == 0 {
			t.Errorf("row %d is %v, with %d variants", i+1, &r, len(r.variants))
		}
		names := make(map[string]bool)
		for _, v := range r.variants {
			if v.name == "" || names[v.name] || (v.act == nil) == (v.check == nil) {
				t.Errorf("%v: variant %q is not one act or check of its own name", &r, v.name)
			}
			names[v.name] = true
		}
		for level := range levels {
			cells++
			for _, v := range r.variants {
				w := &v.want[level]
				if v.check == nil && len(w.sender)+len(w.receiver)+len(w.atSender)+len(w.atReceiver) == 0 {
					t.Errorf("%v, %s: nothing is expected at %v", &r, v.name, levels[level])
				}
				if w.staysConnected && level != 0 {
					t.Errorf("%v, %s: a reliable connection survives an error", &r, v.name)
				}
			}
		}
	}
	if cells != 51 {
		t.Errorf("the matrix has %d cells, not 17 rows at 3 levels", cells)
	}
}

func TestSkipsAreChecked(t *testing.T) {
	for _, c := range []struct {
		skips Skips
		bad   int
	}{
		{nil, 0},
		{Skips{"SendReceive": "the reason"}, 0},
		{Skips{"SendReceive": ""}, 1},
		{Skips{"SendRecieve": "a slip of the pen"}, 1},
		{Skips{"SendReceive/unreliable": "the reason", "BigMessages/reception": "the reason"}, 0},
		{Skips{"07-MessageCorrupt": "the reason", "15-ReadFails/delivery": "the reason"}, 0},
		{Skips{"7-MessageCorrupt": "another number"}, 1},
		{Skips{"BigMessages/unreliable": "it never runs there"}, 1},
		{Skips{"SendReceive/": "no level", "SendReceive/loose": "no such level", "SendReceive/delivery/case": "no name"}, 3},
		{Skips{"SendReceive": "", "none": "such", "BigRead": "no RDMA Read"}, 2},
	} {
		if got := c.skips.problems(); len(got) != c.bad {
			t.Errorf("skips %v: problems %q, want %d", c.skips, got, c.bad)
		}
	}
}

func TestSkipsNameLevels(t *testing.T) {
	s := Skips{"A": "everywhere", "B/reception": "there"}
	for _, c := range []struct{ name, unreliable, reception string }{
		{"A", "everywhere", "everywhere"},
		{"B", "", "there"},
		{"C", "", ""},
	} {
		if a, b := s.reason(c.name, via.UnreliableDelivery), s.reason(c.name, via.ReliableReception); a != c.unreliable || b != c.reception {
			t.Errorf("%s: reasons %q and %q, want %q and %q", c.name, a, b, c.unreliable, c.reception)
		}
	}
}

func TestCountsOfRun(t *testing.T) {
	y := &counts{provider: "paper", cells: 51, skipped: 1}
	y.ran("A", EarlyAdopter, via.UnreliableDelivery)
	y.ran("A", EarlyAdopter, via.ReliableReception)
	y.ran("B", EarlyAdopter, via.ReliableReception)
	y.ran("C", Full, via.ReliableDelivery)
	const want = "viatest paper: early adopter 2 cases (3 runs), functional 0 (0), full 1 (1); " +
		"unreliable 1 runs, delivery 1, reception 2; matrix 51 cells; 1 skipped"
	if got := y.String(); got != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
	if got, want := y.result(), (Result{Cases: 4, Cells: 51, Skipped: 1}); got != want {
		t.Errorf("result %+v, want %+v", got, want)
	}
}

func TestPatternsDiffer(t *testing.T) {
	a, b := pattern(100, 1), pattern(100, 2)
	same := 0
	for i := range a {
		if a[i] == b[i] {
			same++
		}
	}
	if same > 10 {
		t.Errorf("two patterns agree in %d of 100 bytes", same)
	}
}
