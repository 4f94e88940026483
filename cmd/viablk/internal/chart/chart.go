// Package chart draws lines over logarithmic or linear axes, with published
// figures beside them, and groups of bars, as SVG or PNG. It is the only home
// of gonum/plot.
package chart

import (
	"bytes"
	"errors"
	"fmt"
	"image/color"
	"io"
	"math"
	"os"
	"path/filepath"
	"strings"

	"gonum.org/v1/plot"
	"gonum.org/v1/plot/font"
	"gonum.org/v1/plot/plotter"
	"gonum.org/v1/plot/plotutil"
	"gonum.org/v1/plot/vg"
	"gonum.org/v1/plot/vg/draw"
	"gonum.org/v1/plot/vg/vgimg"
	"gonum.org/v1/plot/vg/vgsvg"
)

// Chart is a chart of at least one series. On a logarithmic axis every
// coordinate is greater than zero.
type Chart struct {
	Title, X, Y string // of the chart and its axes
	LogX, LogY  bool
	Series      []Series
	References  []Reference
}

// Series is a line through points.
type Series struct {
	Name   string
	Points []Point // in the order in which they are joined
}

// Point is a point of a line.
type Point struct{ X, Y float64 }

// Reference is a figure from elsewhere: a point or, if X is 0, a level.
type Reference struct {
	Label string
	X, Y  float64
}

// Add appends a point to the series of a name, which it makes at need.
func (c *Chart) Add(series string, x, y float64) {
	for i := range c.Series {
		if s := &c.Series[i]; s.Name == series {
			s.Points = append(s.Points, Point{x, y})
			return
		}
	}
	c.Series = append(c.Series, Series{series, []Point{{x, y}}})
}

// The size of a chart.
const (
	width      = 10 * vg.Inch
	plotHeight = 5.5 * vg.Inch
	entry      = 0.18 * vg.Inch // of the legend
	margin     = 0.15 * vg.Inch
)

// Save draws the chart to a file, whose name ends in .svg or .png.
func (c *Chart) Save(name string) error {
	var b bytes.Buffer
	if err := c.Write(&b, strings.TrimPrefix(filepath.Ext(name), ".")); err != nil {
		return fmt.Errorf("draw %s: %w", name, err)
	}
	if err := os.WriteFile(name, b.Bytes(), 0o644); err != nil {
		return fmt.Errorf("draw a chart: %w", err)
	}
	return nil
}

// Write draws the chart in a format, svg or png.
func (c *Chart) Write(w io.Writer, format string) error {
	p, legend, err := c.plot()
	if err != nil {
		return err
	}
	return write(w, format, p, legend, len(c.Series)+len(c.References))
}

// write draws a plot above its legend, which has a number of entries.
func write(w io.Writer, format string, p *plot.Plot, legend *plot.Legend, entries int) error {
	below := margin + entry*vg.Length(entries)
	height := plotHeight + below
	var canvas vg.CanvasSizer
	var output io.WriterTo
	switch format {
	case "svg":
		svg := vgsvg.New(width, height)
		canvas, output = svg, svg
	case "png":
		png := vgimg.PngCanvas{Canvas: vgimg.New(width, height)}
		canvas, output = png, png
	default:
		return fmt.Errorf("%q is no format of charts: svg or png", format)
	}
	all := draw.New(canvas)
	p.Draw(draw.Crop(all, 0, -margin, below, 0))
	legend.Draw(draw.Crop(all, margin, 0, margin/2, below-height))
	if _, err := output.WriteTo(w); err != nil {
		return fmt.Errorf("write a chart: %w", err)
	}
	return nil
}

// newLegend is a legend for the place below a plot.
func newLegend() plot.Legend {
	legend := plot.NewLegend()
	legend.Top, legend.Left = true, true
	legend.TextStyle.Font.Size = font.Points(9)
	legend.Padding = vg.Points(2)
	return legend
}

// shade is the gray of a reference.
func shade(i int) color.Color { return color.Gray{uint8(40 + 35*(i%5))} }

// plot builds the plot, and the legend that stands below it.
func (c *Chart) plot() (*plot.Plot, *plot.Legend, error) {
	if len(c.Series) == 0 {
		return nil, nil, errors.New("the chart has no series")
	}
	p := plot.New()
	p.Title.Text, p.X.Label.Text, p.Y.Label.Text = c.Title, c.X, c.Y
	p.Add(plotter.NewGrid())
	if c.LogX {
		p.X.Scale, p.X.Tick.Marker = plot.LogScale{}, binary
	}
	if c.LogY {
		p.Y.Scale, p.Y.Tick.Marker = plot.LogScale{}, decimal
	}
	legend := newLegend()
	for i, s := range c.Series {
		if err := c.addSeries(p, &legend, i, s); err != nil {
			return nil, nil, err
		}
	}
	for i, r := range c.References {
		if err := c.addReference(p, &legend, i, r); err != nil {
			return nil, nil, err
		}
	}
	if c.LogX && p.X.Min == p.X.Max {
		widen(&p.X, 2)
	}
	if c.LogY {
		widen(&p.Y, 1.5) // a line on the frame is not seen
	}
	return p, &legend, nil
}

// widen makes room at both ends of a logarithmic axis.
func widen(a *plot.Axis, factor float64) { a.Min, a.Max = a.Min/factor, a.Max*factor }

// check refuses a point that the axes have no place for.
func (c *Chart) check(what string, x, y float64) error {
	bad := func(v float64, log bool) bool { return math.IsNaN(v) || math.IsInf(v, 0) || log && v <= 0 }
	if bad(x, c.LogX) || bad(y, c.LogY) {
		return fmt.Errorf("%s: the axes have no place for (%g, %g)", what, x, y)
	}
	return nil
}

func (c *Chart) addSeries(p *plot.Plot, legend *plot.Legend, i int, s Series) error {
	if len(s.Points) == 0 {
		return fmt.Errorf("%s: the series has no points", s.Name)
	}
	xy := make(plotter.XYs, len(s.Points))
	for k, q := range s.Points {
		if err := c.check(s.Name, q.X, q.Y); err != nil {
			return err
		}
		xy[k].X, xy[k].Y = q.X, q.Y
	}
	line, points, err := plotter.NewLinePoints(xy)
	if err != nil {
		return fmt.Errorf("%s: %w", s.Name, err)
	}
	line.Color, points.Color = plotutil.Color(i), plotutil.Color(i)
	line.Width = vg.Points(1.5)
	points.Shape, points.Radius = plotutil.Shape(i), vg.Points(2.5)
	p.Add(line, points)
	legend.Add(s.Name, line, points)
	return nil
}

func (c *Chart) addReference(p *plot.Plot, legend *plot.Legend, i int, r Reference) error {
	if r.X != 0 {
		if err := c.check(r.Label, r.X, r.Y); err != nil {
			return err
		}
		point, err := plotter.NewScatter(plotter.XYs{{X: r.X, Y: r.Y}})
		if err != nil {
			return fmt.Errorf("%s: %w", r.Label, err)
		}
		point.Color, point.Shape, point.Radius = shade(i), draw.CrossGlyph{}, vg.Points(4)
		p.Add(point)
		legend.Add(r.Label, point)
		return nil
	}
	if err := c.check(r.Label, 1, r.Y); err != nil {
		return err
	}
	addLevel(p, legend, i, r)
	return nil
}
