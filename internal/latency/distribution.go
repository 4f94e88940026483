package latency

import (
	"encoding/json"
	"fmt"
	"time"
)

// Status is how long requests took.
type Status struct {
	Requests *Durations `json:"requests"` // from arrival to answer
	Backend  *Durations `json:"backend"`  // of them, in the backend
}

// Add adds the requests of another status, which may be nil.
func (s *Status) Add(o *Status) {
	if o == nil {
		return
	}
	for i := range s.Requests {
		s.Requests[i].Merge(&o.Requests[i])
		s.Backend[i].Merge(&o.Backend[i])
	}
}

// Durations are distributions by operation. In JSON they are percentiles of
// those operations that there were.
type Durations [Operations]Distribution

// Distribution is the durations of requests.
type Distribution struct {
	Count uint64
	Sum   time.Duration

	counts [buckets]uint64
}

// add adds what a recorder has published. The counts of an owner that is at
// work may be some requests ahead of the sum.
func (d *Distribution) add(r *Recorder, p Part, o Operation) {
	h := int(p)*int(Operations) + int(o)
	for i := range d.counts {
		n := r.counts[h*buckets+i].Load()
		d.counts[i] += n
		d.Count += n
	}
	d.Sum += time.Duration(r.totals[h].Load())
}

// Merge adds another distribution.
func (d *Distribution) Merge(o *Distribution) {
	for i, n := range o.counts {
		d.counts[i] += n
	}
	d.Count += o.Count
	d.Sum += o.Sum
}

// Quantile returns a duration that the part q of the requests does not exceed,
// by linear interpolation in a bucket; 0 without requests.
func (d *Distribution) Quantile(q float64) time.Duration {
	rank, below := q*float64(d.Count), 0.0
	for i, n := range d.counts {
		if n == 0 || below+float64(n) < rank {
			below += float64(n)
			continue
		}
		begin := time.Duration(0)
		if i > 0 {
			begin = boundOf(i - 1)
		}
		return begin + time.Duration((rank-below)/float64(n)*float64(boundOf(i)-begin))
	}
	return 0
}

// Buckets calls f with the end of each bucket that has requests, and their
// number, in order.
func (d *Distribution) Buckets(f func(begin, end time.Duration, n uint64)) {
	begin := time.Duration(0)
	for i, n := range d.counts {
		end := boundOf(i)
		if n != 0 {
			f(begin, end, n)
		}
		begin = end
	}
}

// percentiles are a distribution as JSON has it.
type percentiles struct {
	Count uint64  `json:"count"`
	Mean  float64 `json:"mean_us"`
	P50   float64 `json:"p50_us"`
	P99   float64 `json:"p99_us"`
	P999  float64 `json:"p99_9_us"`
}

// MarshalJSON implements json.Marshaler.
func (d *Durations) MarshalJSON() ([]byte, error) {
	all := make(map[string]percentiles)
	for o := range d {
		x := &d[o]
		if x.Count == 0 {
			continue
		}
		all[Names[o]] = percentiles{
			Count: x.Count, Mean: micros(x.Sum) / float64(x.Count),
			P50: micros(x.Quantile(0.5)), P99: micros(x.Quantile(0.99)), P999: micros(x.Quantile(0.999)),
		}
	}
	b, err := json.Marshal(all)
	if err != nil {
		return nil, fmt.Errorf("encode durations: %w", err)
	}
	return b, nil
}

// UnmarshalJSON implements json.Unmarshaler. Percentiles are no distribution:
// only counts and sums are known then.
func (d *Durations) UnmarshalJSON(b []byte) error {
	var all map[string]percentiles
	if err := json.Unmarshal(b, &all); err != nil {
		return fmt.Errorf("decode durations: %w", err)
	}
	*d = Durations{}
	for o, name := range Names {
		d[o].Count = all[name].Count
		d[o].Sum = time.Duration(all[name].Mean * float64(all[name].Count) * float64(time.Microsecond))
	}
	return nil
}

func micros(d time.Duration) float64 { return float64(d) / float64(time.Microsecond) }
