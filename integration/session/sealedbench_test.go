package session

import (
	"crypto/aes"
	"crypto/cipher"
	"encoding/binary"
	"fmt"
	"runtime"
	"slices"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/viablk/viablk/initiator"
	"github.com/viablk/viablk/integration/testbed"
	"github.com/viablk/viablk/internal/block"
	"github.com/viablk/viablk/internal/seal"
	"github.com/viablk/viablk/internal/wire"
	"github.com/viablk/viablk/target"
)

// BenchmarkSealed compares sealed with plain sessions, both ends in this
// process. Samples of some milliseconds alternate, so that other load of the
// machine meets both, and with them AES-GCM alone: the calls that both ends
// need for the requests, and nothing else. Requests wait for their memory as
// those of a local client do. Times are medians and of one request; processor
// time is that of both ends and with the kernel's.
//
//	ratio      time of plain / time of sealed, in one round
//	cpu-ratio  the same of processor time
//	cpu-limit  what cpu-ratio would be if a seal cost AES-GCM alone
//	plain-ns, sealed-ns, plain-cpu-ns, sealed-cpu-ns, aead-cpu-ns
//	best-…-ns  of the shortest sample, where other load is least
func BenchmarkSealed(b *testing.B) {
	for _, name := range []string{"roce", "shm"} {
		for _, n := range []int64{4 << 10, seal.RecordSize} {
			for _, depth := range []int{1, 16} {
				for _, op := range []block.Op{block.Read, block.Write} {
					b.Run(fmt.Sprintf("%s/%d/%v/%d", name, n, op, depth), func(b *testing.B) {
						benchmarkSealed(b, testbed.Fabrics[name], op, n, depth)
					})
				}
			}
		}
	}
}

// sample is what the requests of a sample took, each.
type sample struct{ wall, cpu float64 } // nanoseconds

// Samples of a round.
const (
	plainSample = iota
	sealedSample
	aeadSample
	sampleCount
)

func benchmarkSealed(b *testing.B, f testbed.Fabric, op block.Op, n int64, depth int) {
	disk := func() target.Export { return target.Export{Name: "disk", Device: openBackend(b, "memory:16MiB")} }
	chains := [2]*chain{newChainOver(b, f.Provider, f.Host(b), target.Config{}, disk()), newSealedChain(b, f, target.Config{}, disk())}
	var loads [2]*sealedLoad // plain, sealed
	for i, c := range chains {
		d := c.attach(b, "", nil)
		defer d.Close()
		_, err := d.WriteAt(testbed.RandomBytes(depth*int(n)), 0) // a disk without holes
		testbed.Must(b, err)
		loads[i] = newSealedLoad(b, d, op, n, depth)
		defer loads[i].queue.Close()
	}
	perSample := 512 // some milliseconds
	if n > 4<<10 {
		perSample = 64
	}
	for _, l := range loads {
		l.run(b, 4*perSample) // the pages of its pools are there
	}
	alone := newAEADLoad(b, n, depth)
	rounds := make([][sampleCount]sample, 0, 1<<12)
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	for i := 0; b.Loop(); i++ {
		var round [sampleCount]sample
		for k := range loads {
			k ^= i & 1
			round[k] = loads[k].run(b, perSample)
		}
		round[aeadSample] = alone.run(b, perSample)
		rounds = append(rounds, round)
	}
	runtime.ReadMemStats(&after)
	b.ReportMetric(0, "ns/op")
	of := func(figure func(r *[sampleCount]sample) float64) []float64 {
		var all []float64
		for i := range rounds {
			all = append(all, figure(&rounds[i]))
		}
		slices.Sort(all)
		return all
	}
	median := func(x []float64) float64 { return x[len(x)/2] }
	for name, figure := range map[string]func(r *[sampleCount]sample) float64{
		"ratio":     func(r *[sampleCount]sample) float64 { return r[plainSample].wall / r[sealedSample].wall },
		"cpu-ratio": func(r *[sampleCount]sample) float64 { return r[plainSample].cpu / r[sealedSample].cpu },
		"cpu-limit": func(r *[sampleCount]sample) float64 {
			return r[plainSample].cpu / (r[plainSample].cpu + r[aeadSample].cpu)
		},
	} {
		b.ReportMetric(median(of(figure)), name)
	}
	for k, name := range []string{"plain", "sealed", "aead"} {
		cpu := of(func(r *[sampleCount]sample) float64 { return r[k].cpu })
		b.ReportMetric(median(cpu), name+"-cpu-ns")
		b.ReportMetric(cpu[0], "best-"+name+"-cpu-ns")
		if k == aeadSample {
			break // one goroutine: no figure for two ends
		}
		wall := of(func(r *[sampleCount]sample) float64 { return r[k].wall })
		b.ReportMetric(median(wall), name+"-ns")
		b.ReportMetric(wall[0], "best-"+name+"-ns")
	}
	b.ReportMetric(float64(after.Mallocs-before.Mallocs)/float64(2*b.N*perSample), "allocs/request")
}

