package session

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/viablk/viablk/integration/testbed"
)

// alarm is a line of a log that wants an operator.
var alarm = regexp.MustCompile(`(?m)level=(WARN|ERROR)| (WARN|ERROR) `)

// load is fio reading and writing until it is stopped.
var load = []string{"--rw=randrw", "--bs=4k", "--iodepth=32", "--size=16m", "--time_based", "--runtime=60"}

// startLoad starts fio and waits until its requests are in flight.
func startLoad(t testing.TB, s testbed.Service) *testbed.Tool {
	t.Helper()
	c := testbed.StartFio(t, s.URI, load...)
	before := s.Attach.Status().NBD.Total
	testbed.Eventually(t, "load", func() (any, bool) {
		now := s.Attach.Status().NBD.Total
		return c.Output(), now.Reads > before.Reads+500 && now.Writes > before.Writes+500
	})
	return c
}

// failed waits for a client that must fail.
func failed(t testing.TB, c *testbed.Tool) {
	t.Helper()
	if code := c.Wait(t, testbed.EndLimit); code == 0 {
		t.Errorf("%s: succeeded", c)
	}
}

// TestTargetCrashesUnderLoad is about a disk that does not wait for its target.
func TestTargetCrashesUnderLoad(t *testing.T) {
	t.Parallel()
	s := testbed.FailFastWay.Serve(t, testbed.Program(t), testbed.Disk{Name: "disk", Spec: "memory:16MiB"})
	idle := s.IdleFiles(t)
	k := testbed.Connect(t, s.URI)
	k.Ask("read 0 4096", "ok")
	c := startLoad(t, s)
	s.Target.Crash()
	failed(t, c)
	if !strings.Contains(c.Output(), "Input/output error") {
		t.Errorf("fio does not see EIO: %s", c.Output())
	}
	for range 3 {
		k.Ask("read 0 4096", "EIO")
		k.Ask("write 0 65536", "EIO")
		k.Ask("flush", "EIO")
	}
	// A later client gets the error as well.
	late := testbed.StartTool(t, "nbdsh", "-u", s.URI, "-c", "h.pread(512, 0)")
	failed(t, late)
	k.Disconnect()
	s.Idle(t)
	testbed.Eventually(t, "the loss of the target", func() (any, bool) {
		st := s.Attach.Status().Initiators[0]
		return st, !st.Connected && st.Error != ""
	})
	testbed.Eventually(t, "files of the dead session being closed", func() (any, bool) {
		n := s.Attach.Files()
		return fmt.Sprintf("%d open, %d when idle", n, idle), n <= idle
	})
	s.Attach.Stop()
}

// TestInitiatorCrashesUnderLoad looks at what a target keeps of initiators that
// are gone: nothing.
func TestInitiatorCrashesUnderLoad(t *testing.T) {
	t.Parallel()
	for _, b := range []struct {
		name   string
		binary string
		rounds int  // of which the first half touches what stays: the heap, stacks
		rss    bool // memory is compared
	}{{"with race detector", testbed.Program(t), 4, false}, {"without race detector", testbed.PlainProgram(t), 12, true}} {
		if !b.rss && !testbed.RaceDetector {
			continue // it is the same program
		}
		t.Run(b.name, func(t *testing.T) {
			p := testbed.StartTarget(t, b.binary, "via+shm:///?socket="+filepath.Join(testbed.Folder(t), "v"), testbed.Disk{Name: "disk", Spec: "memory:16MiB"})
			round := func() {
				a := testbed.AttachDisk(t, b.binary, p, "disk")
				c := startLoad(t, testbed.Service{URI: a.URI("disk", "nbd+unix"), Target: p, Attach: a})
				a.Crash()
				failed(t, c)
			}
			// The disk is memory, too: all of it is touched now.
			a := testbed.AttachDisk(t, b.binary, p, "disk")
			testbed.Fio(t, a.URI("disk", "nbd+unix"), "--rw=write", "--bs=1m", "--size=16m")
			a.Stop()
			for range b.rounds / 2 {
				round()
			}
			testbed.TargetIdle(t, p)
			files, rss := p.Files(), p.Memory("VmRSS")
			for range b.rounds / 2 {
				round() // attaches at once, while the last one's remains are cleared away
			}
			testbed.TargetIdle(t, p)
			testbed.Eventually(t, "files of dead sessions being closed", func() (any, bool) {
				n := p.Files()
				return fmt.Sprintf("%d open, %d before", n, files), n <= files
			})
			t.Logf("resident: %d KiB after half of the rounds, %d KiB after all", rss>>10, p.Memory("VmRSS")>>10)
			if b.rss {
				testbed.Eventually(t, "memory of dead sessions being free", func() (any, bool) {
					n := p.Memory("VmRSS")
					return fmt.Sprintf("%d KiB resident, %d before", n>>10, rss>>10), n <= rss+4<<20
				})
			}
			a = testbed.AttachDisk(t, b.binary, p, "disk")
			testbed.Connect(t, a.URI("disk", "nbd+unix")).Ask("write 0 4096", "ok")
		})
	}
}

