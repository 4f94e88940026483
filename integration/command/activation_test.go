package command

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/viablk/viablk/integration/testbed"
)

// activations are the ways in which another program starts a server for a
// client. Each returns the command that serves a disk.
var activations = []struct {
	name  string
	serve func(t testing.TB, spec string) []string
}{
	{"target", func(t testing.TB, spec string) []string {
		return []string{testbed.Program(t), "target", "--admin", "none", "--export", "disk=" + spec}
	}},
	{"attach", func(t testing.TB, spec string) []string {
		p := testbed.StartTarget(t, testbed.Program(t), "via+shm:///?socket="+filepath.Join(testbed.Folder(t), "v"), testbed.Disk{Name: "disk", Spec: spec})
		return []string{testbed.Program(t), "attach", p.URI("disk", "via+shm"), "--admin", "none"}
	}},
	{"up", func(t testing.TB, spec string) []string {
		return []string{testbed.Program(t), "up", "--admin", "none", "--export", "disk=" + spec}
	}},
}

// libnbd starts a server in brackets with a socket to listen on, as systemd
// does. Other output of the server would mix with that of the client.
func TestLibnbdStartsTheServer(t *testing.T) {
	for _, e := range activations {
		t.Run(e.name, func(t *testing.T) {
			brackets := slices.Concat([]string{"["}, e.serve(t, "memory:3MiB"), []string{"]"})
			if got := testbed.Run(t, "nbdinfo", slices.Concat([]string{"--size", "--"}, brackets)...); got != "3145728\n" {
				t.Errorf("size %q", got)
			}
			list := testbed.NBDInfo(t, slices.Concat([]string{"--list", "--no-content", "--"}, brackets)...)
			if len(list) != 1 || list[0]["export-name"] != "disk" {
				t.Errorf("exports %v", list)
			}
		})
	}
}

// nbdcopy opens several connections to the server that it starts.
func TestNbdcopyStartsBothServers(t *testing.T) {
	place := testbed.Folder(t)
	from, to := filepath.Join(place, "from"), filepath.Join(place, "to")
	content := make([]byte, 9<<20+512)
	for i := range content {
		content[i] = byte(i >> 9 * 7)
	}
	testbed.Must(t, os.WriteFile(from, content, 0o600))
	testbed.Must(t, os.WriteFile(to, nil, 0o600))
	testbed.Must(t, os.Truncate(to, int64(len(content))))
	testbed.Run(t, "nbdcopy", "--connections=4", "--",
		"[", testbed.Program(t), "target", "--admin", "none", "--export", "a=file:"+from+"?readonly=1", "]",
		"[", testbed.Program(t), "up", "--admin", "none", "--export", "b=file:"+to, "]")
	got, err := os.ReadFile(to)
	testbed.Must(t, err)
	if !bytes.Equal(got, content) {
		t.Error("the copy differs")
	}
}

// A client that starts the server with its own connection as standard input and
// output sees the server end in order when it leaves.
func TestStdioServesOneClient(t *testing.T) {
	testbed.Requires(t, "nbdsh")
	for _, e := range activations {
		t.Run(e.name, func(t *testing.T) {
			command, err := json.Marshal(append(e.serve(t, "memory:3MiB"), "--stdio"))
			testbed.Must(t, err)
			out := testbed.Succeed(t, testbed.StartPath(t, testbed.Environment(t), testbed.Locate("python3"), "testdata/stdio.py", string(command)))
			if out != "size 3145728\nread xyz\nended 0\nnoise \n" {
				t.Errorf("%q", out)
			}
		})
	}
}

func TestStdioRefuses(t *testing.T) {
	disk := []string{"target", "--export", "a=memory:1MiB", "--stdio"}
	for name, c := range map[string]struct {
		args []string
		want string
	}{
		"pipes":    {disk, "not with pipes"},
		"listen":   {append(disk, "--listen", "nbd+unix:///?socket=/nonexistent/s"), "leave out --listen"},
		"VIA":      {append(disk, "--listen", "via+shm:///?socket=/nonexistent/s"), "leave out --listen"},
		"attach":   {[]string{"attach", "via+shm:///a?socket=/nonexistent/s", "--nbd", "nbd://localhost/", "-s"}, "leave out --nbd"},
		"up":       {[]string{"up", "--nbd", "nbd://localhost/", "-s"}, "leave out --nbd"},
		"up --run": {[]string{"up", "--run", "true", "-s"}, "--run"},
	} {
		t.Run(name, func(t *testing.T) {
			c.args = slices.Clone(c.args)
			ours, theirs := socketPair(t)
			defer ours.Close()
			p := testbed.NewTool(testbed.Environment(t), testbed.Program(t), c.args...)
			if name != "pipes" {
				p.Cmd.Stdin, p.Cmd.Stdout = theirs, theirs
			}
			p.Start(t, testbed.StartCommand)
			testbed.Must(t, theirs.Close())
			if code := p.Wait(t, testbed.ToolLimit); code != 64 || !strings.Contains(p.Stderr.String(), c.want) || strings.Count(p.Stderr.String(), "\n") != 1 {
				t.Errorf("exit code %d: %s", code, p.Output())
			}
			if got, err := io.ReadAll(ours); err != nil || len(got) != 0 {
				t.Errorf("the client got %q, %v", got, err)
			}
		})
	}
}