// sealedLoad keeps requests of one kind in flight in a queue.
type sealedLoad struct {
	queue    block.Queue
	requests []block.Request
	done     []*block.Request
}

func newSealedLoad(b *testing.B, d *initiator.Device, op block.Op, n int64, depth int) *sealedLoad {
	q, err := d.NewQueue(depth)
	testbed.Must(b, err)
	l := &sealedLoad{q, make([]block.Request, depth), make([]*block.Request, depth)}
	for i := range l.requests {
		l.requests[i] = block.Request{Op: op, Offset: int64(i) * n, Length: n}
	}
	return l
}

// run is a sample of so many requests or some more.
func (l *sealedLoad) run(b *testing.B, count int) sample {
	began, cpu := time.Now(), processorTime(b)
	for i := range l.requests {
		l.begin(b, &l.requests[i])
	}
	l.queue.Kick()
	total := len(l.requests)
	for left := total; left > 0; {
		done := l.reap(b)
		left -= len(done)
		for _, r := range done {
			testbed.Must(b, r.Err)
			l.queue.Release(r)
			if total < count {
				l.begin(b, r)
				total, left = total+1, left+1
			}
		}
		l.queue.Kick()
	}
	per := func(d time.Duration) float64 { return float64(d) / float64(total) }
	return sample{per(time.Since(began)), per(processorTime(b) - cpu)}
}

func (l *sealedLoad) begin(b *testing.B, r *block.Request) {
	*r = block.Request{Op: r.Op, Offset: r.Offset, Length: r.Length}
	if !l.queue.Reserve(r) || !l.queue.Submit(r) {
		b.Fatal("the queue is full")
	}
}

func (l *sealedLoad) reap(b *testing.B) []*block.Request {
	for {
		if k := l.queue.Reap(l.done); k > 0 {
			return l.done[:k]
		}
		if timeout, ok := l.queue.Arm(); ok {
			t := unix.NsecToTimespec(int64(max(timeout, 0)))
			if timeout < 0 {
				t = unix.Timespec{Sec: 1}
			}
			_, err := unix.Ppoll([]unix.PollFd{{Fd: int32(l.queue.FD()), Events: unix.POLLIN}}, &t, nil)
			if err != nil && err != unix.EINTR {
				b.Fatal(err)
			}
		}
	}
}

// aeadLoad seals and opens what the requests of a load have sealed and opened.
type aeadLoad struct {
	gcm           cipher.AEAD
	lengths       []int    // of what is sealed for a request
	plain, sealed [][]byte // by request in flight
}

func newAEADLoad(b *testing.B, n int64, depth int) *aeadLoad {
	block, err := aes.NewCipher(make([]byte, 32))
	testbed.Must(b, err)
	a := &aeadLoad{lengths: []int{wire.HeaderSize, wire.HeaderSize + int(n)}}
	a.gcm, err = cipher.NewGCM(block)
	testbed.Must(b, err)
	if n == seal.RecordSize { // a command with a segment, a reply, tags in one of them
		a.lengths = []int{wire.HeaderSize + wire.SegmentSize, wire.HeaderSize + seal.TagSize, seal.RecordSize}
	}
	most := slices.Max(a.lengths)
	for range depth {
		a.plain = append(a.plain, testbed.RandomBytes(most))
		a.sealed = append(a.sealed, make([]byte, most+seal.TagSize))
	}
	return a
}

// run is a sample.
func (a *aeadLoad) run(b *testing.B, count int) sample {
	nonce, header := make([]byte, a.gcm.NonceSize()), make([]byte, wire.HeaderSize)
	began, cpu := time.Now(), processorTime(b)
	for i := range count {
		plain, sealed := a.plain[i%len(a.plain)], a.sealed[i%len(a.sealed)]
		for _, n := range a.lengths {
			binary.LittleEndian.PutUint64(nonce, uint64(i))
			text := a.gcm.Seal(sealed[:0], nonce, plain[:n], header)
			_, err := a.gcm.Open(plain[:0], nonce, text, header)
			testbed.Must(b, err)
		}
	}
	return sample{float64(time.Since(began)) / float64(count), float64(processorTime(b)-cpu) / float64(count)}
}

// processorTime returns what this process has used.
func processorTime(b *testing.B) time.Duration {
	var u unix.Rusage
	testbed.Must(b, unix.Getrusage(unix.RUSAGE_SELF, &u))
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}
