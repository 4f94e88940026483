package testbed

import (
	"fmt"
	"os"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// Memory returns a value of the process's memory by its name in
// /proc/PID/status, in bytes.
func (p *Process) Memory(name string) int64 {
	p.t.Helper()
	return Memory(p.t, p.PID(), name)
}

// Memory returns a value of a process's memory by its name in /proc/PID/status,
// in bytes.
func Memory(t testing.TB, pid int, name string) int64 {
	t.Helper()
	text, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/status")
	Must(t, err)
	found := regexp.MustCompile(`(?m)^` + name + `:\s+(\d+) kB$`).FindSubmatch(text)
	if found == nil {
		t.Fatalf("no %s in the status of process %d", name, pid)
	}
	n, err := strconv.ParseInt(string(found[1]), 10, 64)
	Must(t, err)
	return n << 10
}

// Threads counts the threads of the process.
func (p *Process) Threads() int {
	p.t.Helper()
	return Threads(p.t, p.PID())
}

// Threads counts the threads of a process.
func Threads(t testing.TB, pid int) int {
	t.Helper()
	entries, err := os.ReadDir("/proc/" + strconv.Itoa(pid) + "/task")
	Must(t, err)
	return len(entries)
}

// Files counts the open file descriptors of the process.
func (p *Process) Files() int {
	p.t.Helper()
	entries, err := os.ReadDir("/proc/" + strconv.Itoa(p.PID()) + "/fd")
	Must(p.t, err)
	return len(entries)
}

// ProcessorTime returns the processor time that the process has used.
func (p *Process) ProcessorTime() time.Duration {
	p.t.Helper()
	return ProcessorTime(p.t, p.PID())
}

// ProcessorTime returns the processor time that a process has used, user and
// system, with that of its threads that have ended.
func ProcessorTime(t testing.TB, pid int) time.Duration {
	t.Helper()
	const scheduled = 2 // CPUCLOCK_SCHED; see clock_getcpuclockid(3)
	var used unix.Timespec
	Must(t, unix.ClockGettime(int32(^pid<<3|scheduled), &used))
	return time.Duration(used.Nano())
}

// FilesButSockets counts the open file descriptors of the process that are no
// sockets: those of an address stay until it is closed.
func (p *Process) FilesButSockets() (n int) {
	p.t.Helper()
	folder := fmt.Sprintf("/proc/%d/fd/", p.PID())
	entries, err := os.ReadDir(folder)
	Must(p.t, err)
	for _, e := range entries {
		if to, err := os.Readlink(folder + e.Name()); err == nil && !strings.HasPrefix(to, "socket:") {
			n++
		}
	}
	return n
}
