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

// runMutants makes TestMutants run the suite against each mutant; see make
// mutants.
var runMutants = flag.Bool("mutants", false, "run the tests against every planted bug")

// mutantVariable tells the tests that they run against a mutant.
const mutantVariable = "VIABLK_MUTANT"

// mutant is a bug planted in the sources: in file, old is replaced by new.
type mutant struct {
	name string
	file string
	old  string
	new  string
}

// mutants are typical bugs of a registration cache. The suite catches each.
var mutants = []mutant{
	{"a lease is never released", "lease.go", "if !r.release() {", "if r.state.Load() != 0 {"},
	{"the last release does not end the region", "lease.go", "if !r.release() {", "if !r.release() || true {"},
	{"a batch ends a leased region", "evict.go", "case !r.markDead():\n\t\t\tg.mu.Unlock()", "case r.state.Load()&stateDead != 0:\n\t\t\tg.mu.Unlock()"},
	{"a batch keeps its budget", "evict.go", "\t\tc.unreserve()\n\t\tc.live.remove(r)\n\t\tr.arena", "\t\tc.live.remove(r)\n\t\tr.arena"},
	{"a batch stays in the index", "evict.go", "\t\t\tg.removeLocked(r)\n\t\t\tdying", "\t\t\tdying"},
	{"a batch forgets regions with a locked granule", "evict.go", "single = append(single, r)", "_ = single"},
	{"the policy does not forget an ended region", "evict.go", "r.forgetPending.Store(true)\n\t\tc.reaper.push(r)", "c.reaper.push(r)"},
	{"a region is deregistered twice", "evict.go", "if !r.markDead() {\n\t\treturn r.state.Load()&stateDead != 0\n\t}", "if r.state.Load()&stateLeases != 0 {\n\t\treturn false\n\t}"},
	{"a leased region is evicted", "region.go", "return r.state.CompareAndSwap(0, stateDead) || r.state.CompareAndSwap(stateRevoked, stateDead)", "return r.state.Or(stateDead)&stateDead == 0"},
	{"a dead region is leased", "region.go", "&(stateDead|stateRevoked) == 0 {\n\t\treturn true", "&stateRevoked == 0 {\n\t\treturn true"},
	{"a revoked region is leased", "region.go", "&(stateDead|stateRevoked) == 0 {\n\t\treturn true", "&stateDead == 0 {\n\t\treturn true"},
	{"the last visitor of a revoked region does not end it", "acquire.go", "if last {", "if false && last {"},
	{"revoked without taking access away", "evict.go", "err = errors.Join(err, r.memory.SetAttributes(via.MemAttributes{Ptag: void}))", "err = errors.Join(err, nil); _ = void"},
	{"a handle of the generation before", "acquire.go", "handle: m.Handle(),", "handle: m.Handle() - 1<<16,"},
	{"no second lookup under the lock", "acquire.go", "if r := g.find(tag, access); r != nil && c.hit(r) {\n\t\t\tg.mu", "if r := (*region)(nil); r != nil && c.hit(r) {\n\t\t\tg.mu"},
	{"registers in a closed arena", "acquire.go", "if a.closed.Load() {", "if false {"},
	{"budget off by one", "cache.go", "if n >= int64(c.budget) {", "if n > int64(c.budget) {"},
	{"budget returned before deregistration", "evict.go", "g.removeLocked(r)\n\t// Before", "g.removeLocked(r)\n\tc.unreserve()\n\tdefer c.reserved.Add(1)\n\t// Before"},
	{"a failed registration keeps its budget", "acquire.go", "c.count.registerFailures.Add(1)\n\t\tc.unreserve()", "c.count.registerFailures.Add(1)"},
	{"budget never returned", "evict.go", "\tc.unreserve()\n\tc.live.remove(r)", "\tc.live.remove(r)"},
	{"never deregistered", "evict.go", "if err := r.memory.Deregister(); err != nil {", "if err := error(nil); err != nil {"},
	{"left in the index", "evict.go", "g.removeLocked(r)\n\t// Before", "// Before"},
	{"the tail of the index is lost", "granule.go", "at.Store(r.next.Load())", "at.Store(nil)"},
	{"access is not compared", "granule.go", "if r.tag == tag && r.access == access {", "if r.tag == tag {"},
	{"the tag is not compared", "granule.go", "if r.tag == tag && r.access == access {", "if r.access == access {"},
	{"OnExit is lost", "ristretto.go", "if r != nil {", "if r != nil && r.index%7 != 0 {"},
	{"hashes collide", "ristretto.go", "return mix(key), 0", "return mix(key) & 0xff, 0"},
	{"Set beside Close", "ristretto.go", "bool {\n\tp.mu.RLock()\n\tdefer p.mu.RUnlock()\n\tif p.closed {\n\t\treturn false\n\t}\n", "bool {\n"},
	{"a refused region stays retained", "acquire.go", "r.unretain() // the", "// the"},
	{"unretained twice", "region.go", "return was&stateRetained != 0, was&^stateRevoked == stateRetained", "return true, was&^stateRevoked == stateRetained"},
	{"an idle evicted region is not ended", "evict.go", "case idle:\n\t\tc.reaper.push(r)", "case idle:"},
	{"a miss does not end its victim", "acquire.go", "if c.inlineEvict {", "if false && c.inlineEvict {"},
	{"Invalidate misses the last granule", "evict.go", "g <= (off+uint64(len(buf))-1)>>c.shift", "g < (off+uint64(len(buf))-1)>>c.shift"},
	{"Invalidate leaves the retained bit", "evict.go", "if cleared, _ := r.unretain(); cleared {\n\t\tcount.Add(1)", "if cleared := r.state.Load()&stateRetained != 0; cleared {\n\t\tcount.Add(1)"},
	{"Close forgets the index", "arena.go", "leased += a.cache.withdraw(&a.granules[i])", "_ = i"},
	{"unmapped under a lease", "arena.go", "leased > 0 || buffers > 0", "buffers > 0"},
	{"unmapped under an allocated buffer", "arena.go", "leased > 0 || buffers > 0", "leased > 0"},
	{"the reaper accepts a region once only", "reaper.go", "r.queued.Store(false)", ""},
	{"the sweep evicts a leased region", "liveset.go", "if !r.unleased() {\n\t\t\tcontinue", "if false {\n\t\t\tcontinue"},
	{"hits of removed regions are lost", "liveset.go", "l.removedHits += r.uses.Load()", ""},
	{"a buffer is freed twice", "space.go", "delete(s.lengths, int(off))", ""},
	{"the first miss registers", "policy_copy.go", "debt > price || !recent && k.uses*gain > price", "debt > price || !recent"},
	{"the uses of other granules teach nothing", "policy_copy.go", "debt > price || !recent && k.uses*gain > price", "debt > price"},
	{"debts do not add up", "policy_copy.go", "if recent {\n\t\tdebt +=", "if false {\n\t\tdebt +="},
	{"debts are never forgotten", "policy_copy.go", "if recent {\n\t\tdebt +=", "if true {\n\t\tdebt +="},
	{"a registration pays the whole debt", "policy_copy.go", "g.debt.Store(int64(price / 2))", "g.debt.Store(0)"},
	{"a registration pays nothing", "policy_copy.go", "g.debt.Store(int64(price / 2))", "g.debt.Store(int64(price))"},
	{"slow memory in place is never measured again", "policy_copy.go", "max(gain, exploreShare*float64(k.copies.mean()), 1)", "max(gain, 0*exploreShare)"},
	{"uses of one stream are counted", "policy_copy.go", "const runs = 4", "const runs = 1"},
	{"a copy without a time counts", "policy_copy.go", "n > 0 && elapsed > 0 {", "n > 0 {"},
	{"nothing is explored", "exploration.go", "return at < exploreBurst, timed", "return false, timed"},
	{"no back-off after refusals", "policy_copy.go", "p.pause, p.refused = refusalPause, 0", "p.refused = 0"},
	{"a registration costs nothing", "policy_copy.go", "return up + down", "return 0"},
	{"probation admits nothing", "probation.go", "r.probated.Swap(true) {", "r.probated.Swap(true) || true {"},
	{"calibration has no time limit", "calibrate.go", "<= calibrationMost {", "<= time.Hour {"},
	{"a buffer is put twice", "pool.go", "if s.pool != p || p.generations[s.unit] != s.generation {", "if s.pool != p {"},
	{"the pool is closed under a buffer", "pool.go", "if p.stats.Buffers != 0 {", "if false {"},
}

