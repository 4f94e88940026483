package chart

import (
	"errors"
	"fmt"
	"io"

	"gonum.org/v1/plot"
	"gonum.org/v1/plot/font"
	"gonum.org/v1/plot/plotter"
	"gonum.org/v1/plot/plotutil"
	"gonum.org/v1/plot/text"
	"gonum.org/v1/plot/vg"
	"gonum.org/v1/plot/vg/draw"
)

// Bars is a chart of groups of bars over a linear axis that begins at zero: a
// group for each category, in it a bar for each series.
type Bars struct {
	Title, Y   string
	Categories []string
	Series     []BarSeries
	References []Reference // levels; X is ignored
}

// BarSeries is the bars of one color, a value for each category.
type BarSeries struct {
	Name   string
	Values []float64
}

// Write draws the chart in a format, svg or png.
func (b *Bars) Write(w io.Writer, format string) error {
	p, legend, err := b.plot()
	if err != nil {
		return err
	}
	return write(w, format, p, legend, len(b.Series)+len(b.References))
}

// plot builds the plot, and the legend that stands below it.
func (b *Bars) plot() (*plot.Plot, *plot.Legend, error) {
	if len(b.Series) == 0 || len(b.Categories) == 0 {
		return nil, nil, errors.New("the chart has no bars")
	}
	p := plot.New()
	p.Title.Text, p.Y.Label.Text = b.Title, b.Y
	p.Y.Min = 0
	grid := plotter.NewGrid()
	grid.Vertical.Color = nil
	p.Add(grid)
	legend := newLegend()
	// Two thirds of the width are bars, the rest is between the groups.
	thick := width * 2 / 3 / vg.Length(len(b.Categories)*len(b.Series))
	for i, s := range b.Series {
		if len(s.Values) != len(b.Categories) {
			return nil, nil, fmt.Errorf("%s: %d values for %d categories", s.Name, len(s.Values), len(b.Categories))
		}
		bars, err := plotter.NewBarChart(plotter.Values(s.Values), thick)
		if err != nil {
			return nil, nil, fmt.Errorf("%s: %w", s.Name, err)
		}
		bars.Color, bars.LineStyle.Width = plotutil.Color(i), 0
		bars.Offset = thick * (vg.Length(i) - vg.Length(len(b.Series)-1)/2)
		p.Add(bars)
		legend.Add(s.Name, bars)
	}
	for i, r := range b.References {
		addLevel(p, &legend, i, r)
	}
	p.NominalX(b.Categories...)
	p.X.Tick.Label.Font.Size = font.Points(9)
	p.X.Tick.Label.XAlign, p.X.Tick.Label.YAlign = text.XCenter, text.YTop
	return p, &legend, nil
}

// addLevel adds a line from side to side.
func addLevel(p *plot.Plot, legend *plot.Legend, i int, r Reference) {
	l := &level{y: r.Y, style: draw.LineStyle{
		Color: shade(i), Width: vg.Points(1), Dashes: plotutil.Dashes(i + 1),
	}}
	p.Add(l)
	legend.Add(r.Label, l)
}
