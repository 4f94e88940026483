package latency

import (
	"encoding/json"
	"math"
	"math/rand/v2"
	"runtime"
	"slices"
	"strconv"
	"sync"
	"testing"
	"time"
)

// Buckets follow each other without a gap, each is at most 1/4 of what is in
// it, and each duration is in the one that holds it.
func TestBuckets(t *testing.T) {
	begin := time.Duration(0)
	for i := range buckets {
		end := boundOf(i)
		if end <= begin || i >= 4 && float64(end-begin) > float64(begin)/4 {
			t.Fatalf("bucket %d is from %d to %d", i, begin, end)
		}
		for _, d := range []time.Duration{begin, (begin + end) / 2, end - 1} {
			if got := bucketOf(d); got != i {
				t.Errorf("%d is in bucket %d, not %d", d, got, i)
			}
		}
		begin = end
	}
	if begin != 1<<(last+1) {
		t.Errorf("the last bucket ends at %v", begin)
	}
	for d, want := range map[time.Duration]int{-1: 0, math.MinInt64: 0, begin: buckets - 1, math.MaxInt64: buckets - 1} {
		if got := bucketOf(d); got != want {
			t.Errorf("%d is in bucket %d, not %d", d, got, want)
		}
	}
}

// Quantiles are near those of the durations themselves.
func TestQuantiles(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	var s Set
	r := s.Acquire()
	var all []time.Duration
	var sum time.Duration
	for range 100_000 {
		d := time.Duration(math.Exp(random.NormFloat64()*2+11)) + 1 // median 60 µs
		all, sum = append(all, d), sum+d
		r.Add(Request, Read, d)
	}
	r.Publish()
	slices.Sort(all)
	got := s.Read().Requests[Read]
	if got.Count != uint64(len(all)) || got.Sum != sum {
		t.Errorf("%d requests of %v, want %d of %v", got.Count, got.Sum, len(all), sum)
	}
	for _, q := range []float64{0.5, 0.9, 0.99, 0.999} {
		want := all[int(q*float64(len(all)))]
		if x := got.Quantile(q); math.Abs(float64(x-want)) > float64(want)/8 { // interpolated
			t.Errorf("quantile %v is %v, not %v", q, x, want)
		}
	}
	if s := new(Distribution); s.Quantile(0.5) != 0 {
		t.Errorf("without requests the median is %v", s.Quantile(0.5))
	}
}

// Loops that follow each other, and readers beside them, lose no request.
func TestRecordersAreReused(t *testing.T) {
	var s Set
	if s.Read() != nil {
		t.Error("a set without recorders has a status")
	}
	var loops sync.WaitGroup
	for range 4 {
		loops.Go(func() {
			for range 50 {
				r := s.Acquire()
				for i := range 20 {
					r.Add(Request, Operation(i%int(Operations)), time.Microsecond)
					r.Add(Backend, Write, time.Millisecond)
				}
				s.Release(r)
				s.Read()
			}
		})
	}
	loops.Wait()
	got := s.Read()
	for o := range Operations {
		if n := got.Requests[o].Count; n != 4*50*5 {
			t.Errorf("%s: %d requests", Names[o], n)
		}
	}
	if b := got.Backend[Write]; b.Count != 4000 || b.Sum != 4*time.Second {
		t.Errorf("%d writes of the backend took %v", b.Count, b.Sum)
	}
	if n := len(s.all); n > 4 || n != len(s.free) {
		t.Errorf("%d recorders, %d of them free", n, len(s.free))
	}
	twice := s.Read()
	twice.Add(got)
	twice.Add(nil)
	if n := twice.Requests[Read].Count; n != 2*1000 {
		t.Errorf("the sum has %d requests", n)
	}
}

