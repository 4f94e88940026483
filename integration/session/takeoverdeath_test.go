package session

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/viablk/viablk/integration/testbed"
	"github.com/viablk/viablk/internal/block"
	"github.com/viablk/viablk/internal/takeover"
	"github.com/viablk/viablk/target/backend/backendtest"
)

// successorPhase has a run of the test program be a successor that dies in a
// phase.
const successorPhase = "VIABLK_TEST_SUCCESSOR_DIES"

// The phases of a successor, in their order. Its target kills one that is
// silent.
var successorPhases = []string{"asked", "committed", "received", "opened", "told", "silent"}

// TestSuccessor is the successor.
func TestSuccessor(t *testing.T) {
	t.Parallel()
	phase, admin, found := strings.Cut(os.Getenv(successorPhase), " ")
	if !found {
		return // of a usual run
	}
	c, err := net.Dial("unix", admin)
	testbed.Must(t, err)
	claim := fmt.Sprintf(`{"exports":["disk"],"memory":true,"roce":true,"status_socket":%q,"metrics":"127.0.0.1:0"}`, admin)
	_, err = fmt.Fprintf(c, "POST /v1/takeover HTTP/1.1\r\nHost: viablk\r\nConnection: Upgrade\r\nUpgrade: viablk-takeover/1\r\nContent-Length: %d\r\n\r\n%s", len(claim), claim)
	testbed.Must(t, err)
	answer, err := http.ReadResponse(bufio.NewReader(c), nil)
	testbed.Must(t, err)
	if answer.StatusCode != http.StatusSwitchingProtocols {
		t.Fatalf("%s", answer.Status)
	}
	dies(phase, "asked")
	p := takeover.NewPredecessor(c.(*net.UnixConn))
	if phase == "committed" {
		_, err = c.Write([]byte{'C', 0, 0})
		testbed.Must(t, err)
		dies(phase, "committed")
	}
	items, ended, err := p.Commit()
	if err != nil || ended || len(items) < 2 {
		t.Fatalf("%v, %v, %v", items, ended, err)
	}
	dies(phase, "received")
	if phase == "silent" {
		_ = unix.Pause()
	}
	if phase == "opened" {
		_, err = c.Write([]byte{'O', 0, 0})
		testbed.Must(t, err)
		dies(phase, "opened")
	}
	testbed.Must(t, p.Opened())
	dies(phase, "told")
}

// dies kills the process in its phase.
func dies(phase, now string) {
	if phase == now {
		_ = unix.Kill(os.Getpid(), unix.SIGKILL)
		_ = unix.Pause()
	}
}

// dieAsSuccessor has a successor of the target with a status socket die in a
// phase.
func dieAsSuccessor(t *testing.T, phase, admin string) {
	t.Helper()
	program, err := os.Executable()
	testbed.Must(t, err)
	p := testbed.StartPath(t, append(os.Environ(), successorPhase+"="+phase+" "+admin), program, "-test.run=^TestSuccessor$")
	if code := p.Wait(t, testbed.ToolLimit); code != -1 {
		t.Fatalf("%s: the successor ends with exit code %d\n%s", phase, code, p.Output())
	}
}

// TestSuccessorDies: a target whose successor dies in any phase serves on, with
// the disks, the locks and the sockets that it had, and its clients notice
// nothing but a pause. At no time is a socket without a listener.
func TestSuccessorDies(t *testing.T) {
	t.Parallel()
	for _, image := range []string{testbed.SparseFile(t, 16<<20), ""} {
		t.Run(map[bool]string{true: "memory", false: "file"}[image == ""], func(t *testing.T) {
			t.Parallel()
			testSuccessorDies(t, image)
		})
	}
}

