package regbench

import (
	"errors"
	"sync"
	"time"

	"github.com/viablk/viablk/regcache"
	"github.com/viablk/viablk/via"
)

// LookupResult is what it takes to find a registration, in nanoseconds: medians
// of the rounds. The caller goes through granules by Zipf's law.
type LookupResult struct {
	Hit   float64 `json:"hit_ns"`            // lease and release
	Two   float64 `json:"two_goroutines_ns"` // the same, both at it: time by operations of both
	Probe float64 `json:"probe_ns"`          // lookup alone
}

const (
	lookupGranules = 128
	lookupRounds   = 9
)

// Lookups measures a cache over a provider, of which nothing is evicted. ops is
// how many operations a round has; 0 is a million.
func Lookups(p via.Provider, ops int) (r LookupResult, err error) {
	if ops == 0 {
		ops = 1e6
	}
	nic, err := via.OpenNic(p, "")
	if err != nil {
		return r, err
	}
	defer func() { err = errors.Join(err, nic.Close()) }()
	tag, err := nic.CreatePtag()
	if err != nil {
		return r, err
	}
	c, err := regcache.New(nic, regcache.Config{MaxBytes: 4 * lookupGranules << 20})
	if err != nil {
		return r, err
	}
	defer func() { err = errors.Join(err, c.Close()) }()
	a, err := c.NewArena(lookupGranules << 20)
	if err != nil {
		return r, err
	}
	l := lookup{cache: c, tag: tag, mem: a.Bytes(), ops: ops}
	for g := range lookupGranules {
		lease, err := c.Acquire(l.mem[g<<20:][:4096], tag, regcache.RemoteRead)
		if err != nil {
			return r, err
		}
		lease.Release()
	}
	places := Zipf.positions(4096)
	for range 1 << 14 {
		l.places = append(l.places, places()%(lookupGranules<<20))
	}
	var hit, two, probe []float64
	for range lookupRounds {
		hit = append(hit, l.hits(1))
		two = append(two, l.hits(2))
		probe = append(probe, l.probes())
	}
	return LookupResult{median(hit), median(two), median(probe)}, errors.Join(l.errs[:]...)
}

// lookup is what is looked up.
type lookup struct {
	cache  *regcache.Cache
	tag    via.Ptag
	mem    []byte
	places []int
	ops    int
	errs   [2]error // of the workers
}

// hits returns nanoseconds of a lease, of workers at a time.
func (l *lookup) hits(workers int) float64 {
	var wg sync.WaitGroup
	begin := time.Now()
	for w := range workers {
		wg.Go(func() {
			for i := range l.ops / workers {
				at := l.places[(i+w*4999)%len(l.places)]
				lease, err := l.cache.Acquire(l.mem[at:at+4096], l.tag, regcache.RemoteRead)
				if err != nil {
					l.errs[w] = err
					return
				}
				lease.Release()
			}
		})
	}
	wg.Wait()
	return float64(time.Since(begin)) / float64(l.ops)
}

// errLeased means that a probe found what is not there.
var errLeased = errors.New("a lease of what is not registered")

// probes returns nanoseconds of a lookup that looks at a registration, which is
// of another access, and takes no lease.
func (l *lookup) probes() float64 {
	begin := time.Now()
	for i := range l.ops {
		at := l.places[i%len(l.places)]
		if _, ok := l.cache.AcquireCached(l.mem[at:at+4096], l.tag, 0); ok {
			l.errs[0] = errLeased
		}
	}
	return float64(time.Since(begin)) / float64(l.ops)
}
