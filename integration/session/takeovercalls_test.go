package session

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/viablk/viablk/integration/testbed"
)

// callers make calls all the time, of which none may fail.
type callers struct {
	over    context.Context
	end     func()
	running sync.WaitGroup
}

// startCallers starts a caller for each function, which returns what is wrong.
func startCallers(t *testing.T, calls ...func() error) *callers {
	x := new(callers)
	x.over, x.end = context.WithCancel(t.Context())
	for _, call := range calls {
		x.running.Go(func() {
			for x.over.Err() == nil {
				if err := call(); err != nil {
					t.Error(err)
					return
				}
			}
		})
	}
	t.Cleanup(x.stop)
	return x
}

// stop ends the callers.
func (x *callers) stop() {
	x.end()
	x.running.Wait()
}

// getAt makes an HTTP request on a connection of its own.
func getAt(network, address, route string) ([]byte, error) {
	transport := &http.Transport{DisableKeepAlives: true, DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, network, address)
	}}
	client := http.Client{Transport: transport, Timeout: testbed.WaitLimit}
	defer transport.CloseIdleConnections()
	answer, err := client.Get("http://viablk" + route)
	if err != nil {
		return nil, err
	}
	defer answer.Body.Close()
	body, err := io.ReadAll(answer.Body)
	if err == nil && answer.StatusCode != http.StatusOK {
		err = errors.New(answer.Status)
	}
	return body, err
}

// statusCall asks a status socket, which answers every call.
func statusCall(admin string) func() error {
	return func() error {
		body, err := getAt("unix", admin, "/v1/status")
		if err == nil && !json.Valid(body) {
			err = fmt.Errorf("answer %q", body)
		}
		if err != nil {
			return fmt.Errorf("status socket: %w", err)
		}
		return nil
	}
}

// scrape asks for metrics, for which something listens all the time. A target
// that ends may cut an answer off.
func scrape(address string) func() error {
	return func() error {
		_, err := getAt("tcp", address, "/metrics")
		if errors.Is(err, syscall.ECONNREFUSED) || errors.Is(err, context.DeadlineExceeded) {
			return fmt.Errorf("metrics: %w", err)
		}
		time.Sleep(time.Millisecond)
		return nil
	}
}

// TestCallsDuringTakeover: each call of the status socket is answered while one
// target after the other takes over, and while successors die, and at no time
// is the socket for metrics without a listener.
func TestCallsDuringTakeover(t *testing.T) {
	t.Parallel()
	s := newSuccession(t, "--metrics-listen", "127.0.0.1:0", "--listen", "nbd+unix:///?socket="+filepath.Join(testbed.Folder(t), "n"),
		"--export", "disk=file:"+testbed.SparseFile(t, 1<<20))
	same := wantSameFiles(t, fileOf(t, s.admin))
	metrics := s.target.Metrics()
	x := startCallers(t, statusCall(s.admin), statusCall(s.admin), scrape(metrics))
	for range 4 {
		s.next()
		same(s.admin)
		if now := s.target.Metrics(); now != metrics {
			t.Errorf("metrics are at %s, not %s", now, metrics)
		}
	}
	for i, phase := range successorPhases[:len(successorPhases)-1] { // a silent one takes long, and has another test
		dieAsSuccessor(t, phase, s.admin)
		testbed.Eventually(t, phase+": the target serving on", func() (any, bool) {
			text := s.target.Stderr.String()
			return text, strings.Count(text, "event=takeover_failed") == i+1
		})
		same(s.admin)
	}
	x.stop()
	s.target.Stop()
	if _, err := os.Lstat(s.admin); err == nil {
		t.Error("the status socket is left")
	}
}

// TestSuccessorAnswersElsewhere: a successor with other places for calls makes
// those, and the ones of the target before are gone.
func TestSuccessorAnswersElsewhere(t *testing.T) {
	t.Parallel()
	folder := testbed.Folder(t)
	s := newSuccession(t, "--listen", "nbd+unix:///?socket="+filepath.Join(folder, "n"), "--export", "disk=file:"+testbed.SparseFile(t, 1<<20))
	port := testbed.FreePort(t)
	for i, places := range [][]string{
		{"--admin", filepath.Join(folder, "b"), "--metrics-listen", "127.0.0.1:" + port},
		{"--admin", filepath.Join(folder, "c"), "--metrics-listen", ":" + port, "--insecure"},
	} {
		before := s.target
		s.target = testbed.StartBinary(t, testbed.Program(t), slices.Concat([]string{"target", "--takeover", s.admin}, s.args, places)...)
		if code := before.ExitCode(); code != 0 {
			t.Fatalf("%d: the target ends with exit code %d\n%s", i, code, before.Output())
		}
		if _, err := os.Lstat(s.admin); err == nil {
			t.Errorf("%d: the status socket of before is left", i)
		}
		s.admin = places[1]
		testbed.Must(t, statusCall(s.admin)())
		_, err := getAt("tcp", "127.0.0.1:"+port, "/metrics")
		testbed.Must(t, err)
	}
	s.target.Stop()
}

// TestUsualStatusSocketMoves: a status socket that is called as its process has
// the name of the next one, and "viablk status" finds one of the two at all
// times, which is the process that the kernel names.
func TestUsualStatusSocketMoves(t *testing.T) {
	t.Parallel()
	folder := testbed.Folder(t)
	env := []string{"XDG_RUNTIME_DIR=" + folder}
	args := []string{"target", "-o", "json", "--listen", "nbd+unix:///?socket=" + filepath.Join(folder, "n"), "--export", "disk=file:" + testbed.SparseFile(t, 1<<20)}
	start := func(more ...string) *testbed.Tool {
		p := testbed.StartPath(t, env, testbed.Program(t), slices.Concat(args, more)...)
		testbed.Eventually(t, "a target being ready", func() (any, bool) { return p.Output(), json.Valid([]byte(p.Stdout.String())) })
		return p
	}
	socketOf := func(p *testbed.Tool) string {
		return filepath.Join(folder, "viablk", fmt.Sprintf("%d.sock", p.Cmd.Process.Pid))
	}
	target := start()
	same := wantSameFiles(t, fileOf(t, socketOf(target)))
	x := startCallers(t, func() error {
		p := testbed.NewTool(env, testbed.Program(t), "status", "-o", "json")
		if err := p.Cmd.Run(); err != nil {
			return fmt.Errorf("viablk status: %w: %s", err, p.Output())
		}
		return nil
	})
	for range 3 {
		before := target
		target = start("--takeover", socketOf(before))
		if code := before.Wait(t, testbed.ToolLimit); code != 0 {
			t.Errorf("the target ends with exit code %d\n%s", code, before.Output())
		}
		same(socketOf(target))
		if _, err := os.Lstat(socketOf(before)); err == nil {
			t.Error("the status socket of before is left")
		}
		p := testbed.StartPath(t, env, testbed.Program(t), "status", "-o", "json")
		if code := p.Wait(t, testbed.ToolLimit); code != 0 || !strings.Contains(p.Output(), fmt.Sprintf(`"pid": %d`, target.Cmd.Process.Pid)) {
			t.Errorf("status of process %d: exit code %d: %s", target.Cmd.Process.Pid, code, p.Output())
		}
	}
	x.stop()
	testbed.KillProcess(t, target.Cmd.Process.Pid, syscall.SIGTERM)
	if code := target.Wait(t, testbed.ToolLimit); code != 0 {
		t.Errorf("the last target ends with exit code %d\n%s", code, target.Output())
	}
}
