//go:build foreign

package nbdsuite

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
	s.cmd = exec.Command(program(t, fast(t)), append(args, "--admin", "none", "-o", "json")...)
	s.cmd.Env = environment()
	var err error
	s.stderr, err = os.CreateTemp(scratch, "log")
	must(t, err)
	s.cmd.Stderr = s.stderr
	out, in, err := os.Pipe()
	must(t, err)
	s.cmd.Stdout = in
	must(t, start(s.cmd))
	in.Close()
	go func() {
		_ = s.cmd.Wait()
		close(s.ended)
	}()
	t.Cleanup(func() { s.stop(t) })
	must(t, out.SetReadDeadline(time.Now().Add(serverLimit)))
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

// fast returns which program serves a case: without race detector if it is a long
// one.
func fast(t *testing.T) func() (string, error) {
	if slices.Contains(long, path.Base(t.Name())) {
		return plain
	}
	return viablk
}

// log returns the end of what the server wrote to standard error.
func (s *server) log() string {
	text, _ := os.ReadFile(s.stderr.Name())
	return tail(string(text))
}

// isDisaster reports whether a server wrote what none may write.
func isDisaster(text string) bool {
	text = "\n" + text
	return slices.ContainsFunc([]string{"DATA RACE", "\npanic: ", "\nfatal error: ", "unexpected fault address"}, func(what string) bool {
		return strings.Contains(text, what)
	})
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
	if code := s.cmd.ProcessState.ExitCode(); code != 0 || isDisaster(text) {
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

// folder makes a folder for sockets, whose paths the kernel limits to 107 bytes.
func folder(t *testing.T) string {
	t.Helper()
	path, err := os.MkdirTemp("", "ns")
	must(t, err)
	t.Cleanup(func() { os.RemoveAll(path) })
	return path
}

// disk is an export to be served.
type disk struct{ name, spec string }

// file returns a disk that is a file of zeroes.
func file(t *testing.T, name string, size int64, options string) disk {
	t.Helper()
	path := filepath.Join(t.TempDir(), name)
	f, err := os.Create(path)
	must(t, err)
	must(t, f.Truncate(size))
	must(t, f.Close())
	return disk{name, "file:" + path + options}
}

// way is a way in which a disk comes to its NBD clients. at is the NBD URI to listen
// at, without an export, or empty: then the command is returned that serves one client
// on its standard input.
type way struct {
	name  string
	serve func(t *testing.T, d disk, at string, options ...string) (s *server, command []string)
}

// ways are without VIA, and through it: a target, and an initiator's NBD server.
var ways = []way{
	{"target", func(t *testing.T, d disk, at string, options ...string) (*server, []string) {
		args := append([]string{"target", "--export", d.name + "=" + d.spec}, options...)
		if at == "" {
			return nil, append([]string{program(t, viablk)}, append(args, "--stdio", "--admin", "none")...)
		}
		return serve(t, append(args, "--listen", at)...), nil
	}},
	{"chain", func(t *testing.T, d disk, at string, options ...string) (*server, []string) {
		listen := "via+shm:///?socket=" + filepath.Join(folder(t), "v")
		remote := serve(t, "target", "--export", d.name+"="+d.spec, "--listen", listen).uri(t, d.name, "via+shm")
		args := append([]string{"attach", remote}, options...)
		if at == "" {
			return nil, append([]string{program(t, viablk)}, append(args, "--stdio", "--admin", "none")...)
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
	must(t, err)
	return host, port
}