// Each mutant changes exactly one place, or the list is out of date. With
// -mutants the tests run against each, and must fail.
func TestMutants(t *testing.T) {
	if os.Getenv(mutantVariable) != "" {
		t.Skip("this is a mutant")
	}
	if *runMutants {
		t.Run("none", func(t *testing.T) {
			if out, err := suite(t, nil, 5*time.Minute, brief...); err != nil {
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
	// A mutant that hangs is caught by the timeout.
	out, err := suite(t, map[string]string{must(filepath.Abs(m.file))(t): changed}, 20*time.Second, brief...)
	var failed *exec.ExitError
	switch {
	case err == nil:
		t.Fatalf("%s survives", m.name)
	case !errors.As(err, &failed):
		t.Fatal(err)
	}
	t.Logf("caught by: %s", failureLine(string(out)))
}

// brief are the arguments of a run whose first failure suffices.
var brief = []string{"-test.failfast", "-test.short", "-rapid.nofailfile"}

// suite builds the tests with files replaced, and runs them with a timeout.
func suite(t *testing.T, replace map[string]string, most time.Duration, args ...string) (out []byte, err error) {
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
	run := exec.CommandContext(ctx, binary, append(args, limit)...)
	run.Env = append(os.Environ(), mutantVariable+"=1")
	return run.CombinedOutput()
}

// failureLine returns the line that names the failure caused by a mutant.
func failureLine(out string) string {
	for line := range strings.Lines(out) {
		for _, sign := range []string{"--- FAIL", "panic:", "fatal error:", "goleak:"} {
			if strings.Contains(line, sign) {
				return strings.TrimSpace(line)
			}
		}
	}
	return strings.TrimSpace(out[max(0, len(out)-200):])
}
