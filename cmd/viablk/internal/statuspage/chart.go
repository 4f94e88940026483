package statuspage

import (
	"math"
	"strconv"
	"strings"
	"time"

	"github.com/viablk/viablk/cmd/viablk/internal/show"
	"github.com/viablk/viablk/internal/latency"
)

// Size of a chart and of its margins, in units of its view box.
const (
	chartWidth  = 560
	chartHeight = 170
	marginLeft  = 54
	marginRight = 10
	marginTop   = 8
	marginFoot  = 22
)

// chart is a drawing of ten minutes.
type chart struct {
	Title         string
	Width, Height int
	Left, Right   int // of the plot
	Foot          int // of the plot
	Lines         []line
	Grid          []mark // horizontal lines
	Ticks         []mark // times
}

// line is one line of a chart.
type line struct {
	Name  string // a class of the style sheet, too
	Label string // what it is, and its last value
	Path  string
}

// mark is a place of an axis.
type mark struct {
	At     string // units
	Text   string
	Anchor string // where the text is: start, middle or end; empty at a grid line
}

// value is one of the figures of a sample.
type value struct {
	name string
	get  func(*sample) float32
}

// scale maps values to places.
type scale struct {
	low, high float64 // at the foot and the top
	log       bool
	marks     []float64
}

// charts returns the charts of samples.
func charts(samples []sample) []chart {
	return []chart{
		newChart("Requests per second", samples, show.Rate, false,
			value{"reads", func(s *sample) float32 { return s.reads }}, value{"writes", func(s *sample) float32 { return s.writes }}),
		newChart("Throughput, MB/s", samples, show.Megabytes, false,
			value{"read", func(s *sample) float32 { return s.bytesRead }}, value{"written", func(s *sample) float32 { return s.bytesWritten }}),
		newChart("Latency", samples, func(us float64) string {
			return latency.Text(time.Duration(us * float64(time.Microsecond)))
		}, true,
			value{"p50", func(s *sample) float32 { return s.p50 }}, value{"p99", func(s *sample) float32 { return s.p99 }}),
	}
}

// newChart draws values. On a logarithmic scale there are gaps for zeroes.
func newChart(title string, samples []sample, text func(float64) string, log bool, values ...value) chart {
	c := chart{
		Title: title, Width: chartWidth, Height: chartHeight,
		Left: marginLeft, Right: chartWidth - marginRight, Foot: chartHeight - marginFoot,
	}
	var all []float64
	for i := range samples {
		for _, v := range values {
			all = append(all, float64(v.get(&samples[i])))
		}
	}
	s := linearScale(all)
	if log {
		s = logScale(all)
	}
	for _, m := range s.marks {
		c.Grid = append(c.Grid, mark{At: units(s.place(m)), Text: text(m)})
	}
	c.Ticks = []mark{{units(placeOf(historySeconds - 1)), "now", "end"}}
	for minutes := 2; minutes < 10; minutes += 2 {
		c.Ticks = append(c.Ticks, mark{units(placeOf(float64(historySeconds - 1 - 60*minutes))), strconv.Itoa(-minutes) + " min", "middle"})
	}
	c.Ticks = append(c.Ticks, mark{units(placeOf(0)), "-10 min", "start"})
	for _, v := range values {
		label := v.name + " -"
		if n := len(samples); n > 0 {
			if last := float64(v.get(&samples[n-1])); last > 0 || !log {
				label = v.name + " " + text(last)
			}
		}
		c.Lines = append(c.Lines, line{v.name, label, s.path(samples, v.get)})
	}
	return c
}

// placeOf returns where a second is, the last one at the right edge.
func placeOf(second float64) float64 {
	return marginLeft + second*(chartWidth-marginLeft-marginRight)/(historySeconds-1)
}

// linearScale begins at zero and ends at 1, 2 or 5 times a power of ten.
func linearScale(all []float64) scale {
	most := 0.0
	for _, v := range all {
		most = max(most, v)
	}
	high := 1.0
	if most > 0 {
		high = math.Pow(10, math.Floor(math.Log10(most)))
		for _, step := range []float64{1, 2, 5, 10} {
			if step*high >= most {
				high *= step
				break
			}
		}
	}
	return scale{high: high, marks: []float64{0, high / 2, high}}
}

// logScale begins and ends at powers of ten, around all values but zero.
func logScale(all []float64) scale {
	low, high := math.Inf(1), 0.0
	for _, v := range all {
		if v > 0 {
			low, high = min(low, v), max(high, v)
		}
	}
	if high == 0 {
		low, high = 1, 1000
	}
	first, last := math.Floor(math.Log10(low)), math.Ceil(math.Log10(high))
	if first == last {
		last++
	}
	s := scale{low: math.Pow(10, first), high: math.Pow(10, last), log: true}
	for p := first; p <= last; p++ {
		s.marks = append(s.marks, math.Pow(10, p))
	}
	return s
}

// place returns where a value is.
func (s *scale) place(v float64) float64 {
	part := (v - s.low) / (s.high - s.low)
	if s.log {
		part = (math.Log10(v) - math.Log10(s.low)) / (math.Log10(s.high) - math.Log10(s.low))
	}
	return marginTop + (1-part)*(chartHeight-marginFoot-marginTop)
}

// path draws one value of the samples, of which the last is now.
func (s *scale) path(samples []sample, get func(*sample) float32) string {
	var b strings.Builder
	down := false // the pen
	for i := range samples {
		v := float64(get(&samples[i]))
		if s.log && v <= 0 {
			down = false
			continue
		}
		x, y := units(placeOf(float64(historySeconds-len(samples)+i))), units(s.place(v))
		if down {
			b.WriteString("L" + x + " " + y)
		} else {
			b.WriteString("M" + x + " " + y + "h.1") // one sample alone is seen, too
		}
		down = true
	}
	return b.String()
}

// units formats a place.
func units(v float64) string { return strconv.FormatFloat(v, 'f', 1, 64) }
