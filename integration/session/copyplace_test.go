package session

import (
	"debug/elf"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/viablk/viablk/integration/testbed"
)

// copies are the functions with which a target copies, as they lie in a
// program.
type copies []elf.Symbol

// copiesOf returns those of a program.
func copiesOf(t *testing.T, program string) copies {
	t.Helper()
	f, err := elf.Open(program)
	testbed.Must(t, err)
	defer func() { testbed.Must(t, f.Close()) }()
	all, err := f.Symbols()
	testbed.Must(t, err)
	var found copies
	for _, s := range all {
		switch strings.TrimSuffix(s.Name, ".abi0") {
		case "runtime.memmove", "github.com/viablk/viablk/via/shm.moveString":
			found = append(found, s)
		}
	}
	if len(found) == 0 {
		t.Fatalf("%s has no function that copies", program)
	}
	return found
}

// stopInside stops a process and reports whether one of its threads is inside a
// copy. If none is, it continues the process.
func (c copies) stopInside(t testing.TB, p *testbed.Process) bool {
	t.Helper()
	p.Signal(syscall.SIGSTOP)
	threads := fmt.Sprintf("/proc/%d/task", p.PID())
	testbed.Eventually(t, "the stop of all threads", func() (any, bool) {
		states := c.look(threads, "stat", func(line string) bool {
			state := line[strings.LastIndexByte(line, ')')+1:]
			return !strings.HasPrefix(state, " T")
		})
		return states, states == 0
	})
	if c.look(threads, "syscall", c.inside) > 0 {
		return true
	}
	p.Signal(syscall.SIGCONT)
	return false
}

// look counts the threads of whose file is returns true.
func (c copies) look(threads, file string, is func(string) bool) (n int) {
	all, _ := filepath.Glob(filepath.Join(threads, "*", file))
	for _, name := range all {
		text, err := os.ReadFile(name)
		if err == nil && is(strings.TrimSpace(string(text))) {
			n++
		}
	}
	return n
}

// inside reports whether a thread that is not in a system call is in one of the
// functions: its line in /proc is -1, the stack pointer, and where it is.
func (c copies) inside(line string) bool {
	fields := strings.Fields(line)
	if len(fields) != 3 || fields[0] != "-1" {
		return false
	}
	at, err := strconv.ParseUint(fields[2], 0, 64)
	for _, s := range c {
		if err == nil && at >= s.Value && at < s.Value+s.Size {
			return true
		}
	}
	return false
}
