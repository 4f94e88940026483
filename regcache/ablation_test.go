package regcache

import (
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"
)

// runAblations makes TestAblations measure the copy decision without each of
// its parts; see make ablations.
var runAblations = flag.Bool("ablations", false, "measure the copy decision without each of its parts")

// ablations remove a part of the copy decision each: in file, old is replaced
// by new. make ablations prints their figures.
var ablations = []mutant{
	{"the half of the debt that remains", "policy_copy.go", "g.debt.Store(int64(price / 2))", "g.debt.Store(0)"},
	{"known uses", "policy_copy.go", "debt > price || !recent && k.uses*gain > price", "debt > price"},
	{"runs of several granules", "policy_copy.go", "const runs = 4", "const runs = 1"},
	{"recency", "policy_copy.go", "if recent {\n\t\tdebt +=", "if true {\n\t\tdebt +="},
	{"debts", "policy_copy.go", "debt > price || !recent && k.uses*gain > price", "gain > price || !recent && k.uses*gain > price"},
	{"classes of sizes", "sizeclass.go", "return min(max(bits.Len(uint(n))-bits.Len(uint(minClassSize)), 0), sizeClasses-1)", "return (bits.Len(uint(n)) - bits.Len(uint(n))) + 7"},
	{"exploration", "exploration.go", "return at < exploreBurst, timed", "return false, timed"},
	{"measured times", "exploration.go", "return at < exploreBurst, timed", "return at < 0*exploreBurst, timed && at < 0"},
	{"medians", "sizeclass.go", "return sorted[batchSize/2]", "sum := 0.0\n\tfor _, ns := range sorted {\n\t\tsum += ns\n\t}\n\treturn sum / batchSize"},
	{"short periods at first", "exploration.go", "every = youngEvery", "every = exploreEvery + 0*youngEvery"},
	{"probation", "probation.go", "r.probated.Swap(true) {", "r.probated.Swap(true) || true {"},
}

// ratioLine matches what world.compare logs, and the name of its test.
var ratioLine = regexp.MustCompile(`=== RUN +TestDecisionIsNearTheBest/[a-z]+,_([a-z]+),|zerocopy \d+: ratio ([0-9.]+)`)

// Each ablation changes exactly one place. With -ablations the decision runs
// without each part, and the log says how many cells of the grid are below 0.95
// of the better fixed mode, by the NIC's price, and the least.
func TestAblations(t *testing.T) {
	if os.Getenv(mutantVariable) != "" {
		t.Skip("this is an ablation")
	}
	if *runAblations {
		t.Logf("%-34s %s", "as it is", ratios(t, nil))
	}
	for _, a := range ablations {
		source := string(must(os.ReadFile(a.file))(t))
		if n := strings.Count(source, a.old); n != 1 {
			t.Fatalf("%s: %s has %q %d times", a.name, a.file, a.old, n)
		}
		if !*runAblations {
			continue
		}
		changed := filepath.Join(t.TempDir(), a.file)
		if err := os.WriteFile(changed, []byte(strings.Replace(source, a.old, a.new, 1)), 0o600); err != nil {
			t.Fatal(err)
		}
		t.Logf("%-34s %s", "without "+a.name, ratios(t, map[string]string{must(filepath.Abs(a.file))(t): changed}))
	}
}

// ratios runs the grid with files replaced and describes its ratios.
func ratios(t *testing.T, replace map[string]string) (text string) {
	t.Helper()
	out, _ := suite(t, replace, 5*time.Minute, "-test.run=TestDecisionIsNearTheBest", "-test.v") // it fails below 0.95
	all, price := map[string][]float64{}, ""
	for _, m := range ratioLine.FindAllStringSubmatch(string(out), -1) {
		if m[1] != "" {
			price = m[1]
			continue
		}
		all[price] = append(all[price], must(strconv.ParseFloat(m[2], 64))(t))
	}
	for _, w := range worlds() {
		list, below := all[w.name], 0
		if len(list) == 0 {
			t.Fatalf("no ratios of %s:\n%s", w.name, out)
		}
		slices.Sort(list)
		for below < len(list) && list[below] < 0.95 {
			below++
		}
		text += fmt.Sprintf("  %s: %d of %d below, least %.2f, median %.2f;", w.name, below, len(list), list[0], list[len(list)/2])
	}
	return text
}
