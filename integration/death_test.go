package integration

import (
	"fmt"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"
)

// alarm is a line of a log that wants an operator.
var alarm = regexp.MustCompile(`(?m)level=(WARN|ERROR)| (WARN|ERROR) `)

// load is fio reading and writing until it is stopped.
var load = []string{"--rw=randrw", "--bs=4k", "--iodepth=32", "--size=16m", "--time_based", "--runtime=60"}

// startLoad starts fio and waits until it is well under way.
func startLoad(t testing.TB, s service) *tool {
	t.Helper()
	c := startFio(t, s.uri, load...)
	before := s.attach.status().NBD.Total
	eventually(t, "load", func() (any, bool) {
		now := s.attach.status().NBD.Total
		return c.output(), now.Reads > before.Reads+500 && now.Writes > before.Writes+500
	})
	return c
}

// failed waits for a client that must fail.
func failed(t testing.TB, c *tool) {
	t.Helper()
	if code := c.wait(t, endLimit); code == 0 {
		t.Errorf("%s: succeeded", c)
	}
}

// TestTargetCrashesUnderLoad is about a disk that does not wait for its target.
func TestTargetCrashesUnderLoad(t *testing.T) {
	s := impatientWay.serve(t, program(t), disk{"disk", "memory:16MiB"})
	idle := s.attach.files()
	k := connect(t, s.uri)
	k.ask("read 0 4096", "ok")
	c := startLoad(t, s)
	s.target.crash()
	failed(t, c)
	if !strings.Contains(c.output(), "Input/output error") {
		t.Errorf("fio does not see EIO: %s", c.output())
	}
	for range 3 {
		k.ask("read 0 4096", "EIO")
		k.ask("write 0 65536", "EIO")
		k.ask("flush", "EIO")
	}
	// Whoever comes later is told as well.
	late := startTool(t, "nbdsh", "-u", s.uri, "-c", "h.pread(512, 0)")
	failed(t, late)
	k.leave()
	s.idle(t)
	if st := s.attach.status().Initiators[0]; st.Connected || st.Error == "" {
		t.Errorf("the initiator does not know that its target is gone: %+v", st)
	}
	eventually(t, "files of the dead session being closed", func() (any, bool) {
		n := s.attach.files()
		return fmt.Sprintf("%d open, %d when idle", n, idle), n <= idle
	})
	s.attach.stop()
}

// TestInitiatorCrashesUnderLoad looks at what a target keeps of initiators that
// are gone: nothing.
func TestInitiatorCrashesUnderLoad(t *testing.T) {
	for _, b := range []struct {
		name   string
		binary string
		rss    bool // memory is compared
	}{{"as tested", program(t), false}, {"without race detector", plain(t), true}} {
		t.Run(b.name, func(t *testing.T) {
			p := startTarget(t, b.binary, "via+shm:///?socket="+filepath.Join(folder(t), "v"), disk{"disk", "memory:16MiB"})
			round := func() {
				a := attachDisk(t, b.binary, p, "disk")
				c := startLoad(t, service{a.uri("disk", "nbd+unix"), p, a})
				a.crash()
				failed(t, c)
			}
			// The disk is memory, too: all of it is touched now.
			a := attachDisk(t, b.binary, p, "disk")
			fio(t, a.uri("disk", "nbd+unix"), "--rw=write", "--bs=1m", "--size=16m")
			a.stop()
			// The first rounds touch what else stays: the heap, stacks.
			const rounds = 6
			for range rounds {
				round()
			}
			targetIdle(t, p)
			files, rss := p.files(), p.memory("VmRSS")
			for range rounds {
				round() // attaches at once, while the last one's remains are cleared away
			}
			targetIdle(t, p)
			eventually(t, "files of dead sessions being closed", func() (any, bool) {
				n := p.files()
				return fmt.Sprintf("%d open, %d before", n, files), n <= files
			})
			t.Logf("resident: %d KiB after half of the rounds, %d KiB after all", rss>>10, p.memory("VmRSS")>>10)
			if b.rss {
				eventually(t, "memory of dead sessions being free", func() (any, bool) {
					n := p.memory("VmRSS")
					return fmt.Sprintf("%d KiB resident, %d before", n>>10, rss>>10), n <= rss+4<<20
				})
			}
			a = attachDisk(t, b.binary, p, "disk")
			connect(t, a.uri("disk", "nbd+unix")).ask("write 0 4096", "ok")
		})
	}
}

