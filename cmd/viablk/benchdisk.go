package main

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/spf13/cobra"

	"github.com/viablk/viablk/config"
	"github.com/viablk/viablk/internal/transfer"
)

// diskBenchReport is what "viablk bench disk" prints.
type diskBenchReport struct {
	Schema string        `json:"schema"` // viablk.diskbench/v1
	Disk   string        `json:"disk"`
	Size   int64         `json:"size"` // bytes
	Loads  []diskBenched `json:"loads"`
}

// diskBenched is a load, and what it did.
type diskBenched struct {
	Operation   string  `json:"operation"`    // read or write
	Length      int64   `json:"request_size"` // bytes
	Depth       int     `json:"depth"`
	Connections int     `json:"connections"`
	Requests    uint64  `json:"requests"`
	Seconds     float64 `json:"seconds"`
	IOPS        float64 `json:"iops"`
	Bytes       float64 `json:"bytes_per_second"`

	Mean     float64            `json:"mean_seconds"`
	Quantile map[string]float64 `json:"latency_seconds"`
}

// diskQuantiles are the latencies that are printed.
var diskQuantiles = []struct {
	name string
	q    float64
}{{"p50", 0.5}, {"p99", 0.99}, {"p99.9", 0.999}}

// diskLoad is the length and the depth of requests.
type diskLoad struct {
	length config.Size
	depth  int
}

// diskLoads are what is measured without --request-size and --depth.
var diskLoads = []diskLoad{{4 * config.KiB, 1}, {4 * config.KiB, 32}, {128 * config.KiB, 16}, {config.MiB, 8}}

func (a *app) benchDiskCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "disk DISK",
		Short: "Benchmark a disk: requests per second and latencies",
		Long: `Send random requests to a disk, which a VIA URI, an NBD URI, a file or a block device
is, and print requests per second, bandwidth and latencies. Reads of some lengths and
depths are measured, or those of --request-size and --depth.

--write DESTROYS WHAT THE DISK HOLDS: it measures writes of random data to random
places. A file is read and written through the page cache.`,
		Example: `  viablk bench disk via+roce://storage/disk0
  viablk bench disk nbd://localhost/disk0 --request-size 4K --depth 64 -o json`,
	}
	options := addPlaceOptions(cmd, 1, 16, 4*config.KiB)
	write := cmd.Flags().Bool("write", false, "measure writes: DESTROYS what the disk holds")
	duration := cmd.Flags().Duration("time", 2*time.Second, "measure each load for `TIME`")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if *duration <= 0 || *duration > time.Hour {
			return usage("--time is more than 0s and up to 1h, not %v", *duration)
		}
		loads := diskLoads
		if cmd.Flags().Changed("request-size") || cmd.Flags().Changed("depth") {
			loads = []diskLoad{{options.length, options.depth}}
		}
		r, err := a.benchDisk(cmd.Context(), options, loads, *write, *duration, args[0])
		if err != nil {
			return fmt.Errorf("bench: %w", err)
		}
		return a.printDiskBench(r)
	}
	return cmd
}

// benchDisk measures loads on a disk.
func (a *app) benchDisk(ctx context.Context, p *placeOptions, loads []diskLoad, write bool, duration time.Duration, argument string) (r diskBenchReport, err error) {
	open, err := a.places(p)
	if err != nil {
		return r, err
	}
	ctx, stop := interruptible(ctx)
	defer stop()
	disk, err := open.open(ctx, argument, !write, 0)
	if err != nil {
		return r, err
	}
	defer func() { err = errors.Join(err, disk.close()) }()
	info := disk.Device.Info()
	r = diskBenchReport{Schema: "viablk.diskbench/v1", Disk: disk.Name, Size: info.Size, Loads: []diskBenched{}}
	progress := a.newProgress()
	defer progress.clear()
	for i, l := range loads {
		length := max(int64(l.length), int64(info.MinimumBlock))
		if length > info.Size || length > int64(info.MaximumPayload) {
			return r, usage("%s has %d bytes and takes requests of %d: lower --request-size", disk.Name, info.Size, info.MaximumPayload)
		}
		b := diskBenched{Operation: "read", Length: length, Depth: l.depth, Connections: p.connections}
		if write {
			b.Operation = "write"
		}
		progress.show(i, len(loads), b)
		m, err := transfer.Measure(ctx, transfer.Load{
			Disk: disk.Side, Write: write, Length: length, Depth: l.depth, Connections: p.connections, Time: duration,
		})
		if err != nil {
			return r, err
		}
		r.Loads = append(r.Loads, b.with(m))
	}
	return r, nil
}

// String names the load.
func (b diskBenched) String() string {
	return fmt.Sprintf("%s %v, depth %d", b.Operation, config.Size(b.Length), b.Depth)
}

// with returns the load with what it did.
func (b diskBenched) with(m transfer.Measurement) diskBenched {
	b.Requests, b.Seconds = m.Requests, m.Elapsed.Seconds()
	b.IOPS = float64(b.Requests) / b.Seconds
	b.Bytes = b.IOPS * float64(b.Length)
	b.Mean = m.Latency.Sum.Seconds() / float64(max(m.Requests, 1))
	b.Quantile = make(map[string]float64)
	for _, q := range diskQuantiles {
		b.Quantile[q.name] = m.Latency.Quantile(q.q).Seconds()
	}
	return b
}

// printDiskBench prints a row for each load.
func (a *app) printDiskBench(r diskBenchReport) error {
	if a.output == "json" {
		return a.printJSON(r)
	}
	heading := []string{"OPERATION", "SIZE", "DEPTH", "CONNECTIONS", "IOPS", "BANDWIDTH", "MEAN"}
	for _, q := range diskQuantiles {
		heading = append(heading, q.name)
	}
	rows := [][]string{heading}
	for _, b := range r.Loads {
		row := []string{
			b.Operation, config.Size(b.Length).String(), strconv.Itoa(b.Depth), strconv.Itoa(b.Connections),
			fmt.Sprintf("%.0f", b.IOPS), roundSize(b.Bytes).String() + "/s", roundTime(b.Mean),
		}
		for _, q := range diskQuantiles {
			row = append(row, roundTime(b.Quantile[q.name]))
		}
		rows = append(rows, row)
	}
	return a.printTable(rows)
}

// roundTime is a time in seconds for people.
func roundTime(seconds float64) string {
	d := time.Duration(seconds * float64(time.Second))
	switch {
	case d >= 100*time.Millisecond:
		return d.Round(time.Millisecond).String()
	case d >= time.Millisecond:
		return d.Round(10 * time.Microsecond).String()
	}
	return d.Round(100 * time.Nanosecond).String()
}
