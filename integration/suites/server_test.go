//go:build suites

package suites

import (
	"encoding/json"
	"io"
	"net"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/viablk/viablk/integration/testbed"
)

// serverLimit is how long a server may take to be ready, and to end.
const serverLimit = time.Minute

// server is a viablk process that serves.
type server struct {
	cmd     *exec.Cmd
	ended   chan struct{}
	stderr  *os.File
	exports []struct {
		Name string   `json:"name"`
		URIs []string `json:"uris"`
	}
}

// serve starts viablk. When the test ends, it gets SIGTERM and has to succeed.
func serve(t *testing.T, args ...string) *server {
	t.Helper()
	s := &server{ended: make(chan struct{})}
	s.cmd = exec.Command(fast(t), append(args, "--admin", "none", "-o", "json")...)
	s.cmd.Env = environment()
	var err error
	s.stderr, err = os.CreateTemp(scratch, "log")
	testbed.Must(t, err)
	s.cmd.Stderr = s.stderr
	out, in, err := os.Pipe()
	testbed.Must(t, err)
	s.cmd.Stdout = in
	testbed.Must(t, testbed.StartCommand(s.cmd))
	in.Close()
	go func() {
		_ = s.cmd.Wait()
		close(s.ended)
	}()
	t.Cleanup(func() { s.stop(t) })
	testbed.Must(t, out.SetReadDeadline(time.Now().Add(serverLimit)))
	var ready struct {
		Exports json.RawMessage `json:"exports"`
	}
	err = json.NewDecoder(out).Decode(&ready)
	if err == nil {
		err = json.Unmarshal(ready.Exports, &s.exports)
	}
	if err != nil {
		t.Fatalf("%s is not ready: %v\n%s", s.cmd, err, s.log())
	}
	go func() { // whatever else it prints
		_, _ = io.Copy(io.Discard, out)
		out.Close()
	}()
	return s
}

// long are the cases that move gigabytes.
var long = []string{"integrityhuge", "tlshuge", "197", "215"}

// fast returns the program that serves a case: without race detector if it is a
// long one.
func fast(t *testing.T) string {
	if slices.Contains(long, path.Base(t.Name())) {
		return testbed.PlainProgram(t)
	}
	return testbed.Program(t)
}

// log returns the end of what the server wrote to standard error.
func (s *server) log() string {
	text, _ := os.ReadFile(s.stderr.Name())
	return tail(string(text))
}

// stop ends the server.
func (s *server) stop(t *testing.T) {
	_ = s.cmd.Process.Signal(syscall.SIGTERM)
	select {
	case <-s.ended:
	case <-time.After(serverLimit):
		t.Errorf("%s does not end", s.cmd)
		_ = s.cmd.Process.Kill()
		<-s.ended
	}
	text := s.log()
	if code := s.cmd.ProcessState.ExitCode(); code != 0 || testbed.IsDisaster(text) {
		t.Errorf("%s: exit code %d\n%s", s.cmd, code, text)
	} else if t.Failed() {
		t.Logf("%s wrote:\n%s", s.cmd, text)
	}
	s.stderr.Close()
}

// uri returns the URI with that scheme of an export.
func (s *server) uri(t *testing.T, export, scheme string) string {
	t.Helper()
	for _, e := range s.exports {
		for _, u := range e.URIs {
			if e.Name == export && strings.HasPrefix(u, scheme+"://") {
				return u
			}
		}
	}
	t.Fatalf("no %s URI of %q in %+v", scheme, export, s.exports)
	return ""
}

// disk is an export to be served.
type disk struct{ name, spec string }

// file returns a disk that is a file of zeroes.
func file(t *testing.T, name string, size int64, options string) disk {
	t.Helper()
	path := filepath.Join(t.TempDir(), name)
	f, err := os.Create(path)
	testbed.Must(t, err)
	testbed.Must(t, f.Truncate(size))
	testbed.Must(t, f.Close())
	return disk{name, "file:" + path + options}
}

// way is a way in which a disk comes to its NBD clients. at is the NBD URI to
// listen at, without an export, or empty: then the command is returned that
// serves one client on its standard input.
type way struct {
	name  string
	serve func(t *testing.T, d disk, at string, options ...string) (s *server, command []string)
}

// ways are without VIA, and through it: a target, and an initiator's NBD
// server.
var ways = []way{
	{"target", func(t *testing.T, d disk, at string, options ...string) (*server, []string) {
		args := append([]string{"target", "--export", d.name + "=" + d.spec}, options...)
		if at == "" {
			return nil, append([]string{testbed.Program(t)}, append(args, "--stdio", "--admin", "none")...)
		}
		return serve(t, append(args, "--listen", at)...), nil
	}},
	{"chain", func(t *testing.T, d disk, at string, options ...string) (*server, []string) {
		listen := "via+shm:///?socket=" + filepath.Join(testbed.Folder(t), "v")
		remote := serve(t, "target", "--export", d.name+"="+d.spec, "--listen", listen).uri(t, d.name, "via+shm")
		args := append([]string{"attach", remote}, options...)
		if at == "" {
			return nil, append([]string{testbed.Program(t)}, append(args, "--stdio", "--admin", "none")...)
		}
		return serve(t, append(args, "--nbd", strings.Replace(at, ":///", ":///"+d.name, 1)+suffix(at, d.name))...), nil
	}},
}

// suffix is the export behind a URI that ends with its authority.
func suffix(at, name string) string {
	if strings.HasPrefix(at, "nbd+unix") {
		return ""
	}
	return name
}

// hostPort returns host and port of an NBD URI.
func hostPort(t *testing.T, uri string) (host, port string) {
	t.Helper()
	_, rest, _ := strings.Cut(uri, "://")
	address, _, _ := strings.Cut(rest, "/")
	host, port, err := net.SplitHostPort(address)
	testbed.Must(t, err)
	return host, port
}
