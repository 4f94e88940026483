//go:build ceph && rbd && cgo

package ceph

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/viablk/viablk/integration/history"
	"github.com/viablk/viablk/integration/program"
	"github.com/viablk/viablk/integration/testbed"
)

// binary is the program with images of Ceph, built as this test is.
var binary = sync.OnceValues(func() (string, error) {
	flags := []string{"-tags", "rbd"}
	if testbed.RaceDetector {
		flags = append(flags, "-race")
	}
	return program.Build{Package: "cmd/viablk", CGO: true, Flags: flags}.Path()
})

// startTarget starts a target of an image at a socket.
func startTarget(t testing.TB, socket, image string, options ...string) *testbed.Process {
	t.Helper()
	path, err := binary()
	testbed.Must(t, err)
	return testbed.StartTarget(t, path, "via+shm:///?socket="+socket, testbed.Disk{Name: "disk", Spec: shared.spec(image, options...)})
}

// writer is clients that read and write a disk all the time, and check what
// they see.
type writer struct {
	attach  *testbed.Process
	monitor *history.Monitor
	stop    chan struct{}
	ended   chan error
}

// writers is how many clients there are, with one request each at a time.
const writers = 8

// startWriter attaches a disk and begins to write.
func startWriter(t testing.TB, uri string) *writer {
	t.Helper()
	path, err := binary()
	testbed.Must(t, err)
	w := &writer{monitor: history.NewMonitor(), stop: make(chan struct{}), ended: make(chan error, 1)}
	w.attach = testbed.AttachURIAt(t, testbed.StartCommand, path, uri, "disk", "--reconnect-delay", "100ms")
	_, socket := testbed.AddressOf(t, w.attach.URI("disk", "nbd+unix"))
	var disks []history.Disk
	for range writers / 4 {
		c, err := history.Dial(t.Context(), "unix", socket, "disk")
		testbed.Must(t, err)
		t.Cleanup(func() { testbed.Must(t, c.Close()) })
		disks = append(disks, c)
	}
	load := history.Load{Blocks: 64, Longest: 4, Requests: 1 << 30, Clients: 4, Seed: 1, Durable: 16, Stop: w.stop}
	go func() { w.ended <- load.Run(w.monitor, 0, disks...) }()
	return w
}

// progress waits until the clients have made n more operations.
func (w *writer) progress(t testing.TB, what string, n int) {
	t.Helper()
	before := w.monitor.Counts().Operations
	testbed.Eventually(t, "requests "+what, func() (any, bool) {
		select {
		case err := <-w.ended:
			t.Fatalf("%s: the clients ended: %v", what, err)
		default:
		}
		now := w.monitor.Counts().Operations
		return now, now >= before+n
	})
}

// finish ends the clients and checks that they saw nothing but one disk.
func (w *writer) finish(t testing.TB) {
	t.Helper()
	close(w.stop)
	testbed.Must(t, <-w.ended)
	for _, a := range w.monitor.Finish() {
		t.Error(a)
	}
	counts := w.monitor.Counts()
	if errors := w.attach.Status().NBD.Total.Errors; errors != 0 || counts.Lost != 0 {
		t.Errorf("%d errors, %d writes lost", errors, counts.Lost)
	}
	t.Logf("%d operations", counts.Operations)
}

// TestOSDIsKilledUnderLoad: requests wait for an OSD that was killed and is
// started again, and nothing is lost.
func TestOSDIsKilledUnderLoad(t *testing.T) {
	p := startTarget(t, filepath.Join(testbed.Folder(t), "v"), shared.image(t, "16M"))
	w := startWriter(t, p.URI("disk", "via+shm"))
	for range 2 {
		w.progress(t, "before the OSD is killed", 300)
		testbed.Must(t, shared.killOSD())
		testbed.Eventually(t, "all clients to wait", func() (any, bool) {
			n := w.attach.Status().NBD.InFlight
			return n, n == writers
		})
		testbed.Must(t, shared.startOSD())
	}
	w.progress(t, "after the OSD is back", 300)
	w.finish(t)
}

