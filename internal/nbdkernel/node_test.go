package nbdkernel

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

func TestParseNode(t *testing.T) {
	for text, want := range map[string]Node{"/dev/nbd0": 0, "nbd12": 12, "/dev/nbd300": 300} {
		if n, err := ParseNode(text); n != want || err != nil {
			t.Errorf("%s: %v, %v", text, n, err)
		}
	}
	for _, text := range []string{"", "nbd", "/dev/nbd", "/dev/sda", "nbd-1", "nbd+1", "nbd01", "/dev/nbd0p1", "nbd1 ", "/dev//nbd1", "auto"} {
		if n, err := ParseNode(text); err == nil || !strings.Contains(err.Error(), "no device of the nbd driver") {
			t.Errorf("%q: %v, %v", text, n, err)
		}
	}
	for _, text := range []string{"/dev/nbd1048576", "nbd99999999999999999999999"} {
		if n, err := ParseNode(text); err == nil || !strings.Contains(err.Error(), "out of range: the last device of the nbd driver is /dev/nbd") {
			t.Errorf("%q: %v, %v", text, n, err)
		}
	}
}

// plant makes files below a folder that stands for /sys and /proc.
func plant(t *testing.T, files map[string]string) string {
	t.Helper()
	root := t.TempDir()
	for name, content := range files {
		path := filepath.Join(root, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return root
}

func TestLastIndex(t *testing.T) {
	for parts, want := range map[string]int{"16\n": 32767, "0\n": 1<<20 - 1, "1\n": 1<<19 - 1, "15\n": 65535, "what\n": 32767} {
		if got := lastIndex(plant(t, map[string]string{maxPartFile: parts})); got != want {
			t.Errorf("%q partitions: the last device is %d, not %d", parts, got, want)
		}
	}
	if got := lastIndex(t.TempDir()); got != 32767 {
		t.Errorf("without the driver: %d", got)
	}
}

func TestUsefulConnections(t *testing.T) {
	for list, want := range map[string]int{"0\n": 1, "0-1\n": 2, "0-3,8-11\n": 5, "0,2\n": 3, "": 5, "what\n": 5} {
		if got := usefulConnections(plant(t, map[string]string{processorFile: list}), 5); got != want {
			t.Errorf("%q processors: %d connections, not %d", list, got, want)
		}
	}
	if got := usefulConnections(t.TempDir(), 5); got != 5 {
		t.Errorf("of unknown processors: %d connections", got)
	}
}

func TestState(t *testing.T) {
	root := plant(t, map[string]string{
		"block/nbd0/size": "0\n",
		"block/nbd1/pid":  "77\n", "block/nbd1/size": "2048\n", "block/nbd1/ro": "1\n", "block/nbd1/backend": "via+x://y/z\n",
		"block/nbd1/mq/0/cpu_list": "0\n", "block/nbd1/mq/1/cpu_list": "1\n", "block/nbd1/queue/io_timeout": "30000\n",
		"block/nbd1/inflight": "       0        0\n", "block/nbd2/inflight": "       3        0\n",
		"block/nbd2/pid": "78\n", "block/nbd2/size": "8\n", "block/nbd2/ro": "0\n",
		"block/nbdx/pid": "79\n",
	})
	for n, want := range map[Node]State{
		0: {},
		1: {Attached: true, Size: 1 << 20, ReadOnly: true, Connections: 2, Backend: "via+x://y/z", RequestTimeout: 30 * time.Second},
		2: {Attached: true, Size: 4096},
		3: {},
	} {
		if got, err := n.state(root); got != want || err != nil {
			t.Errorf("%s: %+v, %v", n, got, err)
		}
	}
	for n, want := range map[Node]bool{0: false, 1: true, 2: false} {
		if got := n.idle(root); got != want {
			t.Errorf("%s: idle is %t", n, got)
		}
	}
	if n, found, err := findBackend(root, "via+x://y/z"); n != 1 || !found || err != nil {
		t.Errorf("found %v, %t, %v", n, found, err)
	}
	if n, found, err := findBackend(root, "via+x://y"); found || err != nil {
		t.Errorf("found %v, %v", n, err)
	}
}

func TestUse(t *testing.T) {
	const mounts = "22 1 0:21 / /proc rw - proc proc rw\n40 22 43:32 / /srv/my\\040disk rw,relatime - ext4 /dev/nbd1 rw\n41 22 43:66 / /p2 rw - ext4 /dev/nbd2p2 rw\n"
	root := plant(t, map[string]string{
		"block/nbd1/dev": "43:32\n", "block/nbd2/dev": "43:64\n", "block/nbd2/nbd2p2/dev": "43:66\n",
		"block/nbd3/dev": "43:96\n", "block/nbd4/holders/dm-0/name": "x\n", "block/nbd5/nbd5p1/holders/md0/name": "x\n",
		"self/mountinfo": mounts, "swaps": "Filename Type\n/dev/nbd3p1 partition 1 0 -2\n",
	})
	for n, want := range map[Node]string{
		1: "mounted at /srv/my disk: unmount it first", 2: "mounted at /p2:", 3: "swap space: swapoff /dev/nbd3p1 first",
		4: "part of /dev/dm-0:", 5: "part of /dev/md0:", 6: "used by another program",
	} {
		if got := n.use(root, root); !strings.HasPrefix(got, want) {
			t.Errorf("%s is %q, not %q", n, got, want)
		}
	}
}

// lockedFolder makes the test program hold the lock of device 5 in a folder.
const lockedFolder = "VIABLK_LOCKED_FOLDER"

func TestMain(m *testing.M) {
	if folder := os.Getenv(lockedFolder); folder != "" {
		if _, err := acquireLock(folder, 5); err != nil {
			os.Stdout.WriteString(err.Error() + "\n")
			os.Exit(1)
		}
		os.Stdout.WriteString("locked\n")
		_ = unix.Pause() // until it is killed
	}
	os.Exit(m.Run())
}

// Another process has a device, and is killed.
func TestLock(t *testing.T) {
	folder := filepath.Join(t.TempDir(), "run")
	if pid, err := Node(5).server(folder); err != nil || pid != 0 {
		t.Errorf("without the folder: process %d", pid)
	}
	other := exec.Command(os.Args[0])
	other.Env = append(os.Environ(), lockedFolder+"="+folder)
	output, err := other.StdoutPipe()
	if err == nil {
		err = other.Start()
	}
	if err != nil {
		t.Fatal(err)
	}
	line := make([]byte, len("locked\n"))
	if _, err := output.Read(line); err != nil || string(line) != "locked\n" {
		t.Fatalf("the other process says %q, %v", line, err)
	}
	if pid, err := Node(5).server(folder); err != nil || pid != other.Process.Pid {
		t.Errorf("served by process %d, not %d", pid, other.Process.Pid)
	}
	if l, err := acquireLock(folder, 5); !errors.Is(err, ErrBusy) {
		t.Errorf("locked twice: %v, %v", l, err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	killed := make(chan error, 1)
	go func() { killed <- errors.Join(other.Process.Kill(), ctx.Err()) }()
	l, err := awaitLock(ctx, folder, 5)
	if err != nil {
		t.Fatal(err)
	}
	if err := <-killed; err != nil {
		t.Error(err)
	}
	if pid, err := Node(5).server(folder); err != nil || pid != os.Getpid() {
		t.Errorf("served by process %d", pid)
	}
	l.release()
	if pid, err := Node(5).server(folder); err != nil || pid != 0 {
		t.Errorf("served by process %d after the lock was released", pid)
	}
	if err := other.Wait(); err == nil {
		t.Error("the other process was not killed")
	}
}
