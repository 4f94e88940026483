package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"

	"github.com/viablk/viablk/cmd/viablk/internal/bench"
)

// benchReport is the document of "viablk bench via".
type benchReport struct {
	Schema  string `json:"schema"` // viablk.bench.via/v1
	Version string `json:"version"`
	*bench.Report
}

// makeChartFolder makes the folder of the charts, if there is to be one: before
// the measurement, which takes minutes.
func makeChartFolder(folder string) error {
	if folder == "" {
		return nil
	}
	if err := os.MkdirAll(folder, 0o755); err != nil {
		return fmt.Errorf("make the folder of the charts: %w", err)
	}
	return nil
}

// printBench prints a report and draws its charts.
func (a *app) printBench(r *bench.Report, o *benchOptions) error {
	if o.chart != "" {
		for _, m := range o.config.Modes {
			c := benchChart(r, m)
			if len(c.Series) == 0 {
				continue // messages of no bytes have no place on the axis
			}
			if err := c.Save(filepath.Join(o.chart, string(m)+"."+o.chartFormat)); err != nil {
				return err
			}
		}
	}
	switch a.output {
	case "json":
		return a.printJSON(benchReport{"viablk.bench.via/v1", version().Version, r})
	case "benchfmt":
		return writeBenchfmt(a.stdout, r)
	}
	return a.printBenchTables(r)
}

// printBenchTables prints the conditions and a table for each mode.
func (a *app) printBenchTables(r *bench.Report) error {
	c := &r.Conditions
	between := map[int]string{0: "two ends", 1: "one process", 2: "two processes"}[c.Processes]
	network := ""
	if c.Network != "" {
		network = ", " + c.Network
	}
	fmt.Fprintf(a.stdout, "%s, %s, %s%s; medians of %d rounds\n%s, %d cores, %s, %s\n",
		c.Provider, c.Level, between, network, c.Rounds, c.CPU, c.Cores, c.Kernel, c.Go)
	if c.Load > float64(c.Cores)/2 {
		fmt.Fprintf(a.stdout, "load %.1f on %d processors: these figures will not repeat\n", c.Load, c.Cores)
	}
	for _, m := range c.Modes {
		beside := besideOf(r, m)
		rows := [][]string{benchHeading(m, beside)}
		for i := range r.Rows {
			if r.Rows[i].Mode == m {
				rows = append(rows, benchCells(&r.Rows[i]))
			}
		}
		fmt.Fprintf(a.stdout, "\n%s\n", benchTitle(m, beside))
		if err := a.printTable(rows); err != nil {
			return err
		}
	}
	fmt.Fprintln(a.stdout, "\npublished: other machines, and networks")
	rows := [][]string{{"SYSTEM", "ONE WAY us", "CONDITIONS", "MB/s", "SIZE", "CONDITIONS"}}
	for _, p := range r.Published {
		size := "long"
		if p.Size > 0 {
			size = shortSize(p.Size)
		}
		rows = append(rows, []string{
			p.System, figure(p.Latency), p.LatencyConditions, figure(p.MBps), size, p.MBpsConditions,
		})
	}
	return a.printTable(rows)
}

// figure prints three digits, or all before the point.
func figure(v float64) string {
	switch {
	case v == 0:
		return "0"
	case v >= 100:
		return strconv.FormatFloat(v, 'f', 0, 64)
	case v >= 10:
		return strconv.FormatFloat(v, 'f', 1, 64)
	case v >= 1:
		return strconv.FormatFloat(v, 'f', 2, 64)
	default:
		return strconv.FormatFloat(v, 'g', 2, 64)
	}
}

// rate prints operations a second.
func rate(v float64) string {
	switch {
	case v >= 1e6:
		return figure(v/1e6) + "M"
	case v >= 1e3:
		return figure(v/1e3) + "k"
	}
	return figure(v)
}

// micro prints nanoseconds as microseconds.
func micro(ns float64) string { return strconv.FormatFloat(ns/1e3, 'f', 3, 64) }

// between prints the least and the most of a figure times factor.
func between(s bench.Spread, factor float64) string {
	return figure(s.Least*factor) + ".." + figure(s.Most*factor)
}
