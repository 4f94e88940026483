package attack

import (
	"encoding/json"
	"flag"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/viablk/viablk/integration/program"
	"github.com/viablk/viablk/integration/testbed"
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
	root, err := program.Root()
	testbed.Must(t, err)
	for _, p := range planted {
		t.Run(strings.ReplaceAll(p.name, " ", "-"), func(t *testing.T) {
			folder, sources := t.TempDir(), map[string]string{}
			for _, e := range p.edits {
				at := filepath.Join(root, e.file)
				text, edited := sources[at]
				if !edited {
					b, err := os.ReadFile(at)
					testbed.Must(t, err)
					text = string(b)
				}
				if n := strings.Count(text, e.old); n != 1 {
					t.Fatalf("%s has %q %d times", e.file, e.old, n)
				}
				sources[at] = strings.Replace(text, e.old, e.new, 1)
			}
			if !*plantedFlag {
				return
			}
			binary := build(t, folder, sources)
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

// build builds viablk of other sources.
func build(t *testing.T, folder string, sources map[string]string) string {
	t.Helper()
	replace := map[string]string{}
	for at, text := range sources {
		replace[at] = filepath.Join(folder, strings.ReplaceAll(filepath.Base(filepath.Dir(at))+"-"+filepath.Base(at), ".go", ".txt"))
		testbed.Must(t, os.WriteFile(replace[at], []byte(text), 0o600))
	}
	text, err := json.Marshal(map[string]any{"Replace": replace})
	testbed.Must(t, err)
	overlay, binary := filepath.Join(folder, "overlay.json"), filepath.Join(folder, "viablk")
	testbed.Must(t, os.WriteFile(overlay, text, 0o600))
	if out, err := exec.Command("go", "build", "-overlay", overlay, "-o", binary, program.Module+"/cmd/viablk").CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	return binary
}