// TestFailOver: a second target takes the image of the first one over while it
// serves clients, who go on at the second one and lose nothing. The first one
// goes on for a while as one that is cut off or hangs does.
func TestFailOver(t *testing.T) {
	image, here := shared.image(t, "16M"), testbed.Folder(t)
	socket := func(i int) string { return filepath.Join(here, fmt.Sprint("v", i)) }
	address := filepath.Join(here, "service") // of whichever target serves
	move := func(to string) {
		t.Helper()
		testbed.Must(t, os.Symlink(to, address+".new"))
		testbed.Must(t, os.Rename(address+".new", address))
	}
	owner := startTarget(t, socket(0), image)
	move(socket(0))
	w := startWriter(t, strings.Replace(owner.URI("disk", "via+shm"), socket(0), address, 1))
	for i, hangs := range []bool{false, true, false} {
		w.progress(t, "of the owner", 300)
		if hangs {
			owner.Signal(syscall.SIGSTOP)
		}
		successor := startTarget(t, socket(i+1), image, "steal=1")
		if !hangs {
			testbed.Eventually(t, "the initiator being refused by the owner", func() (any, bool) {
				n := strings.Count(owner.Stderr.String(), "event=export_refused")
				return n, n > 0
			})
		}
		move(socket(i + 1))
		w.progress(t, "of the successor", 300)
		if hangs {
			owner.Signal(syscall.SIGCONT)
			w.progress(t, "beside an owner that goes on", 300)
		}
		owner.Stop()
		owner = successor
	}
	w.finish(t)
}

// TestHungCluster: a target whose cluster does not answer ends in time, with
// requests in flight and without.
func TestHungCluster(t *testing.T) {
	for _, busy := range []bool{false, true} {
		t.Run(fmt.Sprintf("busy %v", busy), func(t *testing.T) {
			path, err := binary()
			testbed.Must(t, err)
			socket := filepath.Join(testbed.Folder(t), "n")
			p := testbed.StartBinary(t, path, "target", "--listen", "nbd+unix:///?socket="+socket,
				"--admin", filepath.Join(testbed.Folder(t), "a"), "--drain-timeout", "1s", "--export", "disk="+shared.spec(shared.image(t, "16M")))
			c, err := history.Dial(t.Context(), "unix", socket, "disk")
			testbed.Must(t, err)
			_, err = c.WriteAt(make([]byte, 4096), 0)
			testbed.Must(t, err)
			if busy {
				defer c.Abort()
			} else {
				testbed.Must(t, c.Close())
			}
			shared.signalOSD(t, syscall.SIGSTOP)
			defer shared.signalOSD(t, syscall.SIGCONT)
			if busy {
				go c.WriteAt(make([]byte, 4096), 0) // it has no answer
				testbed.Eventually(t, "the request", func() (any, bool) {
					s := p.Status().NBD
					return s, s.InFlight == 1
				})
			}
			began := time.Now()
			p.Signal(syscall.SIGTERM)
			if code := p.ExitCode(); code == 0 {
				t.Error("the exit code is 0")
			}
			if !busy && !strings.Contains(p.Output(), "the cluster does not answer within 5s") {
				t.Errorf("the target does not say why:\n%s", p.Output())
			}
			t.Logf("ended after %v", time.Since(began))
		})
	}
}

// TestInitiatorSeesResize: clients of an initiator are told the size of the
// image.
func TestInitiatorSeesResize(t *testing.T) {
	testbed.Requires(t, "nbdinfo")
	image := shared.image(t, "16M")
	path, err := binary()
	testbed.Must(t, err)
	p := startTarget(t, filepath.Join(testbed.Folder(t), "v"), image)
	a := testbed.AttachDisk(t, path, p, "disk")
	shared.run(t, "rbd", "resize", image, "--size", "24M")
	testbed.Eventually(t, "the size", func() (any, bool) {
		size := strings.TrimSpace(testbed.Run(t, "nbdinfo", "--size", a.URI("disk", "nbd+unix")))
		return size, size == fmt.Sprint(24<<20)
	})
}
