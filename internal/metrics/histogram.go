package metrics

import (
	"math"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"

	"github.com/viablk/viablk/internal/latency"
)

// Buckets of a classic histogram: 10 µs, doubled up to 1.3 s.
const (
	classicFirst = 10 * time.Microsecond
	classicCount = 18
)

// nativeSchema has 4 buckets for each power of two, as package latency has.
const nativeSchema = 2

// durations is a histogram both classic and native: a server takes one of them.
type durations struct {
	family *family
	labels []string
	since  time.Time // when counting began
	counts *latency.Distribution
}

// Desc implements prometheus.Metric.
func (d *durations) Desc() *prometheus.Desc { return d.family.desc }

// Write implements prometheus.Metric. A bucket of package latency counts in
// those that its middle is in.
func (d *durations) Write(to *dto.Metric) error {
	classic := make(map[float64]uint64, classicCount)
	native := make(map[int]int64)
	var cumulative [classicCount]uint64
	d.counts.Buckets(func(begin, end time.Duration, n uint64) {
		middle := (begin + end) / 2
		native[int(math.Ceil(math.Log2(middle.Seconds())*(1<<nativeSchema)))] += int64(n)
		for i := range cumulative {
			if middle <= classicFirst<<i {
				cumulative[i] += n
			}
		}
	})
	for i, n := range cumulative {
		classic[(classicFirst << i).Seconds()] = n
	}
	h, err := prometheus.NewConstHistogram(d.family.desc, d.counts.Count, d.counts.Sum.Seconds(), classic, d.labels...)
	if err != nil {
		return err
	}
	if err := h.Write(to); err != nil {
		return err
	}
	const zero = 1e-9
	h, err = prometheus.NewConstNativeHistogram(d.family.desc, d.counts.Count, d.counts.Sum.Seconds(), native, nil, 0, nativeSchema, zero, d.since, d.labels...)
	if err != nil {
		return err
	}
	var both dto.Metric
	if err := h.Write(&both); err != nil {
		return err
	}
	x, n := to.Histogram, both.Histogram
	x.Schema, x.ZeroThreshold, x.ZeroCount = n.Schema, n.ZeroThreshold, n.ZeroCount
	x.PositiveSpan, x.PositiveDelta, x.CreatedTimestamp = n.PositiveSpan, n.PositiveDelta, n.CreatedTimestamp
	return nil
}
