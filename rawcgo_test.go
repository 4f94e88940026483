package viablk_test

import (
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// readsRawCgo is a line of the Makefile that checks packages of a tag that
// needs cgo.
var readsRawCgo = regexp.MustCompile(`(?m)^\t.*(?:vet|staticcheck\S*|checklocks) .*\$\((?:VERBS|RBD|CEPH)\).*$`)

// staleCgoLines returns the lines of a Makefile that check cgo packages with
// the paths of a cache that other clones of the repository fill as well.
func staleCgoLines(makefile string) []string {
	return slices.DeleteFunc(readsRawCgo.FindAllString(makefile, -1), func(line string) bool {
		return strings.HasPrefix(line, "\t$(RAW_CGO) ")
	})
}

// TestChecksOfCgoReadThisClone: go vet fails over a package of cgo that a clone
// which is gone has compiled with -trimpath.
func TestChecksOfCgoReadThisClone(t *testing.T) {
	makefile, err := os.ReadFile("Makefile")
	if err != nil {
		t.Fatal(err)
	}
	if n := len(readsRawCgo.FindAllString(string(makefile), -1)); n < 4 {
		t.Fatalf("only %d lines were found that check packages of cgo", n)
	}
	if lines := staleCgoLines(string(makefile)); len(lines) != 0 {
		t.Errorf("without $(RAW_CGO): %q", lines)
	}
	for _, planted := range []string{"\tCGO_ENABLED=1 $(GO) vet -tags $(CEPH) ./a\n", "\tbin/staticcheck-$(STATICCHECK) -tags $(VERBS) ./a\n"} {
		if len(staleCgoLines(planted)) != 1 {
			t.Errorf("%q is not found", planted)
		}
	}
}
