package attack

import (
	"flag"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/viablk/viablk/integration/program"
)

var plantedFlag = flag.Bool("attack.planted", false, "build viablk with each planted bug and look for it on the cable")

// edit replaces a text that a file has once.
type edit struct{ file, old, new string }

// planted are sessions that leave one path of payload in clear, at both ends:
// requests succeed, and what changes on the way is not noticed.
var planted = []struct {
	name  string
	edits []edit
}{
	{"messages are in clear", []edit{
		{"internal/seal/capsule.go", "\tkey.gcm.Seal(b[PrefixSize:PrefixSize], s.nonce[:], b[PrefixSize:PrefixSize+n], b[:PrefixSize])\n", ""},
		{"internal/seal/capsule.go", "return key.gcm.Open(b[PrefixSize:PrefixSize], o.nonce[:], b[PrefixSize:], b[:PrefixSize])", "return b[PrefixSize:len(b)-tagSize], nil"},
	}},
	{"payload of writes is in clear", []edit{
		{"internal/seal/payload.go", "\tcopy(dst, b[:n])\n", "\tif p.end == Initiator {\n\t\tcopy(dst, src)\n\t} else {\n\t\tcopy(dst, b[:n])\n\t}\n"},
		{"internal/seal/payload.go", "\tcopy(b[n:], tag[:])\n", "\tif p.end == Target {\n\t\tcopy(dst, src)\n\t\treturn nil\n\t}\n\tcopy(b[n:], tag[:])\n"},
	}},
	{"payload of reads is in clear", []edit{
		{"internal/seal/payload.go", "\tcopy(dst, b[:n])\n", "\tif p.end == Target {\n\t\tcopy(dst, src)\n\t} else {\n\t\tcopy(dst, b[:n])\n\t}\n"},
		{"internal/seal/payload.go", "\tcopy(b[n:], tag[:])\n", "\tif p.end == Initiator {\n\t\tcopy(dst, src)\n\t\treturn nil\n\t}\n\tcopy(b[n:], tag[:])\n"},
	}},
}

// TestPlanted: each edit fits the sources; with -attack.planted the tests on
// the cable find each bug, in what they capture and in what they change.
func TestPlanted(t *testing.T) {
	for _, p := range planted {
		t.Run(strings.ReplaceAll(p.name, " ", "-"), func(t *testing.T) {
			overlay := plant(t, p.edits)
			if !*plantedFlag {
				return
			}
			binary := build(t, overlay)
			for test, complaint := range map[string]string{
				"TestSecrecyOnCable": "sealed, and found map[", "TestFlipsOnCable": "the clients ended: ",
			} {
				out, err := exec.Command(os.Args[0], "-test.run", "^"+test+"$", "-test.timeout", "5m", "-attack.program", binary).CombinedOutput()
				if err == nil || !strings.Contains(string(out), complaint) {
					t.Errorf("%s does not find it: %v\n%s", test, err, out)
				}
			}
		})
	}
}

// build builds viablk of the sources of an overlay.
func build(t *testing.T, overlay string) string {
	t.Helper()
	binary := filepath.Join(t.TempDir(), "viablk")
	if out, err := exec.Command("go", "build", "-overlay", overlay, "-o", binary, program.Module+"/cmd/viablk").CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	return binary
}
