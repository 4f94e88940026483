package nbdkernel

import (
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"testing"
)

// TestOrphans: a device is an orphan if viablk connected it and its process is
// gone. Other programs' devices, unconnected and served ones are not. A served
// device names its process.
func TestOrphans(t *testing.T) {
	root := plant(t, map[string]string{
		"block/nbd10/pid": "7\n", "block/nbd10/backend": "via+shm:///d", "block/nbd10/size": "2048\n",
		"block/nbd2/pid": "7\n", "block/nbd2/backend": "via+shm:///e",
		"block/nbd3/pid":  "7\n", // of nbd-client
		"block/nbd4/size": "0\n",
		"block/nbd5/pid":  "7\n", "block/nbd5/backend": "via+shm:///f",
		"block/nbd2p1x/pid": "7\n",
	})
	locks := filepath.Join(t.TempDir(), "run")
	served := exec.Command(os.Args[0])
	served.Env = append(os.Environ(), lockedFolder+"="+locks)
	output, err := served.StdoutPipe()
	if err == nil {
		err = served.Start()
	}
	if err != nil {
		t.Fatal(err)
	}
	line := make([]byte, len("locked\n"))
	if _, err := output.Read(line); err != nil {
		t.Fatal(err)
	}
	list := func() (nodes []Node) {
		found, err := orphans(root, locks)
		if err != nil {
			t.Error(err)
		}
		for _, d := range found {
			nodes = append(nodes, d.Node)
		}
		return nodes
	}
	if got := list(); !slices.Equal(got, []Node{2, 10}) {
		t.Errorf("while nbd5 is served: %v", got)
	}
	servers := make(map[Node]int)
	all, err := devices(root, locks)
	for _, d := range all {
		servers[d.Node] = d.Server
	}
	if want := map[Node]int{2: 0, 5: served.Process.Pid, 10: 0}; err != nil || !maps.Equal(servers, want) {
		t.Errorf("devices are served by %v, %v, not by %v", servers, err, want)
	}
	if err := served.Process.Kill(); err != nil {
		t.Error(err)
	}
	_ = served.Wait()
	if got := list(); !slices.Equal(got, []Node{2, 5, 10}) {
		t.Errorf("after its process was killed: %v", got)
	}
	if got, err := orphans(t.TempDir(), locks); got != nil || err != nil {
		t.Errorf("without the driver: %v, %v", got, err)
	}
}
