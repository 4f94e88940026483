package main

import (
	"bytes"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/viablk/viablk/cmd/viablk/internal/bench"
)

// sampleReport has a row of each shape.
func sampleReport() *bench.Report {
	return &bench.Report{
		Conditions: bench.Conditions{
			Provider: "shm", Level: "reliable delivery", Processes: 2, CPU: "A Processor", Cores: 2,
			Kernel: "Linux 6.1", Go: "go1.26", Rounds: 2, Modes: bench.Modes(),
		},
		Rows: []bench.Row{
			{
				Case: bench.Case{Mode: bench.PingPong, Size: 64, Wait: bench.Sleep, VIs: 1}, Rounds: 2, Ops: 1000,
				Time: bench.Spread{Median: 500, Least: 400, Most: 600}, MBps: 128, Rate: 2e6,
				Latency:  &bench.Distribution{Min: 300, P50: 500, P90: 600, P99: 700, P999: 800, Max: 9000, Mean: 520},
				Baseline: &bench.Baseline{Name: "eventfd", Time: bench.Spread{Median: 400}, Ratio: bench.Spread{Median: 1.25, Least: 1, Most: 1.5}},
				Samples:  []bench.Sample{{Time: 400, Baseline: 400, P99: 650}, {Time: 600, Baseline: 400, P99: 750}},
				PerOp:    &bench.Counters{Wakes: 1},
			},
			{
				Case: bench.Case{Mode: bench.PostRate, Size: 64, Wait: bench.Poll, VIs: 1000, Batch: 64}, Rounds: 1, Ops: 64,
				Time: bench.Spread{Median: 80}, Post: &bench.Spread{Median: 50}, Rate: 1.25e7,
				Samples: []bench.Sample{{Time: 80, Post: 50}}, PerOp: &bench.Counters{Sends: 1, Copied: 64},
			},
			{
				Case: bench.Case{Mode: bench.PollScale, Size: 64, Wait: bench.Poll, VIs: 1, Batch: 1}, Rounds: 1, Ops: 100,
				Time: bench.Spread{Median: 1234567.8}, Rate: 810, Samples: []bench.Sample{{Time: 1234567.8}},
			},
		},
		Published: bench.Papers(),
	}
}

func TestBenchmarkLines(t *testing.T) {
	var got bytes.Buffer
	if err := writeBenchfmt(&got, sampleReport()); err != nil {
		t.Fatal(err)
	}
	want := `goos: linux
go: go1.26
kernel: Linux 6.1
cpu: A Processor
provider: shm
reliability: reliable delivery
BenchmarkVia/mode=pingpong/size=64/wait=sleep/vis=1	1000	400 ns/op	160 MB/s	650 p99-ns	1 x-baseline	0 allocs/op
BenchmarkVia/mode=pingpong/size=64/wait=sleep/vis=1	1000	600 ns/op	106.667 MB/s	750 p99-ns	1.5 x-baseline	0 allocs/op
BenchmarkVia/mode=post-rate/size=64/wait=poll/vis=1000/batch=64	64	80 ns/op	50 post-ns	0 allocs/op
BenchmarkVia/mode=pollscale/size=64/wait=poll/vis=1/batch=1	100	1.23457e+06 ns/op
`
	if got.String() != want {
		t.Errorf("the lines are\n%s\nwant\n%s", &got, want)
	}
}

func TestTablesHaveTheirColumns(t *testing.T) {
	var out bytes.Buffer
	a := &app{stdout: &out}
	if err := a.printBenchTables(sampleReport()); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{
		"shm, reliable delivery, two processes", "A Processor, 2 cores, Linux 6.1, go1.26",
		"0.300  0.500  0.600", "1.25   1.00..1.50", "12.5M", "MyVIA", "FirmVIA",
	} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("%q is not in\n%s", want, &out)
		}
	}
	for i := range sampleReport().Rows {
		r := &sampleReport().Rows[i]
		if cells, heading := benchCells(r), benchHeading(r.Mode, ""); len(cells) != len(heading) {
			t.Errorf("%s has %d cells below %d headings", r.Mode, len(cells), len(heading))
		}
	}
}

// TestBusyMachineIsNamed: figures of a machine whose processors other programs
// use say so.
func TestBusyMachineIsNamed(t *testing.T) {
	for load, want := range map[float64]string{1: "", 9.3: "load 9.3 on 2 processors: these figures will not repeat\n"} {
		var out bytes.Buffer
		r := sampleReport()
		r.Conditions.Load = load
		if err := (&app{stdout: &out}).printBenchTables(r); err != nil {
			t.Fatal(err)
		}
		if got := strings.Contains(out.String(), "will not repeat"); got != (want != "") || !strings.Contains(out.String(), want) {
			t.Errorf("with load %v:\n%s", load, &out)
		}
	}
}

