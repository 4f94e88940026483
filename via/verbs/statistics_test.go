package verbs

import (
	"slices"
	"testing"
)

// fakeAdapter is an adapter with fixed counters.
type fakeAdapter struct {
	device string
	counts Counts
	ended  bool
}

func (l *fakeAdapter) Counts() Counts { return l.counts }
func (l *fakeAdapter) name() string   { return l.device }
func (l *fakeAdapter) closed() bool   { return l.ended }

// Statistics are sums by device and keep the counters of closed adapters.
func TestStatistics(t *testing.T) {
	p := New(Options{})
	if got := p.Statistics(); len(got) != 0 {
		t.Errorf("a provider that opened nothing did %v", got)
	}
	a := &fakeAdapter{device: "b0", counts: Counts{1, 2, 3, 4, 5, 6}}
	b := &fakeAdapter{device: "a0", counts: Counts{Posts: 7}}
	c := &fakeAdapter{device: "b0", counts: Counts{10, 20, 30, 40, 50, 60}}
	for _, l := range []*fakeAdapter{a, b, c} {
		p.counters.add(l)
	}
	want := []Statistics{{"a0", Counts{Posts: 7}}, {"b0", Counts{11, 22, 33, 44, 55, 66}}}
	for range 2 {
		if got := p.Statistics(); !slices.Equal(got, want) {
			t.Errorf("%v, want %v", got, want)
		}
		a.ended, b.ended = true, true
	}
	p.counters.add(&fakeAdapter{device: "b0", counts: Counts{Polls: 1}})
	want[1].Polls++
	if got := p.Statistics(); !slices.Equal(got, want) || len(p.counters.open) != 2 {
		t.Errorf("%v of %d adapters, want %v of 2", got, len(p.counters.open), want)
	}
}
