package main

import (
	"fmt"
	"strconv"
	"strings"

	"github.com/viablk/viablk/cmd/viablk/internal/bench"
)

// besideOf returns what the rows of a mode are compared with.
func besideOf(r *bench.Report, m bench.Mode) string {
	for i := range r.Rows {
		if b := r.Rows[i].Baseline; r.Rows[i].Mode == m && b != nil {
			return b.Name
		}
	}
	return map[bench.Mode]string{bench.PingPong: "eventfd", bench.RdmaWrite: "copy", bench.RdmaRead: "copy"}[m]
}

// besides are what rows are compared with, in words.
var besides = map[string]string{
	"eventfd": "bare eventfds", "udp": "UDP datagrams of the same size",
	"copy": "a copy of the same size", "tcp": "as many bytes of the TCP stream",
}

// benchTitle says what the table of a mode shows.
func benchTitle(m bench.Mode, beside string) string {
	switch m {
	case bench.PingPong:
		return "pingpong: one way in microseconds; the ratio is to " + besides[beside]
	case bench.UDP:
		return "udp: datagrams, one way in microseconds"
	case bench.Window:
		return "window: messages one way"
	case bench.TCP:
		return "tcp: a stream one way, in writes of 64 KiB"
	case bench.PostRate:
		return "post-rate: nanoseconds of the posting thread for one send; POST without the poll of its completion"
	case bench.PollScale:
		return "pollscale: nanoseconds of polling for one completion; the ratio is to 1 VI"
	default:
		return string(m) + ": nanoseconds of one operation; the ratio is to " + besides[beside]
	}
}

// benchHeading returns the heading of the table of a mode.
func benchHeading(m bench.Mode, beside string) []string {
	beside = strings.ToUpper(beside)
	latency := []string{"SIZE", "WAIT", "VIS", "MIN", "P50", "P90", "P99", "P99.9", "MAX", "MEAN", "P50 LEAST..MOST"}
	switch m {
	case bench.PingPong:
		return append(latency, beside, "RATIO", "LEAST..MOST", "WAKES", "ALLOCS", "AGENT")
	case bench.UDP:
		return append(latency, "ALLOCS")
	case bench.Window:
		return []string{
			"SIZE", "WAIT", "VIS", "MB/s", "MSG/s", "ns", "LEAST..MOST", "CPU s/GiB", "ARRIVED",
			"PKTS/SEND", "PKTS/RECV", "CREDITS", "WAKES", "STALLS", "ALLOCS", "AGENT",
		}
	case bench.TCP:
		return []string{"SIZE", "MB/s", "ns", "LEAST..MOST", "CPU s/GiB", "ALLOCS"}
	case bench.PostRate:
		return []string{
			"SIZE", "VIS", "POST ns", "LEAST..MOST", "POST/s", "POST+POLL ns", "LEAST..MOST", "POST+POLL/s", "RATIO",
			"SENDS", "RECORDS", "COPIED B", "WAKES", "STALLS", "ALLOCS", "AGENT",
		}
	case bench.PollScale:
		return []string{"BATCH", "VIS", "ns", "LEAST..MOST", "RATIO", "LEAST..MOST"}
	default:
		return []string{
			"SIZE", "WAIT", "VIS", "MB/s", "ns", "LEAST..MOST", "CPU s/GiB", beside + " ns", "RATIO", "LEAST..MOST",
			"PKTS/SEND", "PKTS/RECV", "ALLOCS", "AGENT",
		}
	}
}

// benchCells returns a row below its heading.
func benchCells(r *bench.Row) []string {
	size, vis := shortSize(r.Size), strconv.Itoa(r.VIs)
	base, ratio, ratios := "-", "-", "-"
	if b := r.Baseline; b != nil {
		base, ratio, ratios = figure(b.Time.Median), figure(b.Ratio.Median), between(b.Ratio, 1)
	}
	switch r.Mode {
	case bench.PingPong:
		if r.Baseline != nil {
			base = micro(r.Baseline.Time.Median)
		}
		return append(append(latencyCells(r), base, ratio, ratios, figure(r.PerOp.Wakes)), costs(r)...)
	case bench.UDP:
		return append(latencyCells(r), figure(r.PerOp.Allocations))
	case bench.Window:
		return append([]string{
			size, string(r.Wait), vis, figure(r.MBps), rate(r.Rate), figure(r.Time.Median), between(r.Time, 1), processorTime(r),
			fmt.Sprintf("%.4g%%", 100*r.Arrived.Median),
			perCall(r.PerOp.PacketsPerSend), perCall(r.PerOp.PacketsPerReceive),
			figure(r.PerOp.Receives), figure(r.PerOp.Wakes), figure(r.PerOp.Stalls),
		}, costs(r)...)
	case bench.TCP:
		return []string{
			size, figure(r.MBps), figure(r.Time.Median), between(r.Time, 1), processorTime(r), figure(r.PerOp.Allocations),
		}
	case bench.PostRate:
		return append([]string{
			size, vis, figure(r.Post.Median), between(*r.Post, 1), rate(1e9 / r.Post.Median),
			figure(r.Time.Median), between(r.Time, 1), rate(r.Rate), ratio,
			figure(r.PerOp.Sends), figure(r.PerOp.Records), figure(r.PerOp.Copied), figure(r.PerOp.Wakes), figure(r.PerOp.Stalls),
		}, costs(r)...)
	case bench.PollScale:
		return []string{strconv.Itoa(r.Batch), vis, figure(r.Time.Median), between(r.Time, 1), ratio, ratios}
	default:
		return append([]string{
			size, string(r.Wait), vis, figure(r.MBps), figure(r.Time.Median), between(r.Time, 1), processorTime(r),
			base, ratio, ratios, perCall(r.PerOp.PacketsPerSend), perCall(r.PerOp.PacketsPerReceive),
		}, costs(r)...)
	}
}

// perCall returns how many packets share a system call.
func perCall(packets float64) string {
	if packets == 0 {
		return "-"
	}
	return figure(packets)
}

// latencyCells returns a distribution.
func latencyCells(r *bench.Row) []string {
	l := r.Latency
	return []string{
		shortSize(r.Size), string(r.Wait), strconv.Itoa(r.VIs),
		micro(l.Min), micro(l.P50), micro(l.P90), micro(l.P99), micro(l.P999), micro(l.Max),
		micro(l.Mean), between(r.Time, 1e-3),
	}
}

// processorTime returns what both processes used for a GiB, in seconds.
func processorTime(r *bench.Row) string {
	if r.Size == 0 {
		return "-"
	}
	return figure(r.PerOp.CPU * (1 << 30) / float64(r.Size) / 1e9)
}

// costs returns what must be nothing.
func costs(r *bench.Row) []string {
	return []string{figure(r.PerOp.Allocations), strconv.FormatUint(r.PerOp.AgentCalls, 10)}
}