func TestChartsNameWhatIsPublished(t *testing.T) {
	r := sampleReport()
	for _, m := range []bench.Mode{bench.PingPong, bench.PostRate, bench.PollScale} {
		c := benchChart(r, m)
		if len(c.Series) == 0 {
			t.Errorf("%s has no series", m)
		}
		var b bytes.Buffer
		if err := c.Write(&b, "svg"); err != nil {
			t.Errorf("%s: %v", m, err)
		}
		if m != bench.PingPong {
			continue
		}
		for _, want := range []string{"viablk, sleep", "bare eventfds", "8.46 µs MyVIA (Myrinet-2000", "25 µs Berkeley VIA", "24 µs cLAN", "22 µs M-VIA", "18.2 µs FirmVIA"} {
			if !strings.Contains(b.String(), want) {
				t.Errorf("%q is not in the chart", want)
			}
		}
	}
}

func TestSizesOfList(t *testing.T) {
	for _, c := range []struct {
		list []string
		want []int // nil is an error
	}{
		{[]string{"64"}, []int{64}},
		{[]string{"1M", "0", "4K", "4096"}, []int{0, 4096, 1 << 20}},
		{[]string{"64MiB"}, []int{64 << 20}},
		{defaultSizes(), []int{
			0, 64, 128, 256, 512, 1 << 10, 2 << 10, 4 << 10, 8 << 10, 16 << 10, 32 << 10, 64 << 10, 128 << 10,
			256 << 10, 512 << 10, 1 << 20, 2 << 20, 4 << 20,
		}},
		{nil, nil},
		{[]string{""}, nil},
		{[]string{"-1"}, nil},
		{[]string{"4kB"}, nil},
		{[]string{"64", "65M"}, nil},
		{[]string{"9999999999E"}, nil},
	} {
		got, err := parseSizes(c.list)
		if !slices.Equal(got, c.want) || (err == nil) != (c.want != nil) {
			t.Errorf("%q are %v and %v, want %v", c.list, got, err, c.want)
		}
		if err != nil && exitCode(err) != exitUsage {
			t.Errorf("%q: the exit code is %d", c.list, exitCode(err))
		}
	}
}

func TestProgressIsForTerminals(t *testing.T) {
	var out bytes.Buffer
	a := &app{stderr: &out}
	p := a.newProgress()
	p.start = p.start.Add(-time.Minute)
	p.show(1, 4, bench.Case{})
	p.clear()
	if out.Len() != 0 {
		t.Errorf("%q is written to what is no terminal", &out)
	}
	p.w = &out // as if it were one
	p.show(1, 4, bench.Case{Mode: bench.Window, Size: 64, Wait: bench.Poll, VIs: 1})
	if want := "\r\x1b[K 25%  window 64 B, poll, 1 VIs  about 3m0s left"; out.String() != want {
		t.Errorf("%q is written, want %q", &out, want)
	}
	out.Reset()
	p.clear()
	if want := "\r\x1b[K"; out.String() != want {
		t.Errorf("the line is removed by %q, want %q", &out, want)
	}
	out.Reset()
	show := p.stage(priced{name: "shm"})
	show(0, 2)
	if out.Len() != 0 {
		t.Errorf("%q is written at the start of a stage", &out)
	}
	p.start = p.start.Add(-10 * time.Second)
	show(1, 2)
	if want := "\r\x1b[K 50%  shm  about 10s left"; out.String() != want {
		t.Errorf("%q is written in a stage, want %q", &out, want)
	}
	short := &progress{w: &out, start: time.Now().Add(time.Hour)}
	out.Reset()
	short.show(0, 4, bench.Case{})
	short.clear()
	if out.Len() != 0 {
		t.Errorf("%q is written in a short run", &out)
	}
}

func TestFigures(t *testing.T) {
	for _, c := range []struct {
		got, want string
	}{
		{figure(0), "0"},
		{figure(0.0156), "0.016"},
		{figure(1.234), "1.23"},
		{figure(12.34), "12.3"},
		{figure(123456.7), "123457"},
		{rate(999), "999"},
		{rate(15_392_101), "15.4M"},
		{rate(442_700), "443k"},
		{micro(369.4), "0.369"},
		{shortSize(0), "0"},
		{shortSize(1 << 20), "1M"},
	} {
		if c.got != c.want {
			t.Errorf("%s is printed, want %s", c.got, c.want)
		}
	}
}
