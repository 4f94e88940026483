//go:build vm

package vm

import (
	"bytes"
	"context"
	"crypto/rand"
	"crypto/sha256"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
)

// TestMachine is one machine and all that can be done with it while it lives.
func TestMachine(t *testing.T) {
	t.Parallel()
	here, there := Cable(t)
	v := Boot(t, Config{
		Modules: []string{"nbd nbds_max=3", "ext4", "xfs"},
		Tools:   []string{"e2fsprogs/mkfs.ext4", "e2fsprogs/e2fsck", "xfsprogs/mkfs.xfs"},
		Files: map[string]string{
			"/usr/bin/agent.test": TestProgram(t, modulePath+"/integration/vm/agent", ""),
			"/usr/bin/viablk":     Program(t, modulePath+"/cmd/viablk"),
		},
		Disks: []Disk{{Path: sparse(t, 64<<20)}, {Path: sparse(t, 320<<20)}, {Path: sparse(t, 1<<20), ReadOnly: true}},
		NICs:  []NIC{{End: there, Address: "10.77.0.2/24", MTU: 4500, MAC: "52:54:00:77:00:02"}},
	})
	for name, test := range map[string]func(*testing.T, *VM){
		"commands": testCommands, "long output": testLongOutput, "streams": testStreams,
		"cancellation": testCancellation, "files": testFiles, "modules": testModules,
		"file systems": testFileSystems, "read-only disk": testReadOnlyDisk, "Go programs": testGoPrograms,
		"frames": func(t *testing.T, v *VM) { testFrames(t, v, here) },
	} {
		t.Run(name, func(t *testing.T) { test(t, v) })
	}
}

// sparse makes a file for a disk.
func sparse(t testing.TB, size int64) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "disk, raw") // a comma separates options
	must(t, os.WriteFile(path, nil, 0o600))
	must(t, os.Truncate(path, size))
	return path
}

func testCommands(t *testing.T, v *VM) {
	if !strings.HasPrefix(v.Release, "6.") && !strings.HasPrefix(v.Release, "7.") {
		t.Errorf("the kernel is %q", v.Release)
	}
	for script, want := range map[string]Result{
		"exit 0":                        {},
		"exit 7":                        {Code: 7},
		"kill -SEGV $$":                 {Code: 128 + 11},
		"echo out; echo err >&2; false": {Code: 1, Stdout: "out\n", Stderr: "err\n"},
		"id -u; ps -o pid,args | grep -c 'agent$'": {Stdout: "0\n1\n"},
		// The first process reaps what its parent left: else it stayed for
		// ever.
		"p=$(sh -c 'true >/dev/null & echo $!'); while [ -e /proc/$p ]; do sleep 0.01; done": {},
	} {
		got := v.Run(t.Context(), "sh", "-c", script)
		if got.Err != nil || got.Code != want.Code || got.Stdout != want.Stdout || got.Stderr != want.Stderr {
			t.Errorf("got %v, want %+v", got, want)
		}
	}
	if r := v.Run(t.Context(), "no-such-program"); r.Err == nil || !strings.Contains(r.Err.Error(), "not found") || r.OK() {
		t.Errorf("got %v", r)
	}
}

func testLongOutput(t *testing.T, v *VM) {
	var want strings.Builder
	for i := range 300_000 {
		fmt.Fprintln(&want, i)
	}
	if got := v.Must("seq", "0", "299999"); got != want.String() {
		t.Errorf("%d bytes differ from %d", len(got), want.Len())
	}
}

// A server starts, a client comes, each sees what it should.
func testStreams(t *testing.T, v *VM) {
	v.Must("mkfifo", "/tmp/fifo")
	server, err := v.Start(t.Context(), "sh", "-c", "echo ready; cat /tmp/fifo; echo served; sleep 1000")
	must(t, err)
	must(t, server.Await(t.Context(), "ready\n"))
	v.Must("sh", "-c", "echo request > /tmp/fifo")
	must(t, server.Await(t.Context(), "request\nserved\n"))
	must(t, server.Signal(syscall.SIGTERM))
	if r := server.Wait(); r.Code != 128+15 || r.Err != nil || r.Stdout != "ready\nrequest\nserved\n" || server.Output() != r.Stdout {
		t.Errorf("got %v", r)
	}
	if err := server.Await(t.Context(), "never"); err == nil || !strings.Contains(err.Error(), "ended without") {
		t.Errorf("got %v", err)
	}
	var many sync.WaitGroup
	for i := range 8 {
		many.Go(func() {
			if r := v.Run(t.Context(), "echo", strconv.Itoa(i)); !r.OK() || r.Stdout != strconv.Itoa(i)+"\n" {
				t.Errorf("got %v", r)
			}
		})
	}
	many.Wait()
}

// When its context ends a command does, with what it started.
func testCancellation(t *testing.T, v *VM) {
	ctx, cancel := context.WithCancelCause(t.Context())
	c, err := v.Start(ctx, "sh", "-c", "sleep 1000 & echo $!; wait")
	must(t, err)
	must(t, c.Await(ctx, "\n"))
	why := errors.New("it takes too long")
	cancel(why)
	r := c.Wait()
	if !errors.Is(r.Err, why) || r.OK() {
		t.Errorf("got %v, want %v", r, why)
	}
	v.Must("sh", "-c", "while kill -0 "+strings.TrimSpace(r.Stdout)+"; do sleep 0.01; done")
	if r := v.Run(ctx, "true"); !errors.Is(r.Err, why) {
		t.Errorf("got %v, want %v", r, why)
	}
}

