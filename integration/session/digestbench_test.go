package session

import (
	"fmt"
	"slices"
	"testing"

	"github.com/viablk/viablk/initiator"
	"github.com/viablk/viablk/integration/testbed"
	"github.com/viablk/viablk/internal/block"
	"github.com/viablk/viablk/target"
)

// BenchmarkDigest compares sessions with data digests with those without, both
// ends in this process, as BenchmarkSealed does: samples alternate, times are
// medians, and processor time is that of both ends.
//
//	ratio      time of plain / time of digest, in one round
//	cpu-ratio  the same of processor time
//	plain-cpu-ns, digest-cpu-ns
func BenchmarkDigest(b *testing.B) {
	disks := map[string]func(testing.TB) string{
		"memory": func(testing.TB) string { return "memory:16MiB" },
		"file":   func(t testing.TB) string { return "file:" + testbed.SparseFile(t, 16<<20) },
	}
	for _, name := range []string{"roce", "shm"} {
		for disk, spec := range disks {
			for _, n := range []int64{4 << 10, 128 << 10} {
				for _, op := range []block.Op{block.Read, block.Write} {
					b.Run(fmt.Sprintf("%s/%s/%d/%v", name, disk, n, op), func(b *testing.B) {
						benchmarkDigest(b, testbed.Fabrics[name], spec, op, n)
					})
				}
			}
		}
	}
}

func benchmarkDigest(b *testing.B, f testbed.Fabric, spec func(testing.TB) string, op block.Op, n int64) {
	const depth = 16
	perSample := 512 // some milliseconds
	if n > 4<<10 {
		perSample = 64
	}
	var loads [2]*sealedLoad // plain, digest
	for i := range loads {
		c := newChainOver(b, f.Provider, f.Host(b), target.Config{}, target.Export{Name: "disk", Device: openBackend(b, spec(b))})
		d := c.attach(b, "", func(c *initiator.Config) { c.Digest = i == 1 })
		defer d.Close()
		_, err := d.WriteAt(testbed.RandomBytes(depth*int(n)), 0) // a disk without holes
		testbed.Must(b, err)
		loads[i] = newSealedLoad(b, d, op, n, depth)
		defer loads[i].queue.Close()
		loads[i].run(b, 4*perSample) // the pages of its pools are there
	}
	var rounds [][2]sample
	for i := 0; b.Loop(); i++ {
		var round [2]sample
		for k := range loads {
			k ^= i & 1
			round[k] = loads[k].run(b, perSample)
		}
		rounds = append(rounds, round)
	}
	b.ReportMetric(0, "ns/op")
	for name, figure := range map[string]func(r [2]sample) float64{
		"ratio":         func(r [2]sample) float64 { return r[0].wall / r[1].wall },
		"cpu-ratio":     func(r [2]sample) float64 { return r[0].cpu / r[1].cpu },
		"plain-cpu-ns":  func(r [2]sample) float64 { return r[0].cpu },
		"digest-cpu-ns": func(r [2]sample) float64 { return r[1].cpu },
	} {
		var all []float64
		for _, r := range rounds {
			all = append(all, figure(r))
		}
		slices.Sort(all)
		b.ReportMetric(all[len(all)/2], name)
	}
}
