package testbed

import (
	"fmt"
	"os"
	"regexp"
	"strconv"
	"strings"
	"time"
)

// Memory returns a value of the process's memory by its name in
// /proc/PID/status, in bytes.
func (p *Process) Memory(name string) int64 {
	p.t.Helper()
	text, err := os.ReadFile("/proc/" + strconv.Itoa(p.PID()) + "/status")
	Must(p.t, err)
	found := regexp.MustCompile(`(?m)^` + name + `:\s+(\d+) kB$`).FindSubmatch(text)
	if found == nil {
		p.t.Fatalf("no %s in the status of process %d", name, p.PID())
	}
	n, err := strconv.ParseInt(string(found[1]), 10, 64)
	Must(p.t, err)
	return n << 10
}

// Threads counts the threads of the process.
func (p *Process) Threads() int {
	p.t.Helper()
	entries, err := os.ReadDir("/proc/" + strconv.Itoa(p.PID()) + "/task")
	Must(p.t, err)
	return len(entries)
}

// Files counts the open file descriptors of the process.
func (p *Process) Files() int {
	p.t.Helper()
	entries, err := os.ReadDir("/proc/" + strconv.Itoa(p.PID()) + "/fd")
	Must(p.t, err)
	return len(entries)
}

// ProcessorTime returns the processor time that the process has used, user and
// system (proc(5)).
func (p *Process) ProcessorTime() time.Duration {
	p.t.Helper()
	text, err := os.ReadFile("/proc/" + strconv.Itoa(p.PID()) + "/stat")
	Must(p.t, err)
	_, rest, _ := strings.Cut(string(text), ") ") // behind the name
	fields := strings.Fields(rest)
	const ticks = 100 // a second, in what proc(5) shows on every architecture
	sum := 0
	for _, f := range fields[11:13] {
		n, err := strconv.Atoi(f)
		Must(p.t, err)
		sum += n
	}
	return time.Duration(sum) * time.Second / ticks
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
