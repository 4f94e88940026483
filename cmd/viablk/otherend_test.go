package main

import (
	"bytes"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"
)

// familyOf returns the processes below one, which may be none.
func familyOf(parent int) []int {
	var family []int
	for c := childOf(parent); c != 0; c = childOf(c) {
		family = append(family, c)
	}
	return family
}

// pairOfProcesses is a benchmark that runs until it is stopped.
type pairOfProcesses struct {
	first  *exec.Cmd
	second int // process ID
	folder string
	stderr bytes.Buffer
}

// startPair starts a benchmark and waits until its data connection stands. The
// second process has answered the first then: it has done more than an answer
// takes.
func startPair(t *testing.T, arguments ...string) *pairOfProcesses {
	t.Helper()
	p := newPairOfProcesses(t, arguments...)
	eventually(t, "the second process has the data connection", func() bool {
		p.second = childOf(p.first.Process.Pid)
		return p.second != 0 && hasDataConnection(p.second)
	})
	const answer = 5 // of 10 ms
	before := processTime(p.second)
	eventually(t, "the second process measures", func() bool { return processTime(p.second) >= before+answer })
	return p
}

// processTime returns the processor time that a process has had, in clock
// ticks.
func processTime(pid int) (ticks int) {
	b, _ := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
	_, rest, _ := strings.Cut(string(b), ") ")
	if fields := strings.Fields(rest); len(fields) > 12 {
		user, _ := strconv.Atoi(fields[11])
		system, _ := strconv.Atoi(fields[12])
		ticks = user + system
	}
	return ticks
}

// hasDataConnection reports whether a process has mapped its data connection.
func hasDataConnection(pid int) bool {
	maps, _ := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/maps")
	// Two for the control connection, two for the data connection.
	return bytes.Count(maps, []byte("viablk-segment")) >= 4
}

// newPairOfProcesses starts a benchmark.
func newPairOfProcesses(t *testing.T, arguments ...string) *pairOfProcesses {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	p := &pairOfProcesses{folder: t.TempDir()}
	p.first = exec.Command(self)
	p.first.Args = append([]string{
		"viablk", "bench", "via", "--mode", "pingpong", "--sizes", "64",
		"--rounds", "1000", "--count", "10000000",
	}, arguments...)
	p.first.Env = append(os.Environ(), "TMPDIR="+p.folder)
	p.first.Stderr = &p.stderr
	if err := p.first.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = p.first.Process.Kill() }) // it has ended, unless the test failed
	return p
}

// eventually waits for what will happen.
func eventually(t *testing.T, what string, happened func() bool) {
	t.Helper()
	for deadline := time.Now().Add(waitTimeout); !happened(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("it never happened: %s", what)
		}
	}
}

// processState returns the parent and the state of a process; 0 and 'X' if
// there is none.
func processState(pid string) (parent int, state byte) {
	b, _ := os.ReadFile("/proc/" + pid + "/stat")
	_, rest, ok := strings.Cut(string(b), ") ")
	fields := strings.Fields(rest)
	if !ok || len(fields) < 2 {
		return 0, 'X'
	}
	parent, _ = strconv.Atoi(fields[1])
	return parent, fields[0][0]
}

// childOf returns a child of a process, or 0.
func childOf(parent int) int {
	all, _ := filepath.Glob("/proc/[0-9]*")
	for _, folder := range all {
		if p, _ := processState(filepath.Base(folder)); p == parent {
			pid, _ := strconv.Atoi(filepath.Base(folder))
			return pid
		}
	}
	return 0
}

// checkEnd waits for the first process, which must have the exit code and say
// want, and for the second; nothing may be left.
func (p *pairOfProcesses) checkEnd(t *testing.T, code int, want string) {
	t.Helper()
	err := p.first.Wait()
	var ended *exec.ExitError
	if !errors.As(err, &ended) || ended.ExitCode() != code {
		t.Errorf("the first process ended with %v, want exit code %d", err, code)
	}
	if got := p.stderr.String(); !strings.Contains(got, want) || strings.Count(got, "\n") > 1 {
		t.Errorf("it said %q, want one line with %q", got, want)
	}
	p.checkClean(t)
}

