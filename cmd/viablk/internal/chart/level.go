package chart

import (
	"math"
	"strconv"

	"gonum.org/v1/plot"
	"gonum.org/v1/plot/vg/draw"
)

// level is a line from one side of a plot to the other.
type level struct {
	y     float64
	style draw.LineStyle
}

// Plot draws the line.
func (l *level) Plot(c draw.Canvas, p *plot.Plot) {
	_, y := p.Transforms(&c)
	c.StrokeLine2(l.style, c.Min.X, y(l.y), c.Max.X, y(l.y))
}

// DataRange asks for an axis that reaches the line.
func (l *level) DataRange() (xmin, xmax, ymin, ymax float64) {
	return math.Inf(1), math.Inf(-1), l.y, l.y
}

// Thumbnail draws the line for the legend.
func (l *level) Thumbnail(c *draw.Canvas) {
	y := c.Center().Y
	c.StrokeLine2(l.style, c.Min.X, y, c.Max.X, y)
}

// marks are the places on a logarithmic axis: powers of the base, and multiples
// of them.
type marks struct {
	base      float64
	multiples []float64 // ascending; the first is 1
}

// The axes: of sizes and numbers, and of what is measured.
var (
	binary  = marks{2, []float64{1}}
	decimal = marks{10, []float64{1, 2, 5}}
)

// maximumMarks bounds the labels of an axis.
const maximumMarks = 12

// Ticks returns the marks from low to high. Where they are many only powers
// have a label, and where these are many not all.
func (m marks) Ticks(low, high float64) []plot.Tick {
	if low <= 0 || math.IsInf(high, 0) {
		return nil // no logarithmic axis
	}
	var ticks []plot.Tick
	first := math.Floor(math.Log(low) / math.Log(m.base))
	last := math.Ceil(math.Log(high) / math.Log(m.base))
	dense := int(last-first)*len(m.multiples) > maximumMarks
	every := int(math.Ceil((last - first) / maximumMarks))
	for n, power := 0, math.Pow(m.base, first); power <= high; n, power = n+1, power*m.base {
		for i, multiple := range m.multiples {
			v := power * multiple
			if v < low || v > high {
				continue
			}
			tick := plot.Tick{Value: v}
			if !dense || i == 0 && n%every == 0 {
				tick.Label = short(v)
			}
			ticks = append(ticks, tick)
		}
	}
	return ticks
}

// short writes a number, with a binary unit where that is exact.
func short(v float64) string {
	for _, u := range []struct {
		of   float64
		name string
	}{{1 << 30, "Gi"}, {1 << 20, "Mi"}, {1 << 10, "Ki"}} {
		if n := v / u.of; n >= 1 && n == math.Trunc(n) {
			return strconv.FormatFloat(n, 'f', -1, 64) + u.name
		}
	}
	return strconv.FormatFloat(v, 'g', 6, 64)
}