// socketPair returns two sockets that are connected.
func socketPair(t *testing.T) (ours, theirs *os.File) {
	t.Helper()
	l, err := net.Listen("unix", filepath.Join(testbed.Folder(t), "s"))
	testbed.Must(t, err)
	defer l.Close()
	c, err := net.Dial("unix", l.Addr().String())
	testbed.Must(t, err)
	defer c.Close()
	s, err := l.Accept()
	testbed.Must(t, err)
	defer s.Close()
	ours, err = c.(*net.UnixConn).File()
	testbed.Must(t, err)
	theirs, err = s.(*net.UnixConn).File()
	testbed.Must(t, err)
	return ours, theirs
}

// activate starts viablk with sockets to listen on, by a shell, which knows the
// process ID that the command will have.
func activate(t *testing.T, names string, sockets []net.Listener, env []string, args ...string) *testbed.Tool {
	t.Helper()
	script := fmt.Sprintf(`LISTEN_PID=$$ LISTEN_FDS=%d LISTEN_FDNAMES='%s' exec "$@"`, len(sockets), names)
	p := testbed.NewTool(slices.Concat(testbed.Environment(t), env), "/bin/sh", append([]string{"-c", script, "sh", testbed.Program(t)}, args...)...)
	for _, l := range sockets {
		f, err := l.(interface{ File() (*os.File, error) }).File()
		testbed.Must(t, err)
		defer f.Close()
		p.Cmd.ExtraFiles = append(p.Cmd.ExtraFiles, f)
	}
	p.Start(t, testbed.StartCommand)
	return p
}

// Several sockets of different kinds serve the same disks, and stay the service
// manager's; it is told when the server is ready, lives, and ends.
func TestSocketActivation(t *testing.T) {
	place := testbed.Folder(t)
	admin := filepath.Join(place, "admin")
	path := filepath.Join(place, "n")
	manager, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: filepath.Join(place, "notify"), Net: "unixgram"})
	testbed.Must(t, err)
	defer manager.Close()
	local, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
	testbed.Must(t, err)
	local.SetUnlinkOnClose(false)
	defer local.Close()
	remote, err := net.Listen("tcp", "127.0.0.1:0")
	testbed.Must(t, err)
	defer remote.Close()

	p := activate(t, "disks:network", []net.Listener{local, remote},
		[]string{"NOTIFY_SOCKET=" + manager.LocalAddr().String(), "WATCHDOG_USEC=200000"},
		"target", "--admin", admin, "--export", "a=memory:1MiB", "--export", "b=memory:2MiB", "--log-level", "debug")
	manager.SetReadDeadline(time.Now().Add(testbed.AnswerLimit))
	await := func(want string) {
		t.Helper()
		b := make([]byte, 64)
		for {
			n, err := manager.Read(b)
			if err != nil {
				t.Fatalf("waiting for %s: %v\n%s", want, err, p.Output())
			}
			if got := string(b[:n]); got == want {
				return
			} else if got != "WATCHDOG=1" {
				t.Fatalf("the service manager got %q, not %q", got, want)
			}
		}
	}
	await("READY=1")
	await("WATCHDOG=1")
	uris := []string{"nbd+unix:///b?socket=" + path, "nbd://" + remote.Addr().String() + "/b"}
	for _, uri := range uris {
		if got := testbed.Run(t, "nbdinfo", "--size", uri); got != "2097152\n" {
			t.Errorf("%s: size %q", uri, got)
		}
	}
	status := testbed.StatusAt(t, admin)
	if got := status.Exports[1].URIs; !slices.Equal(got, uris) {
		t.Errorf("the status names %q, not %q", got, uris)
	}
	testbed.KillProcess(t, p.Cmd.Process.Pid, 15)
	await("STOPPING=1")
	if code := p.Wait(t, testbed.EndLimit); code != 0 || p.Stdout.String() != "" {
		t.Errorf("exit code %d, standard output %q\n%s", code, p.Stdout.String(), p.Output())
	}
	for _, name := range []string{"disks", "network"} {
		if !strings.Contains(p.Stderr.String(), "name="+name) {
			t.Errorf("the log does not name %s: %s", name, p.Output())
		}
	}
	if _, err := os.Lstat(path); err != nil {
		t.Errorf("the service manager's socket is gone: %v", err)
	}
}

