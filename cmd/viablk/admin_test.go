package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"
	"unicode"

	"github.com/viablk/viablk/initiator"
	"github.com/viablk/viablk/internal/nbd"
	"github.com/viablk/viablk/target"
)

// fullStatus is a status with all parts, and names with control characters.
func fullStatus() processStatus {
	s := newStatus("target")
	s.Exports = []exportStatus{{Name: "a \x1b[2J", Size: 1 << 20, URIs: []string{"nbd://h/a"}}, {Name: "b", Device: "/dev/nbd0"}}
	s.NBD = &nbd.Status{}
	s.Targets = []target.Status{{}}
	s.Initiators = []initiator.Status{{Security: &initiator.SecurityStatus{}}}
	for _, state := range []string{"connected", "waiting", "failed"} {
		s.Faces = append(s.Faces, faceStatus{Export: "a \x1b[2J", Face: "via+\x7f", State: state, Reason: "\u009b"})
	}
	s.Sessions = []sessionStatus{{ID: "nbd-1", Peer: "\x1b"}}
	return s
}

// serveAdmin serves the status socket at the path that it returns, until the
// test ends.
func serveAdmin(t testing.TB) (path string) {
	t.Helper()
	path = filepath.Join(t.TempDir(), "a.sock")
	l, err := nbd.ListenUnix(context.Background(), path, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	p := adminPart(newPacedListener(l, adminConnections, pace{burst: adminConnections}), &statusCache{compute: fullStatus}, sessionEnder{nbd: &nbd.Server{}})
	served := make(chan error, 1)
	go func() { served <- p.serve(context.Background()) }()
	t.Cleanup(func() {
		if err := errors.Join(p.drain(context.Background()), <-served); err != nil {
			t.Error(err)
		}
	})
	return path
}

// A client that stays idle behind its answer, or owes the body of its request,
// loses its connection.
func TestIdleAdminClients(t *testing.T) {
	t.Parallel()
	path := serveAdmin(t)
	for name, request := range map[string]string{
		"idle":    "GET /status HTTP/1.1\r\nHost: h\r\n\r\n",
		"no body": "GET /status HTTP/1.1\r\nHost: h\r\nContent-Length: 4\r\n\r\n", // the answer may be late then
		"silent":  "",
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c, err := new(net.Dialer).DialContext(t.Context(), "unix", path)
			if err != nil {
				t.Fatal(err)
			}
			defer c.Close()
			if _, err := io.WriteString(c, request); err != nil {
				t.Fatal(err)
			}
			_ = c.SetReadDeadline(time.Now().Add(waitTimeout))
			answer, err := io.ReadAll(c)
			if err != nil || len(answer) == 0 && name == "idle" {
				t.Errorf("%d bytes, %v", len(answer), err)
			}
		})
	}
}

// A process whose status has no end is asked for a part of it.
func TestEndlessStatus(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "a.sock")
	l, err := nbd.ListenUnix(t.Context(), path, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	sent := make(chan int, 1)
	go func() {
		n := 0
		defer func() { sent <- n }()
		c, err := l.Accept()
		if err != nil {
			return
		}
		defer c.Close()
		_, _ = http.ReadRequest(bufio.NewReader(c))
		_, _ = io.WriteString(c, "HTTP/1.0 200 OK\r\n\r\n{\"version\":\"")
		for more := bytes.Repeat([]byte{'a'}, 1<<20); err == nil; n += len(more) {
			_, err = c.Write(more) // until the client has had enough
		}
	}()
	_, err = askStatus(t.Context(), path)
	l.Close()
	if err == nil {
		t.Error("a status without an end is a status")
	}
	if n := <-sent; n > maximumAnswer+4<<20 {
		t.Errorf("%d bytes were read, at most %d are allowed", n, maximumAnswer)
	}
}

