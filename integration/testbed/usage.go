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

// loopFiles are the descriptors of a loop. It stays, and when a process needs
// another one is by chance.
const loopFiles = 4

// edgeTimer is a line about the epoll set of a loop, which alone watches a file
// for edges of EPOLLIN and nothing else: its timer.
var edgeTimer = regexp.MustCompile(`(?m)^tfd: +[0-9]+ events: +80000019 `)

// Files counts the open file descriptors of the process, without those of its
// loops.
func (p *Process) Files() int {
	p.t.Helper()
	return p.files(func(string) bool { return true })
}

// files counts descriptors of such files, without those of loops.
func (p *Process) files(such func(name string) bool) (n int) {
	p.t.Helper()
	folder := fmt.Sprintf("/proc/%d/", p.PID())
	entries, err := os.ReadDir(folder + "fd")
	Must(p.t, err)
	for _, e := range entries {
		name, err := os.Readlink(folder + "fd/" + e.Name())
		if err == nil && such(name) {
			n++
		}
		if name == "anon_inode:[eventpoll]" {
			if watched, _ := os.ReadFile(folder + "fdinfo/" + e.Name()); edgeTimer.Match(watched) {
				n -= loopFiles
			}
		}
	}
	return n
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

// FilesButSockets is Files without sockets: those of an address stay until it
// is closed.
func (p *Process) FilesButSockets() int {
	p.t.Helper()
	return p.files(func(name string) bool { return !strings.HasPrefix(name, "socket:") })
}