func TestTargetDrainsUnderLoad(t *testing.T) {
	for _, w := range testbed.FailFastWays {
		t.Run(w.Name, func(t *testing.T) {
			t.Parallel()
			s := w.Serve(t, testbed.Program(t), testbed.Disk{Name: "disk", Spec: "memory:16MiB"})
			c := startLoad(t, s)
			s.Target.Stop()
			failed(t, c)
			if s.Attach != s.Target {
				s.Attach.Stop()
			}
		})
	}
}

func TestAttachDrainsUnderLoad(t *testing.T) {
	t.Parallel()
	s := testbed.ChainWay.Serve(t, testbed.Program(t), testbed.Disk{Name: "disk", Spec: "memory:16MiB"})
	c := startLoad(t, s)
	s.Attach.Stop()
	failed(t, c)
	testbed.TargetIdle(t, s.Target)
}

// held is a disk whose reads hang until release is called.
func held(t *testing.T, size string) (d testbed.Disk, release func()) {
	t.Helper()
	hold := testbed.WriteFile(t, "hold", nil)
	return testbed.Disk{Name: "disk", Spec: "fault:read=hang@while=" + hold + ":memory:" + size}, func() { testbed.Must(t, os.Remove(hold)) }
}

// awaitReads waits until a disk has got a read from so many NBD clients.
func awaitReads(t *testing.T, s testbed.Service, clients int) {
	t.Helper()
	testbed.Eventually(t, fmt.Sprintf("%d clients with a read", clients), func() (any, bool) {
		n, at, disk := 0, s.Attach.Status().NBD, s.Target.Status()
		for _, c := range at.Connections {
			if c.Reads > 0 {
				n++
			}
		}
		reads := uint64(clients) // of a disk without VIA
		for i, x := range disk.Targets {
			if i == 0 {
				reads = 0
			}
			reads += x.Stats.Reads
		}
		return []any{at.Connections, disk.Targets}, n == clients && reads >= uint64(clients)
	})
}

// awaitDraining waits until a process drains.
func awaitDraining(t *testing.T, p *testbed.Process) {
	t.Helper()
	testbed.Eventually(t, "draining", func() (any, bool) {
		st := p.Status()
		return st, st.NBD != nil && st.NBD.Draining || len(st.Targets) > 0 && st.Targets[0].Draining
	})
}

// TestDrainFinishesRequests: a request that is in flight when the signal
// arrives is answered.
func TestDrainFinishesRequests(t *testing.T) {
	for _, w := range testbed.Ways {
		t.Run(w.Name, func(t *testing.T) {
			t.Parallel()
			d, release := held(t, "1MiB")
			s := w.Serve(t, testbed.Program(t), d)
			k := testbed.Connect(t, s.URI)
			k.Send("read 0 4096")
			awaitReads(t, s, 1)
			s.Target.Signal(syscall.SIGTERM)
			awaitDraining(t, s.Target)
			release()
			k.Expect("ok")
			if code := s.Target.ExitCode(); code != 0 {
				t.Errorf("exit code %d\n%s", code, s.Target.Output())
			}
		})
	}
}

func TestSecondSignalEndsAtOnce(t *testing.T) {
	for _, w := range testbed.FailFastWays {
		t.Run(w.Name, func(t *testing.T) {
			t.Parallel()
			s := w.Serve(t, testbed.Program(t), testbed.Disk{Name: "disk", Spec: "delay:read=10m:memory:1MiB"})
			k := testbed.Connect(t, s.URI)
			k.Send("read 0 4096")
			awaitReads(t, s, 1)
			s.Target.Signal(syscall.SIGTERM)
			awaitDraining(t, s.Target)
			for ended := false; !ended; { // one soon after the first is the same signal
				s.Target.Signal(syscall.SIGTERM)
				select {
				case <-s.Target.Ended:
					ended = true
				case <-time.After(20 * time.Millisecond):
				}
			}
			if code := s.Target.ExitCode(); code == 0 {
				t.Errorf("exit code %d\n%s", code, s.Target.Output())
			}
			if !strings.Contains(s.Target.Stderr.String(), "second signal") {
				t.Errorf("no word about it: %s", s.Target.Stderr.String())
			}
			k.Disconnect()
		})
	}
}

// TestClientDiesInMiddleOfRequest kills clients while the disk works for them.
func TestClientDiesInMiddleOfRequest(t *testing.T) {
	for _, w := range testbed.Ways {
		t.Run(w.Name, func(t *testing.T) {
			t.Parallel()
			d, release := held(t, "16MiB")
			s := w.Serve(t, testbed.Program(t), d)
			witness := testbed.Connect(t, s.URI)
			c := testbed.StartFio(t, s.URI, "--rw=randread", "--bs=1m", "--iodepth=8", "--size=16m")
			k := testbed.StartTool(t, "qemu-io", "-r", "-f", "raw", s.URI, "-c", "aio_read 0 4M", "-c", "read 4M 4M")
			awaitReads(t, s, 2)
			c.Kill()
			k.Kill()
			witness.Ask("write 0 65536", "ok")
			witness.Ask("flush", "ok")
			release()
			testbed.Eventually(t, "one client", func() (any, bool) {
				st := s.Attach.Status()
				return st.NBD.Connections, len(st.NBD.Connections) == 1
			})
		})
	}
}
