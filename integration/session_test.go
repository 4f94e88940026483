package integration

import (
	"path/filepath"
	"syscall"
	"testing"
)

// twoDisks starts a target with two disks and attaches both.
func twoDisks(t *testing.T, size string) (p *process, uris [2]string) {
	t.Helper()
	names := [2]string{"one", "two"}
	p = startTarget(t, program(t), "via+shm:///?socket="+filepath.Join(folder(t), "v"),
		disk{names[0], "memory:" + size}, disk{names[1], "memory:" + size})
	for i, name := range names {
		uris[i] = attachDisk(t, program(t), p, name).uri(name, "nbd+unix")
	}
	return p, uris
}

func TestTwoInitiatorsVerifyAtOnce(t *testing.T) {
	_, uris := twoDisks(t, "32MiB")
	var jobs [2]*tool
	for i, uri := range uris {
		jobs[i] = startFio(t, uri, withVerify("--rw=randrw", "--bsrange=4k-256k", "--iodepth=32", "--size=32m")...)
	}
	for _, j := range jobs {
		succeed(t, j)
	}
}

// TestTwoInitiatorsKeepApart writes different data to two disks at once.
func TestTwoInitiatorsKeepApart(t *testing.T) {
	_, uris := twoDisks(t, "24MiB")
	both := randomBytes(48 << 20)
	data := [2][]byte{both[:24<<20], both[24<<20:]}
	var copies [2]*tool
	for i, uri := range uris {
		copies[i] = startTool(t, "nbdcopy", "--flush", writeFile(t, "source", data[i]), uri)
	}
	for i, c := range copies {
		succeed(t, c)
		back := writeFile(t, "back", nil)
		run(t, "nbdcopy", uris[i], back)
		checkFile(t, back, data[i])
	}
}

func TestOneWriterPerExport(t *testing.T) {
	p := startTarget(t, program(t), "via+shm:///?socket="+filepath.Join(folder(t), "v"), disk{"disk", "memory:1MiB"})
	first := attachDisk(t, program(t), p, "disk")
	writer := connect(t, first.uri("disk", "nbd+unix"))
	writer.ask("write 0 4096", "ok")

	second := []string{"attach", p.uri("disk", "via+shm"), "--admin", "none", "--nbd", "nbd+unix:///x?socket=" + filepath.Join(folder(t), "n")}
	refused(t, 75, "another session has the export open for writing; attach it read-only", second...)

	// A reader may look on.
	reader := attachDisk(t, program(t), p, "disk", "--read-only")
	connect(t, reader.uri("disk", "nbd+unix")).ask("read 0 4096", "ok")
	writer.ask("write 4096 4096", "ok")

	// The export is free when its writer is gone.
	writer.leave()
	first.stop()
	next := attachDisk(t, program(t), p, "disk")
	connect(t, next.uri("disk", "nbd+unix")).ask("write 0 4096", "ok")
}

// TestAttachServesTCP has the system choose a port, which the ready line tells.
func TestAttachServesTCP(t *testing.T) {
	p := startTarget(t, program(t), "via+shm:///?socket="+filepath.Join(folder(t), "v"), disk{"disk", "memory:8MiB"})
	a := start(t, "attach", p.uri("disk", "via+shm"), "--nbd", "nbd://127.0.0.1:0/mine", "--admin", filepath.Join(folder(t), "a"))
	fio(t, a.uri("mine", "nbd"), withVerify("--rw=randrw", "--bsrange=4k-256k", "--iodepth=16", "--size=8m")...)
}

// TestClientsComeAndGo connects again and again, one client at once after the
// other: what the last one had may not be in the way of the next.
func TestClientsComeAndGo(t *testing.T) {
	requires(t, "nbdsh")
	eachWay(t, memoryDisk("1MiB"), func(t *testing.T, s service) {
		files := s.attach.files()
		out := succeed(t, startPath(t, nil, locate("python3"), "testdata/comeandgo.py", s.uri, "500"))
		if out != "" {
			t.Errorf("of 500 clients:\n%s", out)
		}
		s.idle(t)
		eventually(t, "files of clients being closed", func() (any, bool) {
			n := s.attach.files()
			return n, n <= files
		})
	})
}

// TestInitiatorsComeAndGo attaches again and again.
func TestInitiatorsComeAndGo(t *testing.T) {
	p := startTarget(t, program(t), "via+shm:///?socket="+filepath.Join(folder(t), "v"), disk{"disk", "memory:1MiB"})
	for range 10 {
		a := attachDisk(t, program(t), p, "disk")
		k := connect(t, a.uri("disk", "nbd+unix"))
		k.ask("write 0 65536", "ok")
		k.leave()
		a.stop()
	}
	targetIdle(t, p)
}

// idle waits until no client is connected any more.
func (s service) idle(t testing.TB) {
	t.Helper()
	eventually(t, "no client", func() (any, bool) {
		st := s.attach.status()
		return st.NBD, len(st.NBD.Connections) == 0
	})
}

// targetIdle waits until a target has no initiator any more.
func targetIdle(t testing.TB, p *process) {
	t.Helper()
	eventually(t, "a target without initiators", func() (any, bool) {
		st := p.status().Targets[0]
		opens := 0
		for _, x := range st.Exports {
			opens += x.Opens
		}
		return st, st.Connections == 0 && st.Sessions == 0 && opens == 0
	})
}

// TestOrdinaryEndIsNoError looks for alarms in the logs of processes that were
// told to end.
func TestOrdinaryEndIsNoError(t *testing.T) {
	for _, w := range ways {
		t.Run(w.name, func(t *testing.T) {
			t.Parallel()
			s := w.serve(t, program(t), disk{"disk", "memory:1MiB"})
			k := connect(t, s.uri)
			k.ask("write 0 4096", "ok")
			k.leave()
			for _, p := range []*process{s.attach, s.target} {
				if p.waited {
					continue
				}
				p.signal(syscall.SIGTERM)
				if code := p.exitCode(); code != 0 {
					t.Errorf("%s: exit code %d", p, code)
				}
				if alarm.MatchString(p.stderr.String()) {
					t.Errorf("%s raises an alarm:\n%s", p, p.stderr.String())
				}
			}
		})
	}
}
