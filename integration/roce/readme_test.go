package roce

import (
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/viablk/viablk/integration/netbed"
	"github.com/viablk/viablk/integration/testbed"
)

// setupLines are the lines of a README that set a secure disk up, below this
// one.
const setupLines = "## Serve and attach a disk"

// TestSetupOfREADME runs the commands with which the README sets a disk up
// between two hosts, as they stand there, and copies data to the disk and back.
// Only files are in other places, and the disk is no device of the kernel.
func TestSetupOfREADME(t *testing.T) {
	text, err := os.ReadFile("../../README.md")
	testbed.Must(t, err)
	_, section, _ := strings.Cut(string(text), setupLines)
	lines := regexp.MustCompile(`(?m)^    (server|client|admin)[$#] viablk (.*)$`).FindAllStringSubmatch(section, 5)
	if len(lines) != 5 {
		t.Fatalf("the README has %d commands", len(lines))
	}
	b := netbed.New(t, netbed.Options{Whole: true})
	b.B.AddAddress(netip.MustParseAddr("192.0.2.1"))
	b.A.AddAddress(netip.MustParseAddr("192.0.2.2"))
	here := testbed.Folder(t)
	at := func(place testbed.Place) testbed.Place {
		return func(cmd *exec.Cmd) error {
			cmd.Dir = here
			return place(cmd)
		}
	}
	path := testbed.SparseFile(t, 16<<20)
	var served, attached *testbed.Process
	for _, line := range lines {
		args := strings.Fields(line[2])
		for i, word := range args {
			args[i] = strings.Replace(word, "file:/srv/disk.img", "file:"+path, 1)
		}
		switch args[0] {
		case "target":
			served = testbed.StartBinaryAt(t, at(b.B.StartGroup), testbed.Program(t), args...)
		case "attach":
			args = append(args[:slices.Index(args, "--device")], "--nbd", "nbd+unix:///disk?socket="+filepath.Join(here, "n"))
			attached = testbed.StartBinaryAt(t, at(b.A.StartGroup), testbed.Program(t), args...)
		default:
			cmd := exec.Command(testbed.Program(t), args...)
			cmd.Dir = here
			if out, err := cmd.CombinedOutput(); err != nil {
				t.Fatalf("%s: %v\n%s", line[2], err, out)
			}
		}
	}
	if served == nil || attached == nil {
		t.Fatal("the README serves no disk, or attaches none")
	}
	k := testbed.Connect(t, attached.URI("disk", "nbd+unix"))
	k.Ask("fill 0 1048576 5", "ok")
	k.Ask("check 0 1048576 5", "ok")
	k.Disconnect()
	if s := attached.Status().Initiators[0].Security; s == nil || s.Cipher != "AES-256-GCM" || s.Peer[0] != "storage.example" {
		t.Errorf("the session is not sealed: %+v", s)
	}
	attached.Stop()
	served.Stop()
}