// checkClean waits until the second process has ended and the folder of the
// socket is gone. A process that was killed may stay as a zombie.
func (p *pairOfProcesses) checkClean(t *testing.T) {
	t.Helper()
	eventually(t, "the second process ends", func() bool {
		_, state := processState(strconv.Itoa(p.second))
		return state == 'X' || state == 'Z'
	})
	eventually(t, "the folder of the socket is gone", func() bool {
		left, err := os.ReadDir(p.folder)
		return err == nil && len(left) == 0
	})
}

func (p *pairOfProcesses) kill(t *testing.T, pid int, s syscall.Signal) {
	t.Helper()
	if err := syscall.Kill(pid, s); err != nil {
		t.Fatal(err)
	}
}

func TestSecondProcessOfBenchmarkDies(t *testing.T) {
	for _, wait := range []string{"poll", "spin", "sleep"} {
		t.Run(wait, func(t *testing.T) {
			p := startPair(t, "--wait", wait)
			p.kill(t, p.second, syscall.SIGKILL)
			p.checkEnd(t, exitFailure, "the other process stopped: signal: killed")
		})
	}
}

// Eight seconds without progress are more than busy processors bring about.
func TestSecondProcessOfBenchmarkHangs(t *testing.T) {
	for _, wait := range []string{"poll", "sleep"} {
		t.Run(wait, func(t *testing.T) {
			t.Parallel()
			p := startPair(t, "--wait", wait, "--timeout", "8s")
			p.kill(t, p.second, syscall.SIGSTOP)
			p.checkEnd(t, exitFailure, "no progress for 8s: the peer hangs")
		})
	}
}

func TestBenchmarkIsInterrupted(t *testing.T) {
	for _, s := range []syscall.Signal{syscall.SIGINT, syscall.SIGTERM} {
		p := startPair(t)
		p.kill(t, p.first.Process.Pid, s)
		p.checkEnd(t, 128+int(s), "stopped by "+s.String())
	}
}

// With a network of its own a benchmark is three processes: one that has the
// network, and the two ends. However it ends, nothing is left.
func TestBenchmarkOverNetworkEnds(t *testing.T) {
	for _, c := range []struct {
		name   string
		victim int // 0 has the network, 1 measures, 2 is the other end
		signal syscall.Signal
		code   int
		want   string
	}{
		{"told to", 0, syscall.SIGTERM, 128 + int(syscall.SIGTERM), "stopped by terminated"},
		{"killed", 0, syscall.SIGKILL, -1, ""},
		{"measuring end killed", 1, syscall.SIGKILL, 128 + int(syscall.SIGKILL), ""},
		{"other end killed", 2, syscall.SIGKILL, exitFailure, "the other process stopped: signal: killed"},
	} {
		t.Run(c.name, func(t *testing.T) {
			p := newPairOfProcesses(t, "--veth", "1500")
			var family []int
			eventually(t, "three processes measure", func() bool {
				family = append([]int{p.first.Process.Pid}, familyOf(p.first.Process.Pid)...)
				return len(family) == 3 && hasDataConnection(family[2])
			})
			p.kill(t, family[c.victim], c.signal)
			_ = p.first.Wait() // the code says it
			if code := p.first.ProcessState.ExitCode(); code != c.code {
				t.Errorf("the exit code is %d, want %d", code, c.code)
			}
			if got := p.stderr.String(); !strings.Contains(got, c.want) || strings.Count(got, "\n") > 1 {
				t.Errorf("it said %q, want one line with %q", got, c.want)
			}
			for _, pid := range family {
				p.second = pid
				p.checkClean(t)
			}
		})
	}
}

func TestFirstProcessOfBenchmarkIsKilled(t *testing.T) {
	p := startPair(t, "--wait", "poll")
	p.kill(t, p.first.Process.Pid, syscall.SIGKILL)
	_ = p.first.Wait() // it was killed
	p.checkClean(t)
}
