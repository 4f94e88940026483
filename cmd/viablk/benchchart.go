package main

import (
	"fmt"

	"github.com/viablk/viablk/cmd/viablk/internal/bench"
	"github.com/viablk/viablk/cmd/viablk/internal/chart"
)

// benchChart draws a mode: the figures over the sizes, or over the VIs, and
// what was published.
func benchChart(r *bench.Report, m bench.Mode) *chart.Chart {
	c := &chart.Chart{Title: fmt.Sprintf("%s over %s, %s", m, r.Conditions.Provider, r.Conditions.CPU), LogX: true, LogY: true}
	switch m {
	case bench.PingPong, bench.UDP:
		c.X, c.Y = "message size (bytes)", "one way, median (µs)"
	case bench.PostRate, bench.PollScale:
		c.X, c.Y = "VIs on one completion queue", "time (ns)"
	default:
		c.X, c.Y = "size (bytes)", "10⁶ bytes/s"
	}
	for i := range r.Rows {
		if r.Rows[i].Mode == m {
			plotRow(c, &r.Rows[i])
		}
	}
	for _, p := range r.Published {
		switch m {
		case bench.PingPong:
			c.References = append(c.References, chart.Reference{
				Label: fmt.Sprintf("%g µs %s (%s)", p.Latency, p.System, p.LatencyConditions), Y: p.Latency,
			})
		case bench.Window, bench.RdmaWrite, bench.RdmaRead:
			c.References = append(c.References, chart.Reference{
				Label: fmt.Sprintf("%g MB/s %s (%s)", p.MBps, p.System, p.MBpsConditions), X: float64(p.Size), Y: p.MBps,
			})
		}
	}
	return c
}

// plotRow adds the points of a row. A logarithmic axis has no place for a
// message of no bytes.
func plotRow(c *chart.Chart, r *bench.Row) {
	x := float64(r.Size)
	switch r.Mode {
	case bench.PingPong:
		if x == 0 {
			return
		}
		c.Add("viablk, "+string(r.Wait), x, r.Latency.P50/1e3)
		if b := r.Baseline; b != nil {
			label := "bare eventfds"
			if b.Name == string(bench.UDP) {
				label = "UDP, " + string(r.Wait)
			}
			c.Add(label, x, b.Time.Median/1e3)
		}
	case bench.UDP:
		if x > 0 {
			c.Add("UDP, "+string(r.Wait), x, r.Latency.P50/1e3)
		}
	case bench.TCP: // one size makes no line
	case bench.PostRate:
		c.Add("post", float64(r.VIs), r.Post.Median)
		c.Add("post and poll", float64(r.VIs), r.Time.Median)
	case bench.PollScale:
		c.Add(fmt.Sprintf("poll, batches of %d", r.Batch), float64(r.VIs), r.Time.Median)
	default:
		if x == 0 {
			return
		}
		c.Add("viablk, "+string(r.Wait), x, r.MBps)
		if b := r.Baseline; b != nil {
			label := "copy, beside " + string(r.Wait)
			if b.Name == string(bench.TCP) {
				label = "TCP stream"
			}
			c.Add(label, x, x*1e3/b.Time.Median)
		}
	}
}
