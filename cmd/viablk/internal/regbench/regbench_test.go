package regbench

import (
	"context"
	"errors"
	"path/filepath"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/viablk/viablk/internal/block"
	"github.com/viablk/viablk/via/hook"
	"github.com/viablk/viablk/via/shm"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func socket(folder string) string { return filepath.Join(folder, "s") }

func TestDecide(t *testing.T) {
	p := hook.Charge(shm.New(shm.Options{}), hook.PriceUCX())
	d, err := Decide(context.Background(), p, socket, DecideConfig{
		Sizes: []int{4 << 10, 64 << 10}, Rounds: 1, Visits: 2, Doubt: 1e9, Ops: 4, Slice: time.Millisecond, Warm: 16,
	})
	if err != nil {
		t.Fatal(err)
	}
	if len(d.Cells) != 4*2*2 {
		t.Fatalf("%d cells", len(d.Cells))
	}
	for _, c := range d.Cells {
		if c.Rounds != 2 {
			t.Errorf("%+v: a cell in doubt has had %d rounds in two visits of one", c, c.Rounds)
		}
		if c.Auto <= 0 || c.Bounce <= 0 || c.Zero <= 0 || c.Ratio <= 0 {
			t.Errorf("%+v", c)
		}
	}
	if s := d.Calibration.Samples; len(s) == 0 || s[0].Register < 16e3 {
		t.Errorf("calibration %+v; to register 4 KiB is charged with 16 µs", d.Calibration)
	}
}

// counting returns a Progress that has to be called once for each case, in
// order.
func counting(t *testing.T, total int) func(done, total int) {
	next := 0
	t.Cleanup(func() {
		if next != total {
			t.Errorf("progress was told of %d cases, not %d", next, total)
		}
	})
	return func(done, of int) {
		if done != next || of != total {
			t.Errorf("progress is told %d of %d, not %d of %d", done, of, next, total)
		}
		next++
	}
}

func TestPipeline(t *testing.T) {
	steps, err := Pipeline(context.Background(), shm.New(shm.Options{}), socket, PipelineConfig{
		Sizes: []int{256 << 10}, Chunks: []int{32 << 10, 512 << 10}, Rounds: 1, Slice: time.Millisecond,
		Progress: counting(t, 4),
	})
	if err != nil {
		t.Fatal(err)
	}
	if len(steps) != 4 || steps[0].Gain <= 0 || steps[0].Chunk != 32<<10 || steps[0].Memory != Cached || steps[3].Memory != Cold {
		t.Errorf("%+v", steps)
	}
}

func TestTable(t *testing.T) {
	r, err := Table(context.Background(), hook.Charge(shm.New(shm.Options{}), hook.PriceCIBR()), socket, TableConfig{
		Sizes: []int{4 << 10, 1 << 20, 4 << 20}, Runs: 3, Progress: counting(t, 3),
	})
	if err != nil {
		t.Fatal(err)
	}
	if len(r.Rows) != 3 || r.Rows[0].PaperRegister != 22e3 || r.Rows[2].PaperRegister != 0 {
		t.Fatalf("%+v", r)
	}
	for _, x := range r.Rows {
		if x.Register < 22e3 || x.CopyCold <= 0 || x.RdmaWrite <= 0 || x.EvenWarm < 0 || x.EvenWarm > 1 {
			t.Errorf("%+v", x)
		}
	}
}

func TestBreakEven(t *testing.T) {
	for _, c := range []struct{ registration, copying, want float64 }{
		{1000, 1e6, 0}, {1e9, 0, 1}, {1000, 490, 0.5},
	} {
		if got := breakEven(c.registration, c.copying); got < c.want-0.01 || got > c.want+0.01 {
			t.Errorf("registration %g, copy %g: %g, want %g", c.registration, c.copying, got, c.want)
		}
	}
}

func TestPolicies(t *testing.T) {
	rows, err := Policies(context.Background(), shm.New(shm.Options{}), PoliciesConfig{
		Sizes: []int{1 << 20}, Ops: 300, Progress: counting(t, 5),
	})
	if err != nil {
		t.Fatal(err)
	}
	if len(rows) != 5 {
		t.Fatalf("%d rows", len(rows))
	}
	for _, r := range rows {
		if r.RistrettoTime <= 0 || r.ClockTime <= 0 || r.NoneTime <= 0 || r.CopyTime <= 0 || r.Best == "" {
			t.Errorf("%+v", r)
		}
		if r.Workload == Reuse && r.Clock < 0.99 {
			t.Errorf("%+v: all fits", r)
		}
		if r.Workload == NoReuse && r.Clock > 0.5 {
			t.Errorf("%+v: nothing comes back", r)
		}
	}
}

// A cell's ratio is that of whole rounds with the better mode of the cell,
// whatever one interrupted round says; the total has everything.
func TestInterruptedRoundDoesNotDecideCell(t *testing.T) {
	const us = time.Microsecond
	rounds := [len(modes)][]spent{
		{{time: 200 * us, ops: 100}, {time: 220 * us, ops: 100}, {time: 210 * us, ops: 100}},  // bounce
		{{time: 100 * us, ops: 100}, {time: 110 * us, ops: 110}, {time: 5000 * us, ops: 100}}, // zerocopy, interrupted once
		{{time: 125 * us, ops: 100}, {time: 100 * us, ops: 100}, {time: 110 * us, ops: 100}},  // auto
	}
	c := (&contest{rounds: rounds}).evaluate()
	// 100/125, 100/100 (of 110 operations), 5000/110: the median is 1.
	if c.Ratio != 1 || c.Ops != 300 || c.Rounds != 3 {
		t.Errorf("%+v", c)
	}
	if want := 630.0 / 335; c.Total < want-0.001 || c.Total > want+0.001 {
		t.Errorf("total %.3f, want %.3f", c.Total, want)
	}
}

// Over all orders each mode comes right after each other one as often.
func TestModesFollowEachOtherAlike(t *testing.T) {
	after := make(map[[2]int]int)
	last := orders[len(orders)-1][len(modes)-1]
	for _, order := range orders {
		for _, i := range order {
			after[[2]int{last, i}]++
			last = i
		}
	}
	for pair, n := range after {
		if n != 2 {
			t.Errorf("%v comes after %v %d times, not twice", modes[pair[1]], modes[pair[0]], n)
		}
	}
	if len(after) != len(modes)*len(modes) {
		t.Errorf("%d pairs", len(after))
	}
}

// A round of a pass over memory has whole granules in it, and no round has
// fewer operations than asked for, whatever time they take.
func TestRoundsHaveWholeGranules(t *testing.T) {
	for _, w := range Workloads() {
		for size := 512; size <= 4<<20; size *= 2 {
			moved := w.cycle(size) * size
			if w == NoReuse && moved%passage != 0 || w == Mixed && (moved%(2*passage) != 0 || w.cycle(size)%2 != 0) {
				t.Errorf("%s of %d bytes: a cycle of %d operations", w, size, w.cycle(size))
			}
		}
	}
	r, err := openRig(shm.New(shm.Options{}), socket)
	if err != nil {
		t.Fatal(err)
	}
	e, err := r.attach(modes[0], "", 0)
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct{ least, cycle, want int }{{128, 1, 128}, {10, 64, 64}, {130, 64, 192}} {
		s, err := e.lease(round{block.Read, 512, c.least, c.cycle, 0}, NoReuse.positions(512))
		if err != nil || s.ops != c.want || s.time <= 0 {
			t.Errorf("%+v: %+v, %v", c, s, err)
		}
	}
	if err := errors.Join(e.close(), r.close()); err != nil {
		t.Error(err)
	}
}

func TestLookups(t *testing.T) {
	r, err := Lookups(shm.New(shm.Options{}), 10000)
	if err != nil {
		t.Fatal(err)
	}
	if r.Hit <= 0 || r.Two <= 0 || r.Probe <= 0 {
		t.Errorf("%+v", r)
	}
}
