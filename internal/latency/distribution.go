package latency

import "time"

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

// Durations are distributions by operation.
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
	x := r.histograms[int(p)*int(Operations)+int(o)].Load()
	if x == nil {
		return
	}
	for i := range d.counts {
		n := x.counts[i].Load()
		d.counts[i] += n
		d.Count += n
	}
	d.Sum += time.Duration(x.total.Load())
}

// Merge adds another distribution.
func (d *Distribution) Merge(o *Distribution) {
	for i, n := range o.counts {
		d.counts[i] += n
	}
	d.Count += o.Count
	d.Sum += o.Sum
}

// Since returns the requests after those of an earlier reading, or all if it is
// not one of these.
func (d *Distribution) Since(earlier *Distribution) Distribution {
	x := *d
	for i, n := range earlier.counts {
		if n > x.counts[i] {
			return *d
		}
		x.counts[i] -= n
	}
	x.Count -= min(x.Count, earlier.Count)
	x.Sum -= min(x.Sum, earlier.Sum)
	return x
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
