package bench

import (
	"math"
	"slices"
	"testing"

	"pgregory.net/rapid"
)

func TestDistributionByHand(t *testing.T) {
	samples := make([]int64, 1000)
	for i := range samples {
		samples[i] = int64(1000 - i) // 1 to 1000, not sorted
	}
	got := distribute(samples, 0.5)
	want := Distribution{Min: 0.5, P50: 250, P90: 450, P99: 495, P999: 499.5, Max: 500, Mean: 250.25}
	if got != want {
		t.Errorf("the distribution of 1 to 1000, halved, is %+v, want %+v", got, want)
	}
	if got := distribute([]int64{7}, 1); got.Min != 7 || got.P50 != 7 || got.P999 != 7 || got.Max != 7 || got.Mean != 7 {
		t.Errorf("the distribution of one sample is %+v", got)
	}
	if got := distribute(nil, 1); got != (Distribution{}) {
		t.Errorf("the distribution of nothing is %+v", got)
	}
}

// A percentile is a sample that at least so many do not exceed, and no smaller
// one has that property.
func TestPercentileIsNearestRank(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		samples := rapid.SliceOfN(rapid.Int64Range(0, 50), 1, 200).Draw(t, "samples")
		perMille := rapid.IntRange(1, 1000).Draw(t, "per mille")
		slices.Sort(samples)
		got := percentile(samples, perMille)
		upTo := func(v int64) int {
			n := 0
			for _, s := range samples {
				if s <= v {
					n++
				}
			}
			return n
		}
		if upTo(got)*1000 < perMille*len(samples) {
			t.Fatalf("only %d of %d samples are up to %d", upTo(got), len(samples), got)
		}
		if i := slices.Index(samples, got); i > 0 && i*1000 >= perMille*len(samples) {
			t.Fatalf("%d samples below %d are enough", i, got)
		}
	})
}

func TestMedianAndSpread(t *testing.T) {
	for _, c := range []struct {
		values []float64
		want   Spread
	}{
		{nil, Spread{}},
		{[]float64{3}, Spread{3, 3, 3}},
		{[]float64{5, 1}, Spread{3, 1, 5}},
		{[]float64{9, 1, 2}, Spread{2, 1, 9}},
		{[]float64{4, 1, 3, 2}, Spread{2.5, 1, 4}},
	} {
		before := slices.Clone(c.values)
		if got := spread(c.values); got != c.want {
			t.Errorf("the spread of %v is %+v, want %+v", before, got, c.want)
		}
		if !slices.Equal(before, c.values) {
			t.Errorf("%v became %v: rounds are compared by their place", before, c.values)
		}
	}
}

func TestMergeTakesExtremesOfAllRounds(t *testing.T) {
	got := merge([]Distribution{
		{Min: 2, P50: 10, P90: 20, P99: 30, P999: 40, Max: 50, Mean: 11},
		{Min: 1, P50: 12, P90: 22, P99: 32, P999: 42, Max: 52, Mean: 13},
		{Min: 3, P50: 11, P90: 21, P99: 31, P999: 41, Max: 99, Mean: 12},
	})
	want := Distribution{Min: 1, P50: 11, P90: 21, P99: 31, P999: 41, Max: 99, Mean: 12}
	if got != want {
		t.Errorf("merged %+v, want %+v", got, want)
	}
}

func TestBaselineComparesWithinRounds(t *testing.T) {
	got := newBaseline("copy", []float64{10, 40, 30}, []float64{10, 20, 30})
	want := &Baseline{Name: "copy", Time: Spread{20, 10, 30}, Ratio: Spread{1, 1, 2}}
	if got == nil || *got != *want {
		t.Errorf("the baseline is %+v, want %+v", got, want)
	}
	if got := newBaseline("copy", []float64{1, 2}, []float64{1, 0}); got != nil {
		t.Errorf("a round without a baseline gives %+v", got)
	}
	if math.IsNaN(spread([]float64{0}).Median) {
		t.Error("a figure of zero is no number")
	}
}
