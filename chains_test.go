package viablk_test

import (
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// makefileNames returns the names of a list that the Makefile divides by "|".
func makefileNames(t *testing.T, makefile, variable string) []string {
	t.Helper()
	m := regexp.MustCompile(`(?m)^` + variable + ` := (\S+)$`).FindStringSubmatch(makefile)
	if m == nil {
		t.Fatalf("the Makefile has no %s", variable)
	}
	return strings.Split(m[1], "|")
}

// missingTests returns the names that no test function and no script has: "go
// test -run" passes over them.
func missingTests(files map[string]string, chains, scripts []string) (missing []string) {
	tests := make(map[string]bool)
	for name, content := range files {
		if strings.HasSuffix(name, "_test.go") {
			for _, m := range regexp.MustCompile(`(?m)^func (Test\w+)\(`).FindAllStringSubmatch(content, -1) {
				tests[m[1]] = true
			}
		}
	}
	for _, name := range chains {
		if !tests[name] {
			missing = append(missing, name)
		}
	}
	for _, name := range scripts {
		if _, ok := files["cmd/viablk/testdata/script/"+name+".txtar"]; !ok {
			missing = append(missing, name)
		}
	}
	return missing
}

// TestListsOfTestsExist: each test and script that the Makefile runs by its
// name is there.
func TestListsOfTestsExist(t *testing.T) {
	text, err := os.ReadFile("Makefile")
	if err != nil {
		t.Fatal(err)
	}
	files := readScripts(t)
	for name, content := range readTree(t) {
		files[name] = content
	}
	chains, scripts := makefileNames(t, string(text), "RACE_CHAINS"), makefileNames(t, string(text), "RACE_SCRIPTS")
	for _, name := range makefileNames(t, string(text), "KITS") {
		chains = append(chains, "Test"+name)
	}
	if missing := missingTests(files, chains, scripts); len(missing) != 0 {
		t.Errorf("the Makefile runs tests that are not there: %q", missing)
	}
	if got := missingTests(files, []string{"TestNone"}, []string{"gone"}); !slices.Equal(got, []string{"TestNone", "gone"}) {
		t.Errorf("names that are not there are not found: %q", got)
	}
}
