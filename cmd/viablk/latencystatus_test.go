package main

import (
	"encoding/json"
	"strings"
	"testing"
	"time"

	"github.com/viablk/viablk/internal/latency"
	"github.com/viablk/viablk/target"
)

// latenciesOf returns the latencies of some requests.
func latenciesOf(o latency.Operation, times ...time.Duration) *latency.Status {
	var s latency.Set
	r := s.Acquire()
	for _, d := range times {
		r.Add(latency.Request, o, d)
		if o != latency.Read {
			r.Add(latency.Backend, o, d/2)
		}
	}
	s.Release(r)
	return s.Read()
}

// The table of latencies has a row for each operation of a face that there was,
// as other processes say it.
func TestLatencyTable(t *testing.T) {
	p := targetProcess(false)
	p.NBD.Exports[0].Latency = latenciesOf(latency.Flush, 2*time.Second, 2*time.Second)
	p.Targets[1].Exports[0].Latency = latenciesOf(latency.Read, 1024*time.Microsecond)
	p.Targets = append(p.Targets, target.Status{Provider: "none"})
	b, err := json.Marshal(statusReport{Processes: []processStatus{p, attachedDisk("connected", "", 0)}})
	if err != nil {
		t.Fatal(err)
	}
	var r statusReport
	if err := json.Unmarshal(b, &r); err != nil {
		t.Fatal(err)
	}
	var out strings.Builder
	a := &app{stdout: &out, output: "latency"}
	if err := a.printStatus(&r); err != nil {
		t.Fatal(err)
	}
	want := `    PID  EXPORT  FACE      OP     REQUESTS   MEAN  IN-BACKEND    P50    P99  P99.9
4194304  disk0   nbd       flush         2   2.0s        1.0s   2.0s   2.1s   2.1s
4194304  disk0   via+roce  read          1  1.0ms           -  983us  1.0ms  1.0ms
`
	if got := out.String(); got != want {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
}
