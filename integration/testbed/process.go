package testbed

import (
	"encoding/json"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"
)

// Process is a viablk process that serves.
type Process struct {
	*Tool
	t      testing.TB
	ready  Status
	killed bool // on purpose: it could not clean up
	Waited bool // the test looked at the exit code
}

// Folder makes a folder for sockets, whose paths the kernel limits to 107
// bytes.
func Folder(t testing.TB) string {
	t.Helper()
	path, err := os.MkdirTemp("", "vb")
	Must(t, err)
	t.Cleanup(func() {
		if err := os.RemoveAll(path); err != nil {
			t.Error(err)
		}
	})
	return path
}

// Environment is what a process gets besides its arguments: places of its own.
func Environment(t testing.TB) []string {
	place := Folder(t)
	Must(t, os.Mkdir(filepath.Join(place, "tmp"), 0o700))
	return []string{"XDG_RUNTIME_DIR=" + place, "TMPDIR=" + filepath.Join(place, "tmp")}
}

// Start starts a viablk process and waits until it is ready. When the test
// ends, the process gets SIGTERM, must succeed, and must leave nothing behind.
func Start(t testing.TB, args ...string) *Process {
	t.Helper()
	return StartBinary(t, Program(t), args...)
}

// StartBinary is Start for one of the binaries.
func StartBinary(t testing.TB, path string, args ...string) *Process {
	t.Helper()
	return StartBinaryAt(t, StartCommand, path, args...)
}

// StartBinaryAt is StartBinary at a place.
func StartBinaryAt(t testing.TB, at Place, path string, args ...string) *Process {
	t.Helper()
	if len(args) > 0 && args[0] == "target" && !slices.Contains(args, "--keepalive") {
		args = append(slices.Clone(args), "--keepalive", slowKeepalive)
	}
	env := Environment(t)
	p := &Process{t: t, Tool: StartPathAt(t, at, env, path, append(args, "-o", "json")...)}
	t.Cleanup(func() {
		p.finish()
		p.checkLog()
		p.checkPlaces(strings.TrimPrefix(env[0], "XDG_RUNTIME_DIR="))
	})
	Eventually(t, p.String()+" being ready", func() (any, bool) {
		select {
		case <-p.Ended:
			t.Fatalf("%s: exit code %d\n%s", p, p.code, p.Output())
		default:
		}
		err := json.NewDecoder(strings.NewReader(p.Stdout.String())).Decode(&p.ready)
		if err != nil && err != io.EOF && err != io.ErrUnexpectedEOF {
			t.Fatalf("%s: ready line: %v\n%s", p, err, p.Output())
		}
		return p.Output(), err == nil
	})
	if p.ready.PID != p.PID() {
		t.Fatalf("%s: says that it is process %d, not %d", p, p.ready.PID, p.PID())
	}
	return p
}

// slowKeepalive is the keepalive of targets whose test is not about it: many
// programs share the machine, and no peer dies because it is slow.
const slowKeepalive = "1500ms"

func (p *Process) PID() int { return p.Cmd.Process.Pid }

// URI returns the URI with that scheme of an export.
func (p *Process) URI(export, scheme string) string {
	p.t.Helper()
	for _, e := range p.ready.Exports {
		for _, u := range e.URIs {
			if e.Name == export && strings.HasPrefix(u, scheme+"://") {
				return u
			}
		}
	}
	p.t.Fatalf("%s: no %s URI of export %q in %+v", p, scheme, export, p.ready.Exports)
	return ""
}

// Metrics returns the address of the listener for metrics.
func (p *Process) Metrics() string {
	p.t.Helper()
	_, address, found := strings.Cut(p.ready.Metrics, "://")
	if !found {
		p.t.Fatalf("%s: no listener for metrics: %q", p, p.ready.Metrics)
	}
	return address
}

// Signal sends a signal.
func (p *Process) Signal(s syscall.Signal) {
	p.t.Helper()
	p.killed = p.killed || s == syscall.SIGKILL
	KillProcess(p.t, p.PID(), s)
}

// EndLimit is how long a process may take to end, on a machine that others
// load.
const EndLimit = time.Minute

// ExitCode waits for the end of the process.
func (p *Process) ExitCode() int {
	p.t.Helper()
	p.Waited = true
	return p.Wait(p.t, EndLimit)
}

// Stop ends the process, which must succeed.
func (p *Process) Stop() {
	p.t.Helper()
	p.Signal(syscall.SIGTERM)
	if code := p.ExitCode(); code != 0 {
		p.t.Fatalf("%s: exit code %d after SIGTERM\n%s", p, code, p.Output())
	}
}

// Crash kills the process.
func (p *Process) Crash() {
	p.t.Helper()
	p.Signal(syscall.SIGKILL)
	p.ExitCode()
}

// Stacks ends the process, which prints where its goroutines are.
func (p *Process) Stacks() string {
	p.killed, p.Waited = true, true
	KillProcess(p.t, p.PID(), syscall.SIGQUIT)
	select {
	case <-p.Ended:
	case <-time.After(EndLimit):
		p.Kill()
	}
	return p.Stderr.String()
}

// finish ends the process if the test did not. A process that does not end
// prints its stacks.
func (p *Process) finish() {
	if p.Waited {
		return
	}
	KillProcess(p.t, p.PID(), syscall.SIGTERM)
	select {
	case <-p.Ended:
	case <-time.After(EndLimit):
		p.t.Errorf("%s did not end after SIGTERM\n%s", p, p.Stacks())
		return
	}
	if p.code != 0 {
		p.t.Errorf("%s: exit code %d\n%s", p, p.code, p.Output())
	}
}

// disaster is what no log may contain.
var disaster = regexp.MustCompile(`(?m)DATA RACE|^panic: |^fatal error: |^goroutine \d+ |unexpected fault address`)

// IsDisaster reports whether a process wrote what no log may contain.
func IsDisaster(text string) bool { return disaster.MatchString(text) }

// checkLog fails the test if the process reports a bug of its own.
func (p *Process) checkLog() {
	if text := p.Stderr.String(); IsDisaster(text) {
		at := disaster.FindStringIndex(text)[0]
		p.t.Errorf("%s:\n%s", p, text[at:min(len(text), at+8<<10)])
	} else if p.t.Failed() {
		p.t.Logf("%s wrote:\n%s", p, text[:min(len(text), 8<<10)])
	}
}

// checkPlaces fails the test if the process left files behind.
func (p *Process) checkPlaces(place string) {
	if p.killed {
		return
	}
	for _, e := range p.ready.Exports {
		for _, u := range e.URIs {
			_, path, found := strings.Cut(u, "socket=")
			if _, err := os.Lstat(path); found && err == nil {
				p.t.Errorf("%s left its socket %s behind", p, path)
			}
		}
	}
	err := filepath.WalkDir(place, func(path string, d fs.DirEntry, err error) error {
		if err == nil && (!d.IsDir() || strings.HasPrefix(d.Name(), "viablk-")) {
			p.t.Errorf("%s left %s behind", p, path)
		}
		return err
	})
	if err != nil {
		p.t.Error(err)
	}
}
