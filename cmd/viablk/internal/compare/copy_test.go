package compare

import (
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/viablk/viablk/integration/testbed"
)

// copyRounds is how often each copy runs; one before them is not counted.
const copyRounds = 9

// TestCompareCopies copies half a disk of data, half of zeroes, by viablk copy
// and nbdcopy alternately, between kinds of places. Both flush at the end.
func TestCompareCopies(t *testing.T) {
	testbed.OnDemand(t)
	compareCopies(t, 1<<30, copyRounds)
}

// TestCopyComparisonWorks keeps the comparison alive where it does not run.
func TestCopyComparisonWorks(t *testing.T) { compareCopies(t, 4<<20, 1) }

// compareCopies logs how much faster viablk is.
func compareCopies(t *testing.T, size int64, rounds int) {
	t.Helper()
	program := testbed.PlainProgram(t)
	folder := testbed.Folder(t)
	file := testbed.SparseFile(t, size)
	f, err := os.OpenFile(file, os.O_WRONLY, 0)
	testbed.Must(t, err)
	_, err = f.WriteAt(testbed.RandomBytes(int(size/2)), size/4)
	testbed.Must(t, err)
	testbed.Must(t, f.Close())
	environment := testbed.Environment(t)
	run := func(name string, args ...string) {
		if name != program {
			testbed.Run(t, name, args...)
			return
		}
		testbed.Succeed(t, testbed.StartPath(t, environment, name, args...))
	}
	server := func(name string) string {
		socket := filepath.Join(folder, name)
		testbed.StartTool(t, "nbdkit", "-f", "-U", socket, "memory", strconv.FormatInt(size, 10))
		testbed.WaitForSocket(t, socket)
		return "nbd+unix:///?socket=" + socket
	}
	a, b, out := server("a"), server("b"), filepath.Join(folder, "out")
	testbed.Run(t, "nbdcopy", file, a)
	for _, c := range []struct{ name, from, to string }{{"NBD to NBD", a, b}, {"file to NBD", file, b}, {"NBD to file", a, out}} {
		var ratios []float64
		for round := range rounds + 1 {
			cost := make(map[string]time.Duration)
			for _, command := range [][]string{{program, "copy", c.from, c.to}, {"nbdcopy", "--flush", c.from, c.to}} {
				_ = os.Remove(out)
				began := time.Now()
				run(command[0], command[1:]...)
				cost[command[0]] = time.Since(began)
			}
			if round > 0 {
				ratios = append(ratios, float64(cost["nbdcopy"])/float64(cost[program]))
			}
		}
		run(program, "verify", c.from, c.to)
		slices.Sort(ratios)
		t.Logf("%s: %.2f of nbdcopy's speed, %.2f to %.2f", c.name, ratios[len(ratios)/2], ratios[0], ratios[len(ratios)-1])
	}
}
