//go:build ceph && rbd && cgo

package ceph

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"os/exec"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/viablk/viablk/integration/testbed"
	"github.com/viablk/viablk/internal/block"
)

// The load that is compared: blocks of 4 KiB in random places, so many at a
// time, for so long, in so many turns.
const (
	compareDepth  = 32
	compareBlock  = 4096
	compareTime   = 4 * time.Second
	compareRounds = 5
)

// BenchmarkBesideFio compares a queue of the backend with fio's engine rbd on
// the same image, by turns: IOPS are medians. fio caches nothing either.
func BenchmarkBesideFio(b *testing.B) {
	testbed.Requires(b, "fio")
	image := shared.image(b, "256M")
	shared.run(b, "rbd", "bench", "--io-type", "write", "--io-size", "4M", "--io-total", "256M", image)
	conf := withoutCache(b)
	for name, op := range map[string]block.Op{"randread": block.Read, "randwrite": block.Write} {
		b.Run(name, func(b *testing.B) {
			var ours, theirs []float64
			for range compareRounds {
				theirs = append(theirs, runFio(b, conf, image, name))
				ours = append(ours, runQueue(b, image, op))
			}
			slices.Sort(ours)
			slices.Sort(theirs)
			a, f := ours[compareRounds/2], theirs[compareRounds/2]
			b.ReportMetric(a, "iops")
			b.ReportMetric(f, "fio-iops")
			b.ReportMetric(a/f, "ratio")
			b.ReportMetric(0, "ns/op")
			b.Logf("%s: ours %.0f, fio %.0f", name, ours, theirs)
		})
	}
}

// withoutCache returns a configuration of the cluster that turns the cache off.
func withoutCache(b *testing.B) string {
	b.Helper()
	conf := filepath.Join(b.TempDir(), "ceph.conf")
	shared.run(b, "cp", shared.conf, conf)
	shared.run(b, "sh", "-c", `printf '[client]\nrbd cache = false\n' >>"$0"`, conf)
	return conf
}

// runFio returns the IOPS of fio.
func runFio(b *testing.B, conf, image, name string) float64 {
	b.Helper()
	cmd := exec.Command("fio", "--name=x", "--ioengine=rbd", "--clientname=admin", "--pool=rbd", "--rbdname="+filepath.Base(image),
		"--rw="+name, fmt.Sprint("--bs=", compareBlock), fmt.Sprint("--iodepth=", compareDepth), "--time_based",
		fmt.Sprint("--runtime=", compareTime), "--output-format=json")
	cmd.Env = append(cmd.Environ(), "CEPH_CONF="+conf)
	out, err := cmd.Output()
	testbed.Must(b, err)
	var report struct {
		Jobs []struct{ Read, Write struct{ IOPS float64 } }
	}
	testbed.Must(b, json.Unmarshal(out, &report))
	return report.Jobs[0].Read.IOPS + report.Jobs[0].Write.IOPS
}

// runQueue returns the IOPS of a queue of the backend.
func runQueue(b *testing.B, image string, op block.Op) float64 {
	b.Helper()
	d := open(b, shared.spec(image))
	q, err := d.NewQueue(compareDepth)
	testbed.Must(b, err)
	blocks := d.Info().Size / compareBlock
	requests, done := make([]block.Request, compareDepth), make([]*block.Request, compareDepth)
	begin := func(r *block.Request) {
		r.Op, r.Offset, r.Length = op, rand.Int64N(blocks)*compareBlock, compareBlock
		q.Submit(r)
	}
	for i := range requests {
		requests[i].Op, requests[i].Length = op, compareBlock
		if !q.Reserve(&requests[i]) {
			b.Fatal("no memory for requests")
		}
		begin(&requests[i])
	}
	n, began := 0, time.Now()
	for time.Since(began) < compareTime {
		q.Kick()
		got := q.Reap(done)
		for _, r := range done[:got] {
			testbed.Must(b, r.Err)
			begin(r)
		}
		n += got
		if got > 0 {
			continue
		}
		if _, ok := q.Arm(); ok {
			_, _ = unix.Poll([]unix.PollFd{{Fd: int32(q.FD()), Events: unix.POLLIN}}, 1000)
		}
	}
	iops := float64(n) / time.Since(began).Seconds()
	testbed.Must(b, q.Close())
	testbed.Must(b, d.Close())
	return iops
}