func TestJSON(t *testing.T) {
	var s Set
	r := s.Acquire()
	for range 1000 {
		r.Add(Request, Read, 100*time.Microsecond)
	}
	r.Add(Request, Read, time.Second)
	r.Add(Backend, Read, time.Second)
	r.Publish()
	b, err := json.Marshal(s.Read())
	if err != nil {
		t.Fatal(err)
	}
	var got struct {
		Requests, Backend map[string]map[string]any
	}
	if err := json.Unmarshal(b, &got); err != nil {
		t.Fatal(err)
	}
	x, disk := got.Requests["read"], got.Backend["read"]
	number := func(name string) float64 { f, _ := x[name].(float64); return f }
	if len(got.Requests) != 1 || number("count") != 1001 || math.Abs(number("p50_us")-100) > 25 || math.Abs(number("p99_us")-100) > 25 || math.Abs(number("mean_us")-1099) > 1 {
		t.Errorf("got %s", b)
	}
	if len(got.Backend) != 1 || disk["count"] != 1. || disk["buckets"] != nil {
		t.Errorf("got %s", b)
	}
	var back Status
	if err := json.Unmarshal(b, &back); err != nil {
		t.Fatal(err)
	}
	for _, q := range []float64{0.5, 0.99, 0.9995} {
		if got, want := back.Requests[Read].Quantile(q), s.Read().Requests[Read].Quantile(q); got != want {
			t.Errorf("%v is %v there, %v here", q, got, want)
		}
	}
	if b := &back.Requests[Read]; b.Count != 1001 || b.Sum != 1000*100*time.Microsecond+time.Second {
		t.Errorf("got %d requests of %v", b.Count, b.Sum)
	}
}

// Documents of others do not panic, whatever the numbers are.
func TestJSONOfOthers(t *testing.T) {
	for _, text := range []string{`{"read":{"count":1,"mean_us":1e300,"buckets":[[1e300,1e300],[-1,-1],[0,0]]}}`, `{"none":{}}`, `{}`} {
		var d Durations
		if err := json.Unmarshal([]byte(text), &d); err != nil {
			t.Errorf("%s: %v", text, err)
		}
		if x := d[Read].Quantile(0.99); x < 0 {
			t.Errorf("%s: %v", text, x)
		}
	}
	var s Status
	if err := json.Unmarshal([]byte(`{}`), &s); err != nil || s.Requests == nil || s.Backend == nil {
		t.Errorf("nothing: %+v, %v", s, err)
	}
	for _, text := range []string{`[]`, `{"requests":[]}`} {
		if err := json.Unmarshal([]byte(text), &s); err == nil {
			t.Errorf("%s is taken", text)
		}
	}
}

// The requests between two readings are those of the difference; a process that
// has begun anew has all of them.
func TestSince(t *testing.T) {
	var s Set
	r := s.Acquire()
	add := func(n int, d time.Duration) *Distribution {
		for range n {
			r.Add(Request, Write, d)
		}
		r.Publish()
		return &s.Read().Requests[Write]
	}
	first := add(1000, time.Millisecond)
	second := add(10, 4*time.Second)
	x := second.Since(first)
	if x.Count != 10 || x.Sum != 40*time.Second || x.Quantile(0.01) < 3*time.Second {
		t.Errorf("got %d requests of %v, the fastest %v", x.Count, x.Sum, x.Quantile(0.01))
	}
	if x := first.Since(second); x != *first {
		t.Errorf("got %d requests of %v", x.Count, x.Sum)
	}
}

func TestText(t *testing.T) {
	for want, d := range map[string]time.Duration{
		"0.0us": 0, "9.9us": 9900, "10us": 9950, "999us": 999_499, "1.0ms": 999_500, "9.9ms": 9_949_999, "999ms": 999_499_999,
		"1.0s": 999_500_000, "120s": 2 * time.Minute,
	} {
		if got := Text(d); got != want {
			t.Errorf("%d ns is %q, not %q", d, got, want)
		}
	}
}

func TestAlloc(t *testing.T) {
	var s Set
	r := s.Acquire()
	if n := testing.AllocsPerRun(1000, func() {
		r.Add(Request, Read, 5*time.Microsecond)
		r.Add(Backend, Read, time.Microsecond)
		r.Publish()
	}); n != 0 {
		t.Errorf("a request costs %v allocations", n)
	}
}

// A request costs what a clock reading, of which a batch has two, and two
// additions cost.
func BenchmarkRequest(b *testing.B) {
	epoch := time.Now()
	b.Run("clock", func(b *testing.B) {
		for b.Loop() {
			_ = time.Since(epoch)
		}
	})
	b.Run("record", func(b *testing.B) {
		var s Set
		r := s.Acquire()
		d, n := time.Duration(5000), 0
		for b.Loop() {
			r.Add(Request, Read, d)
			r.Add(Backend, Read, d)
			if n++; n%64 == 0 {
				r.Publish()
			}
			if d += 100; d > 20_000 { // as a disk in memory
				d = 5000
			}
		}
	})
}

