package rights

import (
	"encoding/json"
	"flag"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

var plantedFlag = flag.Bool("rights.planted", false, "build the product with each planted bug and look for it")

// planted are bugs of the decision, and servers that do not ask for it.
var planted = []struct{ name, file, old, new string }{
	{"VIA opens without rights", "target/export.go", "\tswitch {\n\tcase x == nil:\n\t\twhy", "\tif x != nil {\n\t\tv = access.Granted\n\t}\n\tswitch {\n\tcase x == nil:\n\t\twhy"},
	{"VIA lists without rights", "target/export.go", "if access.Admits(i, x.Rights, access.List) == access.Granted {", "if x != nil {"},
	{"VIA tells of hidden exports", "target/session.go", "\tcase access.Hidden:\n", "\tcase access.Hidden:\n\t\tif x != nil {\n\t\t\treturn wire.OpenResponse{Status: wire.StatusPermission}, why\n\t\t}\n"},
	{"NBD opens without rights", "internal/nbd/rights.go", "\t\trights = e.Rights\n", "\t\treturn granted{Export: e}, nil\n"},
	{"NBD lists without rights", "internal/nbd/rights.go", "if access.Admits(n.identity, all[i].Rights, access.List) == access.Granted {", "if i >= 0 {"},
	{"NBD tells of hidden exports", "internal/nbd/rights.go", "\tn.logRefused(name, n.identity, reason)\n", "\tn.logRefused(name, n.identity, reason)\n\tif err == nil {\n\t\treturn granted{}, errReserved\n\t}\n"},
	{"readers write over NBD", "internal/nbd/rights.go", "return granted{Export: e, readOnly: true}, nil", "return granted{Export: e}, nil"},
	{"readers write", "internal/access/admits.go", "case has == toRead && m > ReadOnly:", "case false:"},
	{"guests get exports without lists", "internal/access/admits.go", "if i.guest && !i.Certified() {", "if false {"},
	{"certificates of initiators do not count", "target/secure.go", "i = w.login.identity.WithCertificate(r.Certificates[0])", "i = w.login.identity"},
	{"every process is root", "via/shm/listen.go", "func (in *incoming) PeerUID() uint32 { return in.peer.Uid }", "func (in *incoming) PeerUID() uint32 { return 0 }"},
}

// TestPlanted: each edit fits the sources; with -rights.planted the tests of
// this package find each bug.
func TestPlanted(t *testing.T) {
	root, err := filepath.Abs("../..")
	must(t, err)
	for _, p := range planted {
		t.Run(strings.ReplaceAll(p.name, " ", "-"), func(t *testing.T) {
			file := filepath.Join(root, p.file)
			source, err := os.ReadFile(file)
			must(t, err)
			if n := strings.Count(string(source), p.old); n != 1 {
				t.Fatalf("%s has %q %d times", p.file, p.old, n)
			}
			if !*plantedFlag {
				return
			}
			folder := t.TempDir()
			changed, overlay, program := filepath.Join(folder, "changed.go"), filepath.Join(folder, "overlay.json"), filepath.Join(folder, "rights.test")
			must(t, os.WriteFile(changed, []byte(strings.Replace(string(source), p.old, p.new, 1)), 0o600))
			text, err := json.Marshal(map[string]any{"Replace": map[string]string{file: changed}})
			must(t, err)
			must(t, os.WriteFile(overlay, text, 0o600))
			if out, err := exec.Command("go", "test", "-c", "-vet=off", "-overlay", overlay, "-o", program, ".").CombinedOutput(); err != nil {
				t.Fatalf("%v\n%s", err, out)
			}
			out, err := exec.Command(program, "-test.run", "TestTable$|TestHiddenIsUnknown$", "-test.timeout", "2m").CombinedOutput()
			if err == nil || !strings.Contains(string(out), "--- FAIL") {
				t.Errorf("not found: %v\n%s", err, out)
			}
		})
	}
}
