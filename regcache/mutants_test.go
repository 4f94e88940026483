package regcache

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// runMutants has TestMutants run the suite against each mutant; make mutants does.
var runMutants = flag.Bool("mutants", false, "run the tests against every planted bug")

// mutantVariable tells the tests that they are run against a mutant.
const mutantVariable = "VIABLK_MUTANT"

// mutant is a bug planted in the sources: in file, old becomes new.
type mutant struct {
	name string
	file string
	old  string
	new  string
}

// mutants are the bugs that a registration cache can have. The suite catches each.
var mutants = []mutant{
	{"a lease is not given back", "lease.go", "if !r.drop() {", "if r.state.Load() != 0 {"},
	{"the last release does not end the region", "lease.go", "if !r.drop() {", "if !r.drop() || true {"},
	{"a batch ends what is in use", "evict.go", "case !r.die():\n\t\t\ts.mu.Unlock()", "case r.state.Load()&stateDead != 0:\n\t\t\ts.mu.Unlock()"},
	{"a batch keeps its budget", "evict.go", "\t\tc.unreserve()\n\t\tc.live.remove(r)\n\t\tr.arena", "\t\tc.live.remove(r)\n\t\tr.arena"},
	{"a batch stays in the index", "evict.go", "\t\t\ts.removeLocked(r)\n\t\t\tdying", "\t\t\tdying"},
	{"a batch forgets whom it did not get", "evict.go", "single = append(single, r)", "_ = single"},
	{"the policy is not told of an end", "evict.go", "r.forget.Store(true)\n\t\tc.reaper.push(r)", "c.reaper.push(r)"},
	{"two owners of the end: deregistered twice", "evict.go", "if !r.die() {\n\t\treturn r.state.Load()&stateDead != 0\n\t}", "if r.state.Load()&stateLeases != 0 {\n\t\treturn false\n\t}"},
	{"eviction in use", "region.go", "return r.state.CompareAndSwap(0, stateDead) || r.state.CompareAndSwap(stateRevoked, stateDead)", "return r.state.Or(stateDead)&stateDead == 0"},
	{"a dead region is leased", "region.go", "&(stateDead|stateRevoked) == 0 {\n\t\treturn true", "&stateRevoked == 0 {\n\t\treturn true"},
	{"a revoked region is leased", "region.go", "&(stateDead|stateRevoked) == 0 {\n\t\treturn true", "&stateDead == 0 {\n\t\treturn true"},
	{"the last visitor of a revoked region leaves it", "acquire.go", "if last {", "if false && last {"},
	{"revoked without taking access away", "evict.go", "err = errors.Join(err, r.memory.SetAttributes(via.MemAttributes{Ptag: void}))", "err = errors.Join(err, nil); _ = void"},
	{"a handle of the generation before", "acquire.go", "handle: m.Handle(),", "handle: m.Handle() - 1<<16,"},
	{"no second look under the lock", "acquire.go", "if r := s.find(tag, access); r != nil && c.hit(r) {\n\t\t\ts.mu", "if r := (*region)(nil); r != nil && c.hit(r) {\n\t\t\ts.mu"},
	{"registers in a closed arena", "acquire.go", "if a.closed.Load() {", "if false {"},
	{"budget off by one", "cache.go", "if n >= int64(c.budget) {", "if n > int64(c.budget) {"},
	{"budget returned before the NIC let go", "evict.go", "s.removeLocked(r)\n\t// Before", "s.removeLocked(r)\n\tc.unreserve()\n\tdefer c.reserved.Add(1)\n\t// Before"},
	{"a failed registration keeps its budget", "acquire.go", "c.count.registerFailures.Add(1)\n\t\tc.unreserve()", "c.count.registerFailures.Add(1)"},
	{"budget never returned", "evict.go", "\tc.unreserve()\n\tc.live.remove(r)", "\tc.live.remove(r)"},
	{"never deregistered", "evict.go", "if err := r.memory.Deregister(); err != nil {", "if err := error(nil); err != nil {"},
	{"left in the index", "evict.go", "s.removeLocked(r)\n\t// Before", "// Before"},
	{"the rest of the index is lost", "slot.go", "at.Store(r.next.Load())", "at.Store(nil)"},
	{"access is not looked at", "slot.go", "if r.tag == tag && r.access == access {", "if r.tag == tag {"},
	{"the tag is not looked at", "slot.go", "if r.tag == tag && r.access == access {", "if r.access == access {"},
	{"OnExit is lost", "ristretto.go", "if r != nil {", "if r != nil && r.index%7 != 0 {"},
	{"hashes collide", "ristretto.go", "return mix(key), 0", "return mix(key) & 0xff, 0"},
	{"Set beside Close", "ristretto.go", "bool {\n\ta.mu.RLock()\n\tdefer a.mu.RUnlock()\n\tif a.closed {\n\t\treturn false\n\t}\n", "bool {\n"},
	{"what is refused stays retained", "acquire.go", "r.unretain() // the", "// the"},
	{"unretained twice", "region.go", "return was&stateRetained != 0, was&^stateRevoked == stateRetained", "return true, was&^stateRevoked == stateRetained"},
	{"an idle eviction is forgotten", "evict.go", "case idle:\n\t\tc.reaper.push(r)", "case idle:"},
	{"a miss leaves what it pushed out", "acquire.go", "if c.prompt {", "if false && c.prompt {"},
	{"Invalidate misses the last granule", "evict.go", "g <= (off+uint64(len(buf))-1)>>c.shift", "g < (off+uint64(len(buf))-1)>>c.shift"},
	{"Invalidate leaves the retained bit", "evict.go", "if cleared, _ := r.unretain(); cleared {\n\t\tcount.Add(1)", "if cleared := r.state.Load()&stateRetained != 0; cleared {\n\t\tcount.Add(1)"},
	{"Close forgets the index", "arena.go", "leased += a.cache.withdraw(&a.slots[i])", "_ = i"},
	{"unmapped under a lease", "arena.go", "leased > 0 || buffers > 0", "buffers > 0"},
	{"unmapped under a buffer", "arena.go", "leased > 0 || buffers > 0", "leased > 0"},
	{"the reaper takes a region once only", "reaper.go", "r.queued.Store(false)", ""},
	{"the sweep takes what is leased", "liveset.go", "if !r.unused() {\n\t\t\tcontinue", "if false {\n\t\t\tcontinue"},
	{"hits of the dead are lost", "liveset.go", "l.gone += r.uses.Load()", ""},
	{"a buffer is freed twice", "space.go", "delete(s.lengths, int(off))", ""},
	{"the first miss registers", "chooser.go", "first = true\n\t\tc.stats.FirstMisses++", "v.Zero = k.misses.zero"},
	{"first misses explore", "chooser.go", "if explore && !first && (hit", "if explore && (first || hit"},
	{"an unknown time of a copy counts", "chooser.go", "n > 0 && took > 0 {", "n > 0 {"},
	{"misses never rest", "class.go", "k.misses = side{}\n\t\tk.stop()", "k.rest = leastRest"},
	{"nothing is explored", "exploration.go", "return at < exploreBurst, timed", "return false, timed"},
	{"a refusing NIC is asked again and again", "chooser.go", "c.pause, c.refused = refusalPause, 0", "c.refused = 0"},
	{"one comparison is enough to change sides", "class.go", "s.ahead >= 2 {", "s.ahead >= 1 {"},
	{"a registration costs nothing", "chooser.go", "return up + down", "return 0"},
	{"nothing is on trial", "trial.go", "r.tried.Swap(true) {", "r.tried.Swap(true) || true {"},
	{"hope is not lost", "class.go", "k.hope = min(4*k.hope, mostHope)", "k.hope = leastHope"},
	{"registrations that explore are not paid for", "exploration.go", "if c.purse < registration {", "if false {"},
	{"calibration takes what it takes", "calibrate.go", "<= calibrationMost {", "<= time.Hour {"},
	{"a slot is put twice", "pool.go", "if s.pool != p || p.holder[s.unit] != s.holder {", "if s.pool != p {"},
	{"the pool is closed under a slot", "pool.go", "if p.stats.Slots != 0 {", "if false {"},
}