// A loop that publishes seldom publishes all the same, before its counts do not
// fit any more.
func TestManyRequestsUnpublished(t *testing.T) {
	var s Set
	r := s.Acquire()
	const n = 100_000
	for i := range n {
		r.Add(Backend, Flush, time.Duration(i%3)*time.Millisecond)
		r.Add(Request, Other, time.Duration(i)*time.Microsecond)
	}
	r.Publish()
	got := s.Read()
	if got.Backend[Flush].Count != n || got.Requests[Other].Count != n || got.Requests[Other].Sum != n*(n-1)/2*time.Microsecond {
		t.Errorf("got %d and %d requests of %v", got.Backend[Flush].Count, got.Requests[Other].Count, got.Requests[Other].Sum)
	}
}

// Requests begin at the reading of their iteration and end at the next one, and
// an iteration reads the clock once.
func TestStopwatch(t *testing.T) {
	var s Set
	r := s.Acquire()
	var now time.Duration
	readings := 0
	var w Stopwatch
	w.Start(func() time.Duration { readings++; return now })
	counted := func(p Part, o Operation, d time.Duration, n uint64) {
		t.Helper()
		r.Publish()
		x := s.Read().Requests[o]
		if p == Backend {
			x = s.Read().Backend[o]
		}
		if x.Count != n || x.Sum != d {
			t.Errorf("%d requests of %v, want %d of %v", x.Count, x.Sum, n, d)
		}
	}
	iteration := func(f func(now time.Duration)) {
		f(w.Now())
		f(w.Now())
		w.Expire()
	}
	now = 10
	iteration(func(began time.Duration) { w.End(r, Read, began, NotGiven) })
	counted(Request, Read, 0, 0)
	now = 15
	iteration(func(began time.Duration) { w.End(r, Write, began-1, began) })
	counted(Request, Read, 2*5, 2)
	counted(Backend, Read, 0, 0)
	if readings != 2 {
		t.Errorf("two iterations read the clock %d times", readings)
	}
	w.At(21)
	counted(Request, Write, 2*(21-14), 2)
	counted(Backend, Write, 2*(21-15), 2)
	if w.Now() != 21 || readings != 2 {
		t.Errorf("the reading of the caller is %v, the clock was read %d times", w.Now(), readings)
	}
	now = 30
	for range 2*len(w.ended) + 1 { // more than there is room for
		w.End(r, Flush, 20, 25)
	}
	now = 31
	w.Expire()
	w.Stop()
	n := uint64(2 * len(w.ended))
	counted(Request, Flush, time.Duration(n*10+11), n+1)
	counted(Backend, Flush, time.Duration(n*5+6), n+1)
}

// A request of a loop that has one at a time, and of one with 16 in an
// iteration.
func BenchmarkStopwatch(b *testing.B) {
	for _, batch := range []int{1, 16} {
		b.Run(strconv.Itoa(batch), func(b *testing.B) {
			var s Set
			r := s.Acquire()
			epoch := time.Now()
			var w Stopwatch
			w.Start(func() time.Duration { return time.Since(epoch) })
			n := 0
			for b.Loop() {
				w.End(r, Read, w.Now(), w.Now())
				if n++; n%batch == 0 {
					w.Expire()
				}
				if n%(64*batch) == 0 {
					r.Publish()
				}
			}
			w.Stop()
			r.Publish()
			if got := s.Read().Backend[Read].Count; got != uint64(n) {
				b.Errorf("%d requests of %d are counted", got, n)
			}
		})
	}
}

// A recorder is small until it counts: an idle client of each of thousands of
// exports has one.
func TestMemoryOfRecorder(t *testing.T) {
	const recorders = 1000
	memory := func(f func(*Recorder)) uint64 {
		sets := make([]Set, recorders)
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		for i := range sets {
			r := sets[i].Acquire()
			f(r)
			sets[i].Release(r)
		}
		runtime.ReadMemStats(&after)
		return (after.TotalAlloc - before.TotalAlloc) / recorders
	}
	if idle := memory(func(*Recorder) {}); idle > 1536 {
		t.Errorf("a recorder without requests has %d bytes", idle)
	}
	reader := memory(func(r *Recorder) {
		r.Add(Request, Read, time.Millisecond)
		r.Add(Backend, Read, time.Millisecond)
	})
	if reader > 3584 {
		t.Errorf("a recorder of reads has %d bytes", reader)
	}
}