// A socket called metrics is for metrics alone, and the process opens those for
// NBD itself if there is no other.
func TestActivationOfMetrics(t *testing.T) {
	get := func(l net.Listener, page string) (body string) {
		return testbed.Run(t, "curl", "-s", "--max-time", "60", "http://"+l.Addr().String()+page)
	}
	listen := func(address string) net.Listener {
		l, err := net.Listen("tcp", address)
		testbed.Must(t, err)
		t.Cleanup(func() { l.Close() })
		return l
	}
	disks, scraped := listen("127.0.0.1:0"), listen("127.0.0.1:0")
	target := []string{"target", "--admin", "none", "--export", "a=memory:1MiB"}
	p := activate(t, "metrics:disks", []net.Listener{scraped, disks}, nil, target...)
	if got := testbed.Run(t, "nbdinfo", "--size", "nbd://"+disks.Addr().String()+"/a"); got != "1048576\n" {
		t.Errorf("size %q", got)
	}
	// Those who scrape get a state that can be older than the client.
	testbed.Eventually(t, "metrics with the client", func() (any, bool) {
		got := get(scraped, "/metrics")
		return got, strings.Contains(got, "\nviablk_connections_accepted_total{face=\"nbd\"} 1\n")
	})
	testbed.KillProcess(t, p.Cmd.Process.Pid, 15)
	if code := p.Wait(t, testbed.EndLimit); code != 0 {
		t.Errorf("exit code %d: %s", code, p.Output())
	}
	path := filepath.Join(testbed.Folder(t), "n")
	p = activate(t, "metrics", []net.Listener{scraped}, nil, append(target, "--listen", "nbd+unix:///?socket="+path)...)
	if got := get(scraped, "/healthz"); got != "ok\n" {
		t.Errorf("health is %q", got)
	}
	testbed.KillProcess(t, p.Cmd.Process.Pid, 15)
	if code := p.Wait(t, testbed.EndLimit); code != 0 || !strings.Contains(p.Stdout.String(), path) {
		t.Errorf("exit code %d: %s", code, p.Output())
	}
	for _, c := range []struct {
		names string
		args  []string
		code  int
		want  string
	}{
		{"metrics", []string{"--metrics-listen", ":0", "--listen", "nbd+unix:///?socket=" + path}, 64, "leave out metrics.listen"},
		{"metrics:metrics", nil, 64, "two sockets called metrics"},
		{"metrics:disks", nil, 78, "could read who uses the disks: set metrics.certificates"},
	} {
		sockets := []net.Listener{scraped, disks}[:1+strings.Count(c.names, ":")]
		if c.code == 78 {
			sockets[0] = listen("0.0.0.0:0")
		}
		p := activate(t, c.names, sockets, nil, slices.Concat(target, c.args)...)
		if code := p.Wait(t, testbed.ToolLimit); code != c.code || !strings.Contains(p.Output(), c.want) {
			t.Errorf("%s: exit code %d: %s", c.names, code, p.Output())
		}
	}
}

func TestSocketActivationRefuses(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	testbed.Must(t, err)
	defer l.Close()
	datagrams, err := net.ListenUDP("udp", &net.UDPAddr{IP: net.IPv4(127, 0, 0, 1)})
	testbed.Must(t, err)
	defer datagrams.Close()
	target := []string{"target", "--export", "a=memory:1MiB"}
	for name, c := range map[string]struct {
		args []string
		want string
	}{
		"listen": {append(target, "--listen", "nbd://127.0.0.1:0"), "leave out the NBD URIs of --listen"},
		"attach": {[]string{"attach", "via+shm:///a?socket=/nonexistent/s", "--nbd", "nbd://localhost/"}, "leave out --nbd"},
		"stdio":  {append(target, "--stdio"), "choose one"},
	} {
		t.Run(name, func(t *testing.T) {
			p := activate(t, "x", []net.Listener{l}, nil, slices.Clone(c.args)...)
			if code := p.Wait(t, testbed.ToolLimit); code != 64 || !strings.Contains(p.Output(), c.want) {
				t.Errorf("exit code %d: %s", code, p.Output())
			}
		})
	}
	t.Run("datagrams", func(t *testing.T) {
		p := activate(t, "x", []net.Listener{packets{datagrams}}, nil, target...)
		if code := p.Wait(t, testbed.ToolLimit); code != 64 || !strings.Contains(p.Output(), "inherited descriptor 3 (x): it is not a stream socket") {
			t.Errorf("exit code %d: %s", code, p.Output())
		}
	})
}

// packets is a socket that is no listener.
type packets struct{ *net.UDPConn }

func (packets) Accept() (net.Conn, error) { return nil, net.ErrClosed }

func (p packets) Addr() net.Addr { return p.LocalAddr() }
