package regbench

import (
	"context"
	"fmt"
	"os"
	"runtime/debug"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/viablk/viablk/regcache"
	"github.com/viablk/viablk/via"
	"github.com/viablk/viablk/via/hook"
	"github.com/viablk/viablk/via/shm"
)

// regTargets collects what registration is to reach, and what it reached.
type regTargets struct {
	t    *testing.T
	rows []string
}

// add adds a figure that is at most, or with atLeast at least, the bound.
func (r *regTargets) add(what string, measured, bound float64, atLeast bool, unit string) {
	met, sign := measured <= bound, "≤"
	if atLeast {
		met, sign = measured >= bound, "≥"
	}
	word := "yes"
	if !met {
		word = "no"
		r.t.Errorf("%s: %.3g%s, wanted %s %.3g%s", what, measured, unit, sign, bound, unit)
	}
	r.rows = append(r.rows, fmt.Sprintf("| %s %s %g%s | %.3g%s | %s |", what, sign, bound, unit, measured, unit, word))
}

// TestRegTargets measures what the registration cache and the decision promise.
// It takes about a quarter of an hour, of a machine that does nothing else.
func TestRegTargets(t *testing.T) {
	if os.Getenv("VIABLK_BENCH") != "1" {
		t.Skip("a benchmark: VIABLK_BENCH=1 runs it")
	}
	if hasRaceDetector(t) {
		t.Fatal("with the race detector nothing is as fast as it is: run this without -race")
	}
	var sizes []int // nil for all
	for word := range strings.FieldsSeq(os.Getenv("VIABLK_BENCH_SIZES")) {
		n, err := strconv.Atoi(word)
		must(t, err)
		sizes = append(sizes, n)
	}
	r := &regTargets{t: t}
	lookups, err := Lookups(shm.New(shm.Options{}), 0)
	must(t, err)
	r.add("lease and release of what is registered", lookups.Hit, 45, false, " ns")
	r.add("the same, two goroutines", lookups.Two, 55, false, " ns")
	r.add("lookup alone", lookups.Probe, 20, false, " ns")
	r.add("calibration, least of 3", leastCalibration(t), 20, false, " ms")
	for _, step := range pipelineOfMiB(t) {
		what := fmt.Sprintf("pipelined 1 MiB %s in chunks of %d KiB, beside serial, %s memory", step.Direction, step.Chunk>>10, step.Memory)
		if step.Memory == Cached {
			r.add(what, step.Gain, 1.3, true, "")
		} else {
			t.Logf("%s: %.2f", what, step.Gain)
		}
	}
	for _, p := range []struct {
		name     string
		provider via.Provider
	}{
		{"shm", shm.New(shm.Options{})},
		{"shm charged as ucx", hook.Charge(shm.New(shm.Options{}), hook.PriceUCX())},
		{"shm charged as cibr", hook.Charge(shm.New(shm.Options{}), hook.PriceCIBR())},
	} {
		d, err := Decide(context.Background(), p.provider, socket, DecideConfig{Sizes: sizes})
		must(t, err)
		r.add("auto beside the better fixed mode, least cell, "+p.name, d.Least, 0.95, true, "")
		for _, c := range d.Cells {
			if c.Ratio < 0.95 {
				t.Logf("%s: %+v", p.name, c)
			}
		}
	}
	t.Logf("\n| target | measured | met |\n|---|---:|---|\n%s", strings.Join(r.rows, "\n"))
}

// leastCalibration returns milliseconds.
func leastCalibration(t *testing.T) float64 {
	t.Helper()
	nic, err := via.OpenNic(shm.New(shm.Options{}), "")
	must(t, err)
	defer func() { must(t, nic.Close()) }()
	tag, err := nic.CreatePtag()
	must(t, err)
	least := time.Duration(1<<63 - 1)
	for range 3 {
		c, err := regcache.Calibrate(nic, tag)
		must(t, err)
		least = min(least, c.Elapsed)
	}
	return float64(least) / 1e6
}

// pipelineOfMiB returns the gain of the chunk that initiators use by default.
func pipelineOfMiB(t *testing.T) []Step {
	t.Helper()
	steps, err := Pipeline(context.Background(), shm.New(shm.Options{}), socket, PipelineConfig{
		Sizes: []int{1 << 20}, Chunks: []int{128 << 10},
	})
	must(t, err)
	return steps
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// hasRaceDetector reports whether this test binary was built with it.
func hasRaceDetector(t testing.TB) bool {
	t.Helper()
	build, ok := debug.ReadBuildInfo()
	if !ok {
		t.Fatal("the test binary has no build information")
	}
	return slices.Contains(build.Settings, debug.BuildSetting{Key: "-race", Value: "true"})
}
