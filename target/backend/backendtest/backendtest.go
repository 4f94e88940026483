// Package backendtest is the conformance kit of [block.Device]: what every disk
// promises, checked through its public face alone. Backends pass it, wrappers
// pass it, and an initiator with a whole remote target behind it passes it.
//
//	backendtest.Run(t, func(t testing.TB) block.Device {
//		return openDiskOfAtLeast8MiB(t)
//	}, backendtest.Options{})
//
// The kit waits as the owner of a queue does, on its file descriptor, and gives
// up only after [Options.Timeout]; no case depends on how fast a disk is.
package backendtest

import (
	"slices"
	"testing"
	"time"

	"github.com/viablk/viablk/internal/block"
)

// Options are what a disk cannot tell about itself.
type Options struct {
	// Forgets means that the disk reads as zeroes whatever was written.
	Forgets bool

	// Crash, if not nil, loses of the disk what it has not made durable, as a
	// power cut does; the disk goes on working. Without it the kit sees only
	// that a Flush succeeds.
	Crash func(t testing.TB, device block.Device)

	// Broken opens a disk whose every Write fails with EIO and which otherwise
	// works. If it is nil, the case Errors is skipped.
	Broken func(t testing.TB) block.Device

	// Slow opens a disk that begins few requests at a time. If it is nil, the
	// case Abort does not see whether requests are dropped.
	Slow func(t testing.TB) block.Device

	// Allocations is how many memory allocations a request may cost on average.
	Allocations float64

	// Timeout is how long the kit waits for a request before it reports a lost
	// wake-up. 0 means one minute.
	Timeout time.Duration

	// Skip has the cases that a disk need not pass, by name, with the reason.
	Skip map[string]string
}

// kit is one case on its way.
type kit struct {
	testing.TB
	options Options
	open    func(testing.TB) block.Device
}

// kitCase is a promise and its proof.
type kitCase struct {
	name   string
	writes bool // makes no sense on a read-only disk
	run    func(*kit)
}

// longCase moves the most bytes by far. -short, for a run under the race
// detector, leaves it out.
const longCase = "Biggest"

// cases in the order of what a reader wants to know first.
var cases = []kitCase{
	{"Info", false, (*kit).info},
	{"Features", true, (*kit).features},
	{"ReadOnly", false, (*kit).readOnly},
	{"Model", true, (*kit).model},
	{"Pipeline", true, (*kit).pipeline},
	{"Overlap", true, (*kit).overlap},
	{"Atomic", true, (*kit).atomic},
	{"Biggest", true, (*kit).biggest},
	{"Status", false, (*kit).status},
	{"Prefetch", false, (*kit).prefetch},
	{"Fields", true, (*kit).fields},
	{"Depth", false, (*kit).depth},
	{"Reserve", false, (*kit).reserve},
	{"Isolation", true, (*kit).isolation},
	{"Sleep", false, (*kit).sleep},
	{"Quiet", false, (*kit).quiet},
	{"Abort", true, (*kit).abort},
	{"AbortByClose", true, (*kit).abortByClose},
	{"Close", true, (*kit).close},
	{"Flush", true, (*kit).flush},
	{"Errors", true, (*kit).errors},
	{"Allocations", false, (*kit).allocations},
}

// Run checks the disks that open returns. Each case opens one of its own, of at
// least 8 MiB, whatever it contains, and closes it.
func Run(t *testing.T, open func(testing.TB) block.Device, options Options) {
	t.Helper()
	if options.Timeout == 0 {
		options.Timeout = time.Minute
	}
	for name := range options.Skip {
		if !slices.ContainsFunc(cases, func(c kitCase) bool { return c.name == name }) {
			t.Errorf("Options.Skip names the case %q, which does not exist", name)
		}
	}
	probe := open(t)
	info := probe.Info()
	closeDevice(t, probe)
	if info.Size < 8<<20 {
		t.Fatalf("the kit needs a disk of 8 MiB, this one has %d bytes", info.Size)
	}
	for _, c := range cases {
		if c.name == longCase && testing.Short() {
			continue
		}
		t.Run(c.name, func(t *testing.T) {
			if reason, skip := options.Skip[c.name]; skip {
				t.Skip(reason)
			}
			if c.writes && info.Features&block.ReadOnly != 0 {
				t.Skip("the disk is read-only")
			}
			c.run(&kit{t, options, open})
		})
	}
}

// device opens a disk and closes it at the end of the case.
func (k *kit) device() block.Device {
	k.Helper()
	d := k.open(k)
	k.Cleanup(func() { closeDevice(k, d) })
	return d
}

func closeDevice(t testing.TB, d block.Device) {
	t.Helper()
	if err := d.Close(); err != nil {
		t.Errorf("close the disk: %v", err)
	}
}

// random offsets and lengths are multiples of this, in bytes.
func grain(info block.Info) int64 { return int64(max(info.MinimumBlock, 1)) }