// FuzzAdmin sends whatever bytes to the status socket: each gets an answer or
// the end of the connection, and the next client its status.
func FuzzAdmin(f *testing.F) {
	for _, request := range []string{
		"GET /status HTTP/1.1\r\nHost: viablk\r\n\r\n",
		"GET /status HTTP/1.0\r\n\r\nGET /status HTTP/1.0\r\n\r\n",
		"POST /status HTTP/1.1\r\nHost: h\r\nContent-Length: 4\r\n\r\nbody",
		"POST /status HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\nffffffffffffffff\r\n",
		"GET /debug/pprof/ HTTP/1.1\r\nHost: h\r\n\r\n",
		"GET /debug/pprof/heap?debug=1 HTTP/1.1\r\nHost: h\r\n\r\n",
		"GET /debug/pprof/../../status HTTP/1.1\r\nHost: h\r\nExpect: 100-continue\r\n\r\n",
		"GET /debug/pprof/symbol?%zz HTTP/1.1\r\nHost: h\r\nConnection: Upgrade\r\nUpgrade: h2c\r\n\r\n",
		"GET /v1/sessions HTTP/1.1\r\nHost: h\r\n\r\n",
		"DELETE /v1/sessions/nbd-1 HTTP/1.1\r\nHost: h\r\n\r\nDELETE /v1/sessions/ HTTP/1.1\r\nHost: h\r\n\r\n",
		"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
		"CONNECT h:1 HTTP/1.1\r\nHost: h\r\n\r\n", "OPTIONS * HTTP/1.1\r\nHost: h\r\n\r\n", "\r\n", "\x16\x03\x01",
		"GET /" + strings.Repeat("a", 20<<10) + " HTTP/1.1\r\nHost: h\r\n\r\n",
	} {
		f.Add([]byte(request))
	}
	path := serveAdmin(f)
	f.Fuzz(func(t *testing.T, request []byte) {
		for _, slow := range []string{"profile", "trace", "seconds", "%"} {
			if bytes.Contains(request, []byte(slow)) {
				return // it takes the seconds that it asks for, up to 5
			}
		}
		c, err := new(net.Dialer).DialContext(t.Context(), "unix", path)
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		_, _ = c.Write(request) // the server may have had enough
		_ = c.(*net.UnixConn).CloseWrite()
		_ = c.SetReadDeadline(time.Now().Add(waitTimeout))
		if _, err := io.Copy(io.Discard, c); errors.Is(err, os.ErrDeadlineExceeded) {
			t.Fatal("the connection stays")
		}
		if s, err := askStatus(t.Context(), path); err != nil || len(s.Exports) != 2 {
			t.Fatalf("the next client: %+v, %v", s, err)
		}
	})
}

// FuzzStatus has whatever process answer at a status socket: there is a status
// or an error, and the status is printed, to people without control characters.
func FuzzStatus(f *testing.F) {
	body, err := json.Marshal(fullStatus())
	if err != nil {
		f.Fatal(err)
	}
	for _, b := range [][]byte{
		body, []byte("{}"), []byte("null"), []byte("[]"), []byte(`{"exports":[{}],"targets":[{}],"initiators":[{"security":{}}],"nbd":{},"limits":[{}]}`),
		[]byte(`{"faces":[{"export":"a","face":"via+x"}],"targets":[{"provider":"x","exports":[{"name":"a","latency":{}}]}]}`),
	} {
		f.Add(fmt.Appendf(nil, "HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s", len(b), b))
		f.Add(fmt.Appendf(nil, "HTTP/1.0 200 OK\r\n\r\n%s", b))
	}
	f.Add([]byte("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\n\r\n"))
	f.Add([]byte("HTTP/1.1 500 No\r\n\r\n"))
	f.Add([]byte("HTTP/1.1 404 No\r\n\r\n{\"error\":{\"message\":\"no\"}}"))
	path := filepath.Join(f.TempDir(), "a.sock")
	l, err := nbd.ListenUnix(context.Background(), path, 0o600)
	if err != nil {
		f.Fatal(err)
	}
	answers, ended := make(chan []byte, 1), make(chan struct{})
	go func() {
		defer close(ended)
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			if _, err := http.ReadRequest(bufio.NewReader(c)); err == nil { // else it asks the kernel alone
				_, _ = c.Write(<-answers) // the client may have had enough
			}
			c.Close()
		}
	}()
	f.Cleanup(func() { l.Close(); <-ended })
	f.Fuzz(func(t *testing.T, answer []byte) {
		answers <- answer
		s, err := askStatus(t.Context(), path)
		if err != nil {
			return
		}
		for _, output := range []string{"table", "wide", "latency", "json"} {
			var out strings.Builder
			var code *exit
			a := &app{stdout: &out, stderr: io.Discard, output: output}
			if err := a.printStatus(&statusReport{Processes: []processStatus{s}}); err != nil && !errors.As(err, &code) {
				t.Errorf("%s: %v", output, err)
			}
			if output == "json" {
				continue // for programs
			}
			if i := strings.IndexFunc(out.String(), func(r rune) bool { return r != '\n' && unicode.IsControl(r) }); i >= 0 {
				t.Errorf("%s has a control character at %d: %q", output, i, out.String())
			}
		}
	})
}

// A user without a folder for sockets learns what to set.
func TestRuntimeHint(t *testing.T) {
	t.Setenv("XDG_RUNTIME_DIR", "")
	if got := runtimeHint(&fs.PathError{Op: "open", Path: "/run/viablk", Err: syscall.EACCES}); !strings.Contains(got, "set XDG_RUNTIME_DIR") {
		t.Errorf("got %q", got)
	}
	if got := runtimeHint(syscall.ENOTDIR); got != "" {
		t.Errorf("got %q", got)
	}
	t.Setenv("XDG_RUNTIME_DIR", t.TempDir())
	if got := runtimeHint(syscall.EACCES); got != "" {
		t.Errorf("got %q", got)
	}
}
