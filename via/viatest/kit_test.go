package viatest

import "testing"

func TestCasesAreDescribed(t *testing.T) {
	names := make(map[string]bool)
	levels := make(map[Level]int)
	for _, c := range Cases() {
		if names[c.Name] {
			t.Errorf("two cases are named %q", c.Name)
		}
		names[c.Name] = true
		levels[c.Level]++
		if c.Name == "" || c.Group == "" || c.Rule == "" || c.Reliability == 0 || c.Level < EarlyAdopter || c.Level > Full {
			t.Errorf("case is not described: %+v", c)
		}
		if c.Needs == NeedsRdmaRead && c.Level != Full {
			t.Errorf("case %s needs RDMA Read, which is of the full level", c.Name)
		}
	}
	for _, l := range []Level{EarlyAdopter, Functional, Full} {
		if levels[l] == 0 {
			t.Errorf("no case of the %v level", l)
		}
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
		{Skips{"SendReceive": "", "none": "such", "BigRead": "no RDMA Read"}, 2},
	} {
		if got := c.skips.problems(); len(got) != c.bad {
			t.Errorf("skips %v: problems %q, want %d", c.skips, got, c.bad)
		}
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