// testSuccessorDies has a disk in memory without an image.
func testSuccessorDies(t *testing.T, image string) {
	spec, socket := "file:"+image, filepath.Join(testbed.Folder(t), "n")
	if image == "" {
		spec = "memory:16MiB"
	}
	s := newSuccession(t, "--listen", listenAt(t, "shm"), "--listen", "nbd+unix:///?socket="+socket, "--export", "disk="+spec)
	a := testbed.AttachURIAt(t, testbed.StartCommand, testbed.Program(t), s.target.URI("disk", "via+shm"), "disk", "--log-level", "debug")
	z := backendtest.NewZones(block.Info{Size: 16 << 20, MinimumBlock: 1, MaximumPayload: block.PayloadLimit})
	path := socketOf(a.URI("disk", "nbd+unix"))
	first := dialZones(t, path)
	for _, x := range z.First() {
		testbed.Must(t, first.use(z, []backendtest.Access{x}))
	}
	for i, phase := range successorPhases {
		users := startZoneUsers(t, path, z, uint64(i))
		before, err := net.Dial("unix", socket)
		testbed.Must(t, err)
		testbed.Must(t, before.Close())
		dieAsSuccessor(t, phase, s.admin)
		testbed.Eventually(t, phase+": the target serving on", func() (any, bool) {
			text := s.target.Stderr.String()
			return text, strings.Count(text, "event=takeover_failed") == i+1
		})
		time.Sleep(50 * time.Millisecond) // users go on
		users.stop()
		after, err := net.Dial("unix", socket)
		testbed.Must(t, err)
		testbed.Must(t, after.Close())
		if image != "" {
			other := testbed.StartPath(t, nil, testbed.Program(t), "identity", "renew", "--yes", image)
			if code := other.Wait(t, testbed.ToolLimit); code != 75 {
				t.Errorf("%s: the disk is not locked: exit code %d\n%s", phase, code, other.Output())
			}
		}
		if st := a.Status(); st.NBD.Total.Errors != 0 || st.Initiators[0].Error != "" {
			t.Errorf("%s: %d errors, %q", phase, st.NBD.Total.Errors, st.Initiators[0].Error)
		}
	}
	testbed.Must(t, z.Check())
	s.next()
	a.Stop()
	if text := a.Stderr.String(); !strings.Contains(text, "event=target_back") || strings.Contains(text, "no process listens") {
		t.Errorf("the initiator met a socket without a listener:\n%s", text)
	}
	s.target.Stop()
}

// predecessorPhases are what a predecessor sends before it ends.
var predecessorPhases = []string{"asked", "committed", "an item", "all items", "opened", "told"}

// TestPredecessorDies: a successor whose predecessor dies in any phase serves
// what it got, and opens the rest. Memory that it does not export ends with a
// predecessor that died before the last item.
func TestPredecessorDies(t *testing.T) {
	t.Parallel()
	for _, phase := range predecessorPhases {
		t.Run(phase, func(t *testing.T) {
			image, folder := testbed.SparseFile(t, 1<<20), testbed.Folder(t)
			l, err := net.Listen("unix", filepath.Join(folder, "admin"))
			testbed.Must(t, err)
			defer l.Close()
			died := make(chan error, 1)
			go func() { died <- predecessor(l, image, phase) }()
			s := newSuccession(t, "--listen", "nbd+unix:///?socket="+filepath.Join(folder, "n"), "--export", "disk=file:"+image,
				"--takeover", filepath.Join(folder, "admin"))
			testbed.Must(t, <-died)
			k := testbed.Connect(t, s.target.URI("disk", "nbd+unix"))
			k.Ask("write 0 4096", "ok")
			k.Ask("flush", "ok")
			k.Disconnect()
			s.target.Stop()
		})
	}
}

// predecessor is a target that has a disk, and dies in a phase.
func predecessor(l net.Listener, image, phase string) error {
	fd, err := unix.Open(image, unix.O_RDWR|unix.O_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	lock := unix.Flock_t{Type: unix.F_WRLCK}
	if err := unix.FcntlFlock(uintptr(fd), unix.F_OFD_SETLK, &lock); err != nil {
		return err
	}
	conn, err := l.Accept()
	if err != nil {
		return err
	}
	c := conn.(*net.UnixConn)
	defer c.Close()
	r := bufio.NewReader(c)
	ask, err := http.ReadRequest(r)
	if err != nil {
		return err
	}
	if _, err := io.Copy(io.Discard, ask.Body); err != nil {
		return err
	}
	if _, err := c.Write([]byte("HTTP/1.1 101 Switching Protocols\r\n\r\n")); err != nil {
		return err
	}
	steps := []func() error{
		func() error { return receiveKind(r, 'C') },
		func() error {
			_, _, err := c.WriteMsgUnix([]byte("I\x04\x00disk"), unix.UnixRights(fd), nil)
			if err == nil && phase == "an item" { // no process is left to refuse for
				_, _, err = c.WriteMsgUnix([]byte("I\x0b\x00memory gone"), unix.UnixRights(fd), nil)
			}
			return err
		},
		func() error { _, err := c.Write([]byte{'L', 0, 0}); return err },
		func() error { return receiveKind(r, 'O') },
		func() error { _, err := c.Write([]byte{'S', 0, 0}); return err },
	}
	for _, step := range steps[:slices.Index(predecessorPhases, phase)] {
		if err := step(); err != nil {
			return err
		}
	}
	return nil
}

// receiveKind reads a message without text.
func receiveKind(r *bufio.Reader, kind byte) error {
	b, err := r.Peek(3)
	if err == nil && b[0] != kind {
		err = fmt.Errorf("message %q instead of %q", b, kind)
	}
	if err == nil {
		_, err = r.Discard(3)
	}
	return err
}
