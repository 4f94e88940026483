package attack

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/viablk/viablk/integration/program"
	"github.com/viablk/viablk/integration/testbed"
)

// plantedBug is a bug with the tests that have to find it.
type plantedBug struct {
	name  string
	edits []edit
	found map[string][]string // tests by package
}

// plantedRekeys are bugs of rekeys.
var plantedRekeys = []plantedBug{
	{
		"the target takes any certificate in a rekey",
		[]edit{{
			"internal/handshake/target.go", "tls: newEngine(harden(c), tls.Server)}",
			"tls: newEngine(func() *tls.Config { c := harden(c); if of != nil { c.ClientAuth, c.VerifyConnection = tls.RequireAnyClientCert, nil }; return c }(), tls.Server)}",
		}},
		map[string][]string{"internal/handshake": {"TestDamagedRekeys"}, "initiator": {"TestRefusedRekey"}},
	},
	{
		"the initiator takes any certificate in a rekey",
		[]edit{{
			"internal/handshake/initiator.go", "tls: newEngine(harden(c), tls.Client)}",
			"tls: newEngine(func() *tls.Config { c := harden(c); if cfg.Rekey { c.InsecureSkipVerify, c.VerifyConnection = true, nil }; return c }(), tls.Client)}",
		}},
		map[string][]string{"internal/handshake": {"TestDamagedRekeys"}, "initiator": {"TestRefusedRekey"}},
	},
	{
		"another client takes the session over in a rekey",
		[]edit{{"internal/handshake/target.go", "if h.of != nil && !sameNames(h.of.Names, h.result.Names) {", "if false {"}},
		map[string][]string{"internal/handshake": {"TestDamagedRekeys"}, "initiator": {"TestRefusedRekey"}},
	},
	{
		"old keys open capsules behind those of the new ones",
		[]edit{
			{"internal/seal/capsule.go", "\tretired bool // the era: the next capsule is of a later one\n", "\tretired bool\n\told *keys\n"},
			{"internal/seal/capsule.go", "message, err = o.openLater(b)\n", "if message, err = o.openLater(b); err != nil && o.old != nil {\n\t\t\tmessage, err = o.open(o.old, b)\n\t\t}\n"},
			{"internal/seal/rekey.go", "\to.chain.succeed(next)\n\to.retired", "\to.old = o.chain.keys\n\to.chain.succeed(next)\n\to.retired"},
		},
		map[string][]string{"internal/seal": {"TestOldKeysAfterRekey"}},
	},
	{
		"old keys that have retired open capsules",
		[]edit{{"internal/seal/capsule.go", "case o.retired || b[eraAt]", "case b[eraAt]"}},
		map[string][]string{"internal/seal": {"TestOldKeysAfterRekey"}},
	},
	{
		"connections join by old keys after a rekey",
		[]edit{{"target/rekey.go", "\ts.authenticated.Load().Session.Retire()\n", ""}, {"target/rekey.go", "\tdelete(t.byKeys, s.oldKeys)\n\ts.oldKeys = [16]byte{}\n", ""}},
		map[string][]string{"target": {"TestKeysThatJoin"}},
	},
	{
		"the counter begins again without another key",
		[]edit{
			{"internal/seal/rekey.go", "\ts.chain.succeed(next)\n\ts.capsules", "\ts.chain.era, s.counter = next.era, 0\n\ts.capsules"},
			{"internal/seal/rekey.go", "message, err := o.open(next.keys, b)", "o.counter = 0\n\tmessage, err := o.open(o.chain.keys, b)"},
			{"internal/seal/rekey.go", "\to.chain.succeed(next)\n\to.retired", "\to.chain.era = next.era\n\to.retired"},
			{"internal/seal/capsule.go", "\t\tbinary.LittleEndian.Uint32(b[counterAt:]) != uint32(o.counter) {", "\t\tb[eraAt] == byte(o.chain.era) && binary.LittleEndian.Uint32(b[counterAt:]) != uint32(o.counter) {"},
		},
		map[string][]string{"internal/seal": {"TestRekey", "TestGoldenEra"}, "integration/attack": {"TestNoncesOfSessions"}},
	},
	{
		"the target follows before the initiator has the keys",
		[]edit{{"internal/seal/rekey.go", "case s.end == Target:\n\t\tif l.next != nil {", "case s.end == Target:\n\t\tif next, _, err := l.ring.newest().chains(l); err == nil && next.era != s.chain.era {\n\t\t\tl.next = &next\n\t\t}\n\t\tif l.next != nil {"}},
		map[string][]string{"internal/seal": {"TestRekey"}},
	},
	{
		"queues wait while certificates are read for a rekey",
		[]edit{
			{"initiator/rekey.go", "\t\"fmt\"\n\t\"time\"\n", "\t\"fmt\"\n\t\"sync\"\n\t\"time\"\n"},
			{"initiator/rekey.go", "\tcfg, err := k.s.cfg.Security()\n\tif err != nil {\n\t\tk.s.cfg.Log.Warn(\"no rekey", "\tamid.Lock()\n\tcfg, err := k.s.cfg.Security()\n\tamid.Unlock()\n\tif err != nil {\n\t\tk.s.cfg.Log.Warn(\"no rekey"},
			{"initiator/rekey.go", "// sessionKeys is what", "var amid sync.Mutex\n\n// sessionKeys is what"},
			{"initiator/queue.go", "func (q *Queue) Kick() { q.poster.kick() }", "func (q *Queue) Kick() {\n\tamid.Lock()\n\tdefer amid.Unlock()\n\tq.poster.kick()\n}"},
		},
		map[string][]string{"integration/attack": {"TestRequestsGoOnAmidRekeys"}},
	},
}