func testFiles(t *testing.T, v *VM) {
	for _, size := range []int{0, 1, pieceLength, 3<<20 + 1} {
		data := make([]byte, size)
		_, _ = rand.Read(data)
		path := fmt.Sprintf("/tmp/a/b/%d", size)
		must(t, v.Put(path, data, 0o751))
		if got := v.Must("sh", "-c", "stat -c %a:%s "+path+" && sha256sum <"+path); got != fmt.Sprintf("751:%d\n%x  -\n", size, sha256.Sum256(data)) {
			t.Errorf("%d bytes: got %s", size, got)
		}
		got, err := v.Get(path)
		must(t, err)
		if !bytes.Equal(got, data) {
			t.Errorf("%d bytes: other bytes come back", size)
		}
	}
	if got, err := v.Get("/proc/version"); err != nil || !strings.HasPrefix(string(got), "Linux version") {
		t.Errorf("a file of the kernel: %q, %v", got, err)
	}
	if _, err := v.Get("/no/such/file"); err == nil {
		t.Error("a file that is not there was fetched")
	}
	if err := v.Put("/proc/no/such/file", nil, 0o600); err == nil {
		t.Error("a file was made in /proc")
	}
}

// Modules are loaded with their parameters at boot, and by name or alias later.
func testModules(t *testing.T, v *VM) {
	devices := func() string { return v.Must("sh", "-c", "ls /dev | grep -c ^nbd") }
	if got := devices(); got != "3\n" {
		t.Errorf("%s nbd devices, want 3", got)
	}
	v.Must("rmmod", "nbd")
	v.Must("modprobe", "nbd", "nbds_max=5")
	if got := devices(); got != "5\n" {
		t.Errorf("%s nbd devices, want 5", got)
	}
	v.Must("modprobe", "-q", "fs-ext4")
	if r := v.Run(t.Context(), "modprobe", "floppy"); r.Code != 1 || !strings.Contains(r.Stderr, "not in this machine") {
		t.Errorf("got %v", r)
	}
}

func testFileSystems(t *testing.T, v *VM) {
	v.Must("mkfs.ext4", "-q", "/dev/vda")
	v.Must("mkfs.xfs", "-q", "/dev/vdb")
	for kind, disk := range map[string]string{"ext4": "/dev/vda", "xfs": "/dev/vdb"} {
		v.Must("mkdir", "-p", "/mnt/"+kind)
		v.Must("mount", "-t", kind, disk, "/mnt/"+kind)
		must(t, v.Put("/mnt/"+kind+"/file", []byte(kind), 0o600))
		v.Must("umount", "/mnt/"+kind)
		v.Must("mount", "-t", kind, disk, "/mnt/"+kind)
		if got, err := v.Get("/mnt/" + kind + "/file"); err != nil || string(got) != kind {
			t.Errorf("%s: got %q, %v", kind, got, err)
		}
		v.Must("umount", "/mnt/"+kind)
	}
	v.Must("e2fsck", "-f", "-n", "/dev/vda")
}

func testReadOnlyDisk(t *testing.T, v *VM) {
	if r := v.Run(t.Context(), "sh", "-c", "echo text > /dev/vdc"); r.OK() {
		t.Errorf("a read-only disk was written: %v", r)
	}
}

// Commands and tests of this module run in the machine.
func testGoPrograms(t *testing.T, v *VM) {
	if out := v.Must("viablk", "version"); !strings.Contains(out, "viablk") {
		t.Errorf("got %s", out)
	}
	if out := v.Must("agent.test", "-test.v", "-test.run=TestCommandEnds|TestFilePieces"); strings.Count(out, "--- PASS") != 2 {
		t.Errorf("got %s", out)
	}
}

// The test sees and sends each frame on its end of the cable: it asks for the
// machine's Ethernet address.
func testFrames(t *testing.T, v *VM, end *End) {
	conn := end.Conn(t)
	defer conn.Close()
	must(t, setDeadline(t, conn))
	arp := func(to, operation string) string {
		return to + "\x52\x54\x00\x77\x00\x01" + "\x08\x06" + "\x00\x01\x08\x00\x06\x04\x00" + operation
	}
	const here, there = "\x52\x54\x00\x77\x00\x01\x0a\x4d\x00\x01", "\x52\x54\x00\x77\x00\x02\x0a\x4d\x00\x02"
	_, err := conn.Write([]byte(arp("\xff\xff\xff\xff\xff\xff", "\x01") + here + "\x00\x00\x00\x00\x00\x00\x0a\x4d\x00\x02"))
	must(t, err)
	want := []byte("\x00\x01\x08\x00\x06\x04\x00\x02" + there + here)
	frame := make([]byte, 8<<10)
	for {
		n, err := conn.Read(frame)
		must(t, err)
		if got := frame[:n]; bytes.Contains(got, want) {
			if got := string(got[:14]); got != "\x52\x54\x00\x77\x00\x01\x52\x54\x00\x77\x00\x02\x08\x06" {
				t.Errorf("the header of the answer is %x", got)
			}
			break
		}
	}
	// A jumbo frame is one frame too.
	ping, err := v.Start(t.Context(), "ping", "-c", "1", "-s", "4400", "10.77.0.1")
	must(t, err)
	for n := 0; n < 4400; {
		n, err = conn.Read(frame)
		must(t, err)
	}
	must(t, ping.Signal(syscall.SIGKILL))
	ping.Wait()
}
