package regbench

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/viablk/viablk/regcache"
	"github.com/viablk/viablk/via"
)

// PoliciesConfig says what to measure. Zero fields take the defaults.
type PoliciesConfig struct {
	Sizes []int // bytes of a buffer; 64 KiB and 1 MiB
	Ops   int   // of each case; 3000

	// Progress, if not nil, is called before each case.
	Progress func(done, total int)
}

// PolicyRow compares what keeps registrations, for buffers of one size in one
// order. Times are nanoseconds for the use of one buffer.
type PolicyRow struct {
	Workload  Workload `json:"workload"`
	Size      int      `json:"size"`           // bytes
	Ristretto float64  `json:"ristretto_hits"` // share
	Clock     float64  `json:"clock_hits"`

	RistrettoTime float64 `json:"ristretto_ns"` // lease and release, registrations included
	ClockTime     float64 `json:"clock_ns"`
	NoneTime      float64 `json:"none_ns"` // register and deregister for every use
	CopyTime      float64 `json:"copy_ns"` // copy instead
	Best          string  `json:"best"`
}

// Policies measures over a provider, with a budget of 32 granules.
func Policies(ctx context.Context, p via.Provider, c PoliciesConfig) (rows []PolicyRow, err error) {
	if c.Sizes == nil {
		c.Sizes = []int{64 << 10, 1 << 20}
	}
	if c.Ops == 0 {
		c.Ops = 3000
	}
	nic, err := via.OpenNic(p, "")
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, nic.Close()) }()
	tag, err := nic.CreatePtag()
	if err != nil {
		return nil, err
	}
	workloads := []Workload{Reuse, Looping, Zipf, Mixed, NoReuse}
	for _, w := range workloads {
		for _, size := range c.Sizes {
			if ctx.Err() != nil {
				return rows, context.Cause(ctx)
			}
			if c.Progress != nil {
				c.Progress(len(rows), len(workloads)*len(c.Sizes))
			}
			row, err := policyRow(nic, tag, w, size, c.Ops)
			if err != nil {
				return rows, fmt.Errorf("%s, %d bytes: %w", w, size, err)
			}
			rows = append(rows, row)
		}
	}
	return rows, nil
}

func policyRow(nic *via.NIC, tag via.Ptag, w Workload, size, ops int) (row PolicyRow, err error) {
	row = PolicyRow{Workload: w, Size: size}
	if row.Ristretto, row.RistrettoTime, err = cached(nic, tag, regcache.PolicyRistretto, w, size, ops); err != nil {
		return row, err
	}
	if row.Clock, row.ClockTime, err = cached(nic, tag, regcache.PolicyClock, w, size, ops); err != nil {
		return row, err
	}
	if row.NoneTime, err = uncached(nic, tag, w, size, ops/10); err != nil {
		return row, err
	}
	row.CopyTime = copied(w, size, ops/10)
	row.Best = "ristretto"
	least := row.RistrettoTime
	for name, ns := range map[string]float64{"clock": row.ClockTime, "none": row.NoneTime, "copy": row.CopyTime} {
		if ns < least {
			row.Best, least = name, ns
		}
	}
	return row, nil
}

// cached uses buffers with a cache and returns the share of hits and the time
// of one use, after a fifth of the uses.
func cached(nic *via.NIC, tag via.Ptag, policy regcache.Policy, w Workload, size, ops int) (hits, ns float64, err error) {
	c, err := regcache.New(nic, regcache.Config{MaxBytes: budget, Policy: policy})
	if err != nil {
		return 0, 0, err
	}
	defer func() { err = errors.Join(err, c.Close()) }()
	a, err := c.NewArena(areaSize)
	if err != nil {
		return 0, 0, err
	}
	next, mem := w.positions(size), a.Bytes()
	var before regcache.Stats
	var begin time.Time
	for i := range ops + ops/5 {
		if i == ops/5 {
			before, begin = c.Stats(), time.Now()
		}
		at := next()
		for n := 0; n < size; n += c.Granule() {
			buf := mem[at+n : at+min(size, n+c.Granule())]
			for len(buf) > 0 { // a buffer may cross a granule
				reach := c.Reach(buf)
				l, err := c.Acquire(buf[:reach], tag, regcache.RemoteRead|regcache.RemoteWrite)
				if err != nil {
					return 0, 0, err
				}
				l.Release()
				buf = buf[reach:]
			}
		}
	}
	ns = float64(time.Since(begin)) / float64(ops)
	s := c.Stats()
	found, missed := s.Hits-before.Hits, s.Misses-before.Misses
	return float64(found) / float64(found+missed), ns, nil
}

// uncached registers for every use.
func uncached(nic *via.NIC, tag via.Ptag, w Workload, size, ops int) (ns float64, err error) {
	a, err := nic.NewArena(areaSize)
	if err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, a.Close()) }()
	next := w.positions(size)
	begin := time.Now()
	for range ops {
		at := next()
		m, err := nic.RegisterMem(a.Bytes()[at:at+size], via.MemAttributes{Ptag: tag, EnableRdmaRead: true, EnableRdmaWrite: true})
		if err != nil {
			return 0, err
		}
		if err := m.Deregister(); err != nil {
			return 0, err
		}
	}
	return float64(time.Since(begin)) / float64(ops), nil
}

// copied copies instead, from where the workload is to one slot.
func copied(w Workload, size, ops int) float64 {
	area, buffer := make([]byte, areaSize), make([]byte, size)
	for i := 0; i < len(area); i += 4096 {
		area[i] = 1
	}
	next := w.positions(size)
	begin := time.Now()
	for range ops {
		copy(buffer, area[next():])
	}
	return float64(time.Since(begin)) / float64(ops)
}
