package main

import (
	"bufio"
	"fmt"
	"io"

	"github.com/viablk/viablk/cmd/viablk/internal/bench"
)

// writeBenchfmt writes a report in the format of Go benchmarks, which benchstat
// reads: a line for each row and round, named by what distinguishes the row.
// Latencies of a ping-pong are one way.
func writeBenchfmt(w io.Writer, r *bench.Report) error {
	b := bufio.NewWriter(w)
	c := &r.Conditions
	fmt.Fprintf(b, "goos: linux\ngo: %s\nkernel: %s\ncpu: %s\nprovider: %s\nreliability: %s\n",
		c.Go, c.Kernel, c.CPU, c.Provider, c.Level)
	for i := range r.Rows {
		for k := range r.Rows[i].Samples {
			writeBenchmark(b, &r.Rows[i], &r.Rows[i].Samples[k])
		}
	}
	if err := b.Flush(); err != nil {
		return fmt.Errorf("print: %w", err)
	}
	return nil
}

// writeBenchmark writes the line of a round. Failures to write show at the end.
func writeBenchmark(w io.Writer, x *bench.Row, s *bench.Sample) {
	fmt.Fprintf(w, "BenchmarkVia/mode=%s/size=%d/wait=%s/vis=%d", x.Mode, x.Size, x.Wait, x.VIs)
	if x.Batch > 0 {
		fmt.Fprintf(w, "/batch=%d", x.Batch)
	}
	metric := func(v float64, unit string) {
		if v > 0 {
			fmt.Fprintf(w, "\t%.6g %s", v, unit)
		}
	}
	fmt.Fprintf(w, "\t%d", x.Ops)
	metric(s.Time, "ns/op")
	if x.MBps > 0 {
		metric(float64(x.Size)*1e3/s.Time, "MB/s")
	}
	metric(s.P99, "p99-ns")
	metric(s.Post, "post-ns")
	if s.Baseline > 0 {
		metric(s.Time/s.Baseline, "x-baseline")
	}
	if x.PerOp != nil {
		fmt.Fprintf(w, "\t%.3g allocs/op", x.PerOp.Allocations)
		metric(x.PerOp.PacketsPerSend, "packets/send")
		metric(x.PerOp.PacketsPerReceive, "packets/receive")
	}
	fmt.Fprintln(w)
}
