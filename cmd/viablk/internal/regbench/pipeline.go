package regbench

import (
	"context"
	"errors"
	"time"

	"github.com/viablk/viablk/cmd/viablk/internal/bench"
	"github.com/viablk/viablk/internal/block"
	"github.com/viablk/viablk/regcache"
	"github.com/viablk/viablk/via"
)

// PipelineConfig says what to measure. Zero fields take the defaults.
type PipelineConfig struct {
	Sizes  []int // bytes of a request; 256 KiB, 512 KiB, 1 MiB
	Chunks []int // bytes; 16 KiB to 512 KiB
	Rounds int   // 31
	Slice  time.Duration

	// Progress, if not nil, is called before each case.
	Progress func(done, total int)
}

// Memory is where the bytes of requests lie.
type Memory string

// One buffer and one place on the disk, over and over, stay in the caches.
// Others in turn do not: then the memory's bandwidth, which two processors
// share, bounds what overlapping can gain.
const (
	Cached Memory = "cached"
	Cold   Memory = "cold"
)

// Step is the gain of a chunk size.
type Step struct {
	Direction string  `json:"direction"` // read or write
	Memory    Memory  `json:"memory"`
	Size      int     `json:"size"`      // bytes of a request
	Chunk     int     `json:"chunk"`     // bytes
	Serial    float64 `json:"serial_ns"` // the whole is copied before or after its transfer
	Piped     float64 `json:"piped_ns"`
	Gain      float64 `json:"gain"` // serial to piped, both lower deciles of the rounds
}

// Pipeline compares requests that are copied in chunks, each while another is
// on its way, with requests that are copied as one. All of them go through
// bounce memory. The time is that of requests alone, not of what makes or looks
// at their bytes. Target and initiator have processors of their own, if there
// are two, as in Decide.
func Pipeline(ctx context.Context, p via.Provider, at Address, c PipelineConfig) (steps []Step, err error) {
	if c.Sizes == nil {
		c.Sizes = []int{256 << 10, 512 << 10, 1 << 20}
	}
	if c.Chunks == nil {
		for n := 16 << 10; n <= 512<<10; n *= 2 {
			c.Chunks = append(c.Chunks, n)
		}
	}
	if c.Rounds == 0 {
		c.Rounds = 31
	}
	if c.Slice == 0 {
		c.Slice = 3 * time.Millisecond
	}
	release, err := bench.Apart()
	if err != nil {
		return nil, err
	}
	defer release()
	r, err := openRig(p, at)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, r.close()) }()
	var ends []*end
	for _, chunk := range append([]int{64 << 20}, c.Chunks...) {
		e, err := r.attach(regcache.CopyBounce, "", chunk)
		if err != nil {
			return nil, err
		}
		ends = append(ends, e)
		defer func() { err = errors.Join(err, e.close()) }()
	}
	memories, ops := []Memory{Cached, Cold}, []block.Op{block.Write, block.Read}
	done, total := 0, len(memories)*len(ops)*len(c.Sizes)
	for _, m := range memories {
		for _, op := range ops {
			for _, size := range c.Sizes {
				if ctx.Err() != nil {
					return steps, context.Cause(ctx)
				}
				if c.Progress != nil {
					c.Progress(done, total)
				}
				done++
				more, err := gains(ends, c, m, op, size)
				if err != nil {
					return steps, err
				}
				steps = append(steps, more...)
			}
		}
	}
	return steps, nil
}

// gains measures a size; the first end is the serial one.
func gains(ends []*end, c PipelineConfig, m Memory, op block.Op, size int) ([]Step, error) {
	times := make([][]float64, len(ends))
	next := make([]func() int, len(ends))
	for i, e := range ends {
		next[i], e.span = NoReuse.positions(size), diskSize
		if m == Cached {
			next[i], e.span = func() int { return 0 }, int64(size)
		}
		if _, err := e.lease(round{op, size, 1, 1, c.Slice}, next[i]); err != nil {
			return nil, err
		}
	}
	for range c.Rounds {
		for i, e := range ends {
			t, err := e.lease(round{op, size, 1, 1, c.Slice}, next[i])
			if err != nil {
				return nil, err
			}
			times[i] = append(times[i], float64(t.requests)/float64(t.ops))
		}
	}
	var steps []Step
	for i, chunk := range c.Chunks {
		if chunk < size {
			steps = append(steps, Step{
				Direction: op.String(), Memory: m, Size: size, Chunk: chunk,
				Serial: decile(times[0]), Piped: decile(times[i+1]), Gain: decile(times[0]) / decile(times[i+1]),
			})
		}
	}
	return steps, nil
}