// Each mutant changes exactly one place, or the list is out of date. With
// -mutants the tests run against each, and have to fail.
func TestMutants(t *testing.T) {
	if os.Getenv(mutantVariable) != "" {
		t.Skip("this is a mutant")
	}
	if *runMutants {
		t.Run("none", func(t *testing.T) {
			if out, err := suite(t, nil, 5*time.Minute); err != nil {
				t.Fatalf("the tests fail without a mutant: %v\n%s", err, out)
			}
		})
	}
	for _, m := range mutants {
		t.Run(m.name, func(t *testing.T) {
			source := must(os.ReadFile(m.file))(t)
			if n := strings.Count(string(source), m.old); n != 1 {
				t.Fatalf("%s has %q %d times", m.file, m.old, n)
			}
			if *runMutants {
				m.run(t, strings.Replace(string(source), m.old, m.new, 1))
			}
		})
	}
}

// run runs the tests with the changed source laid over the file.
func (m *mutant) run(t *testing.T, source string) {
	changed := filepath.Join(t.TempDir(), m.file)
	if err := os.WriteFile(changed, []byte(source), 0o600); err != nil {
		t.Fatal(err)
	}
	// A mutant may hang; then the time is over, and it is caught as well.
	out, err := suite(t, map[string]string{must(filepath.Abs(m.file))(t): changed}, 20*time.Second)
	var failed *exec.ExitError
	switch {
	case err == nil:
		t.Fatalf("%s survives", m.name)
	case !errors.As(err, &failed):
		t.Fatal(err)
	}
	t.Logf("caught by: %s", verdictOf(string(out)))
}

// suite builds the tests with files replaced, and runs them for a time at most.
func suite(t *testing.T, replace map[string]string, most time.Duration) (out []byte, err error) {
	t.Helper()
	dir := t.TempDir()
	overlay, binary := filepath.Join(dir, "overlay.json"), filepath.Join(dir, "mutant.test")
	list := must(json.Marshal(map[string]map[string]string{"Replace": replace}))(t)
	if err := os.WriteFile(overlay, list, 0o600); err != nil {
		t.Fatal(err)
	}
	if out, err := exec.Command("go", "test", "-c", "-vet=off", "-overlay", overlay, "-o", binary, ".").CombinedOutput(); err != nil {
		t.Fatalf("the mutant does not compile: %v\n%s", err, out)
	}
	ctx, cancel := context.WithTimeout(context.Background(), most)
	defer cancel()
	limit := "-test.timeout=" + (most * 3 / 4).String()
	run := exec.CommandContext(ctx, binary, "-test.failfast", "-test.short", limit, "-rapid.nofailfile")
	run.Env = append(os.Environ(), mutantVariable+"=1")
	return run.CombinedOutput()
}

// verdictOf returns the line that says what caught a mutant.
func verdictOf(out string) string {
	for line := range strings.Lines(out) {
		for _, sign := range []string{"--- FAIL", "panic:", "fatal error:", "goleak:"} {
			if strings.Contains(line, sign) {
				return strings.TrimSpace(line)
			}
		}
	}
	return strings.TrimSpace(out[max(0, len(out)-200):])
}
