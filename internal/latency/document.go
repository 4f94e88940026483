package latency

import (
	"encoding/json"
	"fmt"
	"math"
	"time"
)

// document is a distribution as JSON has it.
type document struct {
	Count uint64  `json:"count"`
	Mean  float64 `json:"mean_us"`
	P50   float64 `json:"p50_us"`
	P99   float64 `json:"p99_us"`
	P999  float64 `json:"p99_9_us"`

	// Buckets are the end in µs and the count of those that are not empty.
	Buckets [][2]float64 `json:"buckets,omitempty"`
}

// MarshalJSON implements json.Marshaler. Operations without requests are
// absent, and the parts in the backend have no buckets: there may be thousands
// of exports.
func (s *Status) MarshalJSON() ([]byte, error) {
	all := struct {
		Requests map[string]document `json:"requests"`
		Backend  map[string]document `json:"backend"`
	}{s.Requests.documents(), s.Backend.documents()}
	for name, d := range all.Backend {
		d.Buckets = nil
		all.Backend[name] = d
	}
	b, err := json.Marshal(all)
	if err != nil {
		return nil, fmt.Errorf("encode durations: %w", err)
	}
	return b, nil
}

// documents returns the distributions by operation.
func (d *Durations) documents() map[string]document {
	all := make(map[string]document)
	for o := range d {
		x := &d[o]
		if x.Count == 0 {
			continue
		}
		y := document{
			Count: x.Count, Mean: micros(x.Sum) / float64(x.Count),
			P50: micros(x.Quantile(0.5)), P99: micros(x.Quantile(0.99)), P999: micros(x.Quantile(0.999)),
		}
		x.Buckets(func(_, end time.Duration, n uint64) {
			y.Buckets = append(y.Buckets, [2]float64{micros(end), float64(n)})
		})
		all[Names[o]] = y
	}
	return all
}

// UnmarshalJSON implements json.Unmarshaler. Both parts are there afterwards.
func (s *Status) UnmarshalJSON(b []byte) error {
	var all struct{ Requests, Backend Durations }
	if err := json.Unmarshal(b, &all); err != nil {
		return fmt.Errorf("decode latencies: %w", err)
	}
	s.Requests, s.Backend = &all.Requests, &all.Backend
	return nil
}

// UnmarshalJSON implements json.Unmarshaler. Without buckets only the count and
// the sum are known.
func (d *Durations) UnmarshalJSON(b []byte) error {
	var all map[string]document
	if err := json.Unmarshal(b, &all); err != nil {
		return fmt.Errorf("decode durations: %w", err)
	}
	*d = Durations{}
	for o, name := range Names {
		x := all[name]
		d[o].Count = x.Count
		d[o].Sum = time.Duration(min(x.Mean*float64(x.Count)*float64(time.Microsecond), math.MaxInt64/2))
		for _, bucket := range x.Buckets {
			end := time.Duration(math.Round(min(bucket[0]*float64(time.Microsecond), math.MaxInt64/2)))
			d[o].counts[bucketOf(end-1)] += uint64(max(0, min(bucket[1], math.MaxInt64)))
		}
	}
	return nil
}

func micros(d time.Duration) float64 { return float64(d) / float64(time.Microsecond) }

// Text formats a duration in at most five letters up to 9999 s.
func Text(d time.Duration) string {
	x, unit := float64(d)/1e3, "us"
	switch {
	case d >= 999500*time.Microsecond:
		x, unit = float64(d)/1e9, "s"
	case d >= 999500*time.Nanosecond:
		x, unit = float64(d)/1e6, "ms"
	}
	if x < 9.95 {
		return fmt.Sprintf("%.1f%s", x, unit)
	}
	return fmt.Sprintf("%.0f%s", x, unit)
}