// TestPlantedRekeys: each edit fits the sources; with -attack.planted the tests
// of rekeys find each bug.
func TestPlantedRekeys(t *testing.T) { findPlanted(t, plantedRekeys) }

// findPlanted plants each bug, and with -attack.planted runs its tests, which
// have to fail.
func findPlanted(t *testing.T, bugs []plantedBug) {
	for _, p := range bugs {
		t.Run(strings.ReplaceAll(p.name, " ", "-"), func(t *testing.T) {
			overlay := plant(t, p.edits)
			if !*plantedFlag {
				return
			}
			for dir, tests := range p.found {
				for _, test := range tests {
					out, err := exec.Command("go", "test", "-overlay", overlay, "-count=1", "-run", "^"+test+"$", program.Module+"/"+dir).CombinedOutput()
					if err == nil || !strings.Contains(string(out), "--- FAIL: "+test) {
						t.Errorf("%s does not find it: %v\n%s", test, err, out)
					}
				}
			}
		})
	}
}

// plant makes an overlay of edited sources.
func plant(t *testing.T, edits []edit) (overlay string) {
	t.Helper()
	root, err := program.Root()
	testbed.Must(t, err)
	folder, sources, replace := t.TempDir(), map[string]string{}, map[string]string{}
	for _, e := range edits {
		at := filepath.Join(root, e.file)
		if _, edited := sources[at]; !edited {
			b, err := os.ReadFile(at)
			testbed.Must(t, err)
			sources[at] = string(b)
		}
		if n := strings.Count(sources[at], e.old); n != 1 {
			t.Fatalf("%s has %q %d times", e.file, e.old, n)
		}
		sources[at] = strings.Replace(sources[at], e.old, e.new, 1)
	}
	for at, text := range sources {
		replace[at] = filepath.Join(folder, filepath.Base(filepath.Dir(at))+"-"+filepath.Base(at)+".txt")
		testbed.Must(t, os.WriteFile(replace[at], []byte(text), 0o600))
	}
	text, err := json.Marshal(map[string]any{"Replace": replace})
	testbed.Must(t, err)
	overlay = filepath.Join(folder, "overlay.json")
	testbed.Must(t, os.WriteFile(overlay, text, 0o600))
	return overlay
}
