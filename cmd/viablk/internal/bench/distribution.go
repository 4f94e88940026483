package bench

import "slices"

// Distribution describes latencies in nanoseconds. A percentile is the least
// latency that so many percent do not exceed.
type Distribution struct {
	Min  float64 `json:"min_ns"`
	P50  float64 `json:"p50_ns"`
	P90  float64 `json:"p90_ns"`
	P99  float64 `json:"p99_ns"`
	P999 float64 `json:"p99_9_ns"`
	Max  float64 `json:"max_ns"`
	Mean float64 `json:"mean_ns"`
}

// Spread is a figure over several rounds.
type Spread struct {
	Median float64 `json:"median"`
	Least  float64 `json:"least"`
	Most   float64 `json:"most"`
}

// distribute sorts samples, in nanoseconds, and describes them times factor.
func distribute(samples []int64, factor float64) Distribution {
	if len(samples) == 0 {
		return Distribution{}
	}
	slices.Sort(samples)
	at := func(perMille int) float64 { return factor * float64(percentile(samples, perMille)) }
	sum := 0.0
	for _, s := range samples {
		sum += float64(s)
	}
	return Distribution{
		Min: factor * float64(samples[0]), P50: at(500), P90: at(900), P99: at(990), P999: at(999),
		Max: factor * float64(samples[len(samples)-1]), Mean: factor * sum / float64(len(samples)),
	}
}

// percentile returns the nearest rank of sorted samples.
func percentile(sorted []int64, perMille int) int64 {
	rank := (len(sorted)*perMille + 999) / 1000
	return sorted[max(rank, 1)-1]
}

// median returns the middle of values, which it sorts; of an even number, the
// mean of the two.
func median(values []float64) float64 {
	n := len(values)
	if n == 0 {
		return 0
	}
	slices.Sort(values)
	return (values[(n-1)/2] + values[n/2]) / 2
}

// spread describes a figure over rounds.
func spread(values []float64) Spread {
	if len(values) == 0 {
		return Spread{}
	}
	sorted := slices.Clone(values)
	m := median(sorted)
	return Spread{Median: m, Least: sorted[0], Most: sorted[len(sorted)-1]}
}

// merge takes the median of each figure over the rounds, and the least and the
// greatest latency of all.
func merge(rounds []Distribution) Distribution {
	of := func(figure func(*Distribution) float64) []float64 {
		var v []float64
		for i := range rounds {
			v = append(v, figure(&rounds[i]))
		}
		return v
	}
	return Distribution{
		Min:  spread(of(func(d *Distribution) float64 { return d.Min })).Least,
		P50:  median(of(func(d *Distribution) float64 { return d.P50 })),
		P90:  median(of(func(d *Distribution) float64 { return d.P90 })),
		P99:  median(of(func(d *Distribution) float64 { return d.P99 })),
		P999: median(of(func(d *Distribution) float64 { return d.P999 })),
		Max:  spread(of(func(d *Distribution) float64 { return d.Max })).Most,
		Mean: median(of(func(d *Distribution) float64 { return d.Mean })),
	}
}
