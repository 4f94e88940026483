package statuspage

import (
	"time"

	"github.com/viablk/viablk/cmd/viablk/internal/activity"
	"github.com/viablk/viablk/internal/latency"
)

// Limits of the history: 14 kB for each export that had requests.
const (
	historySeconds = 600
	historyExports = 256
)

// sample is a second of an export, or of all of them.
type sample struct {
	reads, writes           float32 // requests
	bytesRead, bytesWritten float32
	p50, p99                float32 // µs; 0 without requests
}

// series is the samples of an export. A sample is that of the second with the
// same index of history.
type series [historySeconds]sample

// history is the last samples.
type history struct {
	next    int // index of the next sample
	filled  int // samples that there are
	total   series
	exports map[string]*series
}

// sum is what happens at an export over all faces.
type sum struct {
	sample
	durations latency.Distribution
}

func (s *sum) add(r *activity.Row) {
	s.reads += float32(r.ReadRate)
	s.writes += float32(r.WriteRate)
	s.bytesRead += float32(r.ReadBytes)
	s.bytesWritten += float32(r.WriteBytes)
	if r.Durations != nil {
		s.durations.Merge(r.Durations)
	}
}

// finish adds the percentiles.
func (s *sum) finish() sample {
	s.p50 = micros(s.durations.Quantile(0.5))
	s.p99 = micros(s.durations.Quantile(0.99))
	return s.sample
}

func micros(d time.Duration) float32 { return float32(d) / float32(time.Microsecond) }

// add adds a second. An export has samples from its first request on, if not
// too many have; one that is not there any more has none.
func (h *history) add(rows []activity.Row) {
	if h.exports == nil {
		h.exports = make(map[string]*series)
	}
	there := make(map[string]bool, len(rows))
	sums := make(map[string]*sum)
	var total sum
	for i := range rows {
		r := &rows[i]
		there[r.Export] = true
		if h.exports[r.Export] == nil && r.Rate() > 0 && len(h.exports) < historyExports {
			h.exports[r.Export] = new(series)
		}
		if r.Rate() == 0 {
			continue
		}
		total.add(r)
		if h.exports[r.Export] != nil {
			if sums[r.Export] == nil {
				sums[r.Export] = new(sum)
			}
			sums[r.Export].add(r)
		}
	}
	h.total[h.next] = total.finish()
	for name, s := range h.exports {
		switch x := sums[name]; {
		case !there[name]:
			delete(h.exports, name)
		case x == nil:
			s[h.next] = sample{}
		default:
			s[h.next] = x.finish()
		}
	}
	h.next = (h.next + 1) % historySeconds
	h.filled = min(h.filled+1, historySeconds)
}

// of returns the samples of an export, of all with an empty name, the oldest
// first. They are nil if none are kept.
func (h *history) of(export string) []sample {
	s := &h.total
	if export != "" {
		s = h.exports[export]
	}
	if s == nil {
		return nil
	}
	out := make([]sample, 0, h.filled)
	for i := range h.filled {
		out = append(out, s[(h.next-h.filled+i+historySeconds)%historySeconds])
	}
	return out
}