func TestTargetDrainsUnderLoad(t *testing.T) {
	for _, w := range impatientWays {
		t.Run(w.name, func(t *testing.T) {
			t.Parallel()
			s := w.serve(t, program(t), disk{"disk", "memory:16MiB"})
			c := startLoad(t, s)
			s.target.stop()
			failed(t, c)
			if s.attach != s.target {
				s.attach.stop()
			}
		})
	}
}

func TestAttachDrainsUnderLoad(t *testing.T) {
	s := chainWay.serve(t, program(t), disk{"disk", "memory:16MiB"})
	c := startLoad(t, s)
	s.attach.stop()
	failed(t, c)
	targetIdle(t, s.target)
}

// TestDrainFinishesRequests asks a slow disk: a request that is under way when
// the signal comes is answered, as a disk that is pulled would not.
func TestDrainFinishesRequests(t *testing.T) {
	for _, w := range ways {
		t.Run(w.name, func(t *testing.T) {
			t.Parallel()
			s := w.serve(t, program(t), disk{"disk", "delay:read=1500ms:memory:1MiB"})
			k := connect(t, s.uri)
			k.send("read 0 4096")
			time.Sleep(200 * time.Millisecond) // it is under way; earlier is as well
			s.target.signal(syscall.SIGTERM)
			k.expect("ok")
			if code := s.target.exitCode(); code != 0 {
				t.Errorf("exit code %d\n%s", code, s.target.output())
			}
		})
	}
}

func TestSecondSignalEndsAtOnce(t *testing.T) {
	for _, w := range impatientWays {
		t.Run(w.name, func(t *testing.T) {
			t.Parallel()
			s := w.serve(t, program(t), disk{"disk", "delay:read=10m:memory:1MiB"})
			k := connect(t, s.uri)
			k.send("read 0 4096")
			eventually(t, "a request under way", func() (any, bool) {
				st := s.attach.status()
				return st, len(st.NBD.Connections) == 1 && st.NBD.Connections[0].Receives > 0
			})
			s.target.signal(syscall.SIGTERM)
			eventually(t, "draining", func() (any, bool) {
				st := s.target.status()
				return st, st.NBD != nil && st.NBD.Draining || len(st.Targets) > 0 && st.Targets[0].Draining
			})
			at := time.Now()
			s.target.signal(syscall.SIGTERM)
			code := s.target.exitCode()
			if took := time.Since(at); code == 0 || took > 10*time.Second {
				t.Errorf("exit code %d after %v\n%s", code, took, s.target.output())
			}
			if !strings.Contains(s.target.stderr.String(), "second signal") {
				t.Errorf("no word about it: %s", s.target.stderr.String())
			}
			k.leave()
		})
	}
}

// TestClientDiesInMiddleOfRequest kills clients while the disk works for them.
func TestClientDiesInMiddleOfRequest(t *testing.T) {
	for _, w := range ways {
		t.Run(w.name, func(t *testing.T) {
			t.Parallel()
			s := w.serve(t, program(t), disk{"disk", "delay:read=2s:memory:16MiB"})
			witness := connect(t, s.uri)
			c := startFio(t, s.uri, "--rw=randread", "--bs=1m", "--iodepth=8", "--size=16m")
			k := startTool(t, "qemu-io", "-r", "-f", "raw", s.uri, "-c", "aio_read 0 4M", "-c", "read 4M 4M")
			eventually(t, "two clients amid requests", func() (any, bool) {
				st := s.attach.status().NBD
				ready := len(st.Connections) == 3
				for _, x := range st.Connections[min(1, len(st.Connections)):] {
					ready = ready && x.Receives > 0
				}
				return st, ready
			})
			c.kill()
			k.kill()
			witness.ask("write 0 65536", "ok")
			witness.ask("flush", "ok")
			eventually(t, "one client", func() (any, bool) {
				st := s.attach.status()
				return st.NBD.Connections, len(st.NBD.Connections) == 1
			})
		})
	}
}
