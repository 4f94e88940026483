package viablk_test

import (
	"fmt"
	"maps"
	"os"
	"path"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// maximumGlossary bounds the items of the glossary: a reader learns them.
const maximumGlossary = 60

// everywhere stands for all packages in an item of the glossary.
const everywhere = "all"

// An item of the glossary, and its term, meaning and packages.
var (
	glossaryItem  = regexp.MustCompile(`(?m)^- (.*)$`)
	glossaryParts = regexp.MustCompile(`^([^:]+): (.+) \(([^()]+)\)$`)
)

// qualifier is what a term has in parentheses: where it has its meaning.
var qualifier = regexp.MustCompile(` \([a-z]+\)$`)

// checkGlossary returns what is wrong with the glossary of a page: an item
// without a term, a meaning or an existing package, a term that its package
// does not use, a term twice, or too many items.
func checkGlossary(page string, sources tree) []string {
	_, section, ok := strings.Cut(page, "\n## Glossary\n")
	if !ok {
		return []string{"there is no glossary"}
	}
	section, _, _ = strings.Cut(section, "\n## ")
	text := make(map[string]string) // words of each folder
	for name, content := range sources {
		text[path.Dir(name)] += content + "\n"
	}
	text[everywhere] = strings.Join(slices.Collect(maps.Values(text)), "\n")
	var bad []string
	items := glossaryItem.FindAllStringSubmatch(section, -1)
	if len(items) == 0 {
		return []string{"the glossary has no items"}
	}
	if len(items) > maximumGlossary {
		bad = append(bad, fmt.Sprintf("the glossary has %d items, at most %d are allowed", len(items), maximumGlossary))
	}
	seen := make(map[string]bool)
	for _, item := range items {
		parts := glossaryParts.FindStringSubmatch(item[1])
		if parts == nil {
			bad = append(bad, fmt.Sprintf("the item %q does not have a term, a meaning and a package", item[1]))
			continue
		}
		term := parts[1]
		if seen[term] {
			bad = append(bad, fmt.Sprintf("%q has two meanings", term))
		}
		seen[term] = true
		word := regexp.MustCompile(`(?i)` + strings.ReplaceAll(qualifier.ReplaceAllString(term, ""), " ", `[ -]?(?:// |\n\s*// )?`))
		for folder := range strings.SplitSeq(parts[3], ", ") {
			switch content, ok := text[folder]; {
			case !ok:
				bad = append(bad, fmt.Sprintf("%q: there is no package %s", term, folder))
			case !word.MatchString(content):
				bad = append(bad, fmt.Sprintf("%q does not occur in %s", term, folder))
			}
		}
	}
	return bad
}

// The glossary is that of the code.
func TestGlossary(t *testing.T) {
	page, err := os.ReadFile("CONTRIBUTING.md")
	if err != nil {
		t.Fatal(err)
	}
	for _, complaint := range checkGlossary(string(page), readTree(t)) {
		t.Error("CONTRIBUTING.md: " + complaint)
	}
}

// Each rule of the glossary finds a planted item.
func TestGlossaryCanFail(t *testing.T) {
	const head = "# Page\n\n## Glossary\n\n"
	const good = "- bounce buffer: copied through (via, via/shm)\n- reap (via): collect (all)\n"
	sources := tree{"via/a.go": "package via\n\n// It has bounce\n// buffers.\n", "via/shm/a.go": "package shm\n\nvar bounceBuffer, reaped int\n"}
	if bad := checkGlossary(head+good+"\n## Next\n\n- a\n", sources); len(bad) != 0 {
		t.Fatalf("the good glossary is refused: %q", bad)
	}
	for item, want := range map[string]string{
		"- word: is\n":             `the item "word: is" does not have a term, a meaning and a package`,
		"- word: (via)\n":          `the item "word: (via)" does not have a term, a meaning and a package`,
		"- bounce: x (via/none)\n": `"bounce": there is no package via/none`,
		"- bounces: x (via)\n":     `"bounces" does not occur in via`,
		"- reap (via): x (all)\n":  `"reap (via)" has two meanings`,
	} {
		if bad := checkGlossary(head+good+item, sources); !slices.Equal(bad, []string{want}) {
			t.Errorf("got %q, want %q", bad, want)
		}
	}
	var many strings.Builder
	for i := range maximumGlossary + 1 {
		fmt.Fprintf(&many, "- bounce (%s): x (via)\n", strings.Repeat("a", i+1))
	}
	want := []string{"the glossary has 61 items, at most 60 are allowed"}
	if bad := checkGlossary(head+many.String(), sources); !slices.Equal(bad, want) {
		t.Errorf("got %q, want %q", bad, want)
	}
	for page, want := range map[string]string{"# Page\n": "there is no glossary", head: "the glossary has no items"} {
		if bad := checkGlossary(page, sources); !slices.Equal(bad, []string{want}) {
			t.Errorf("got %q, want %q", bad, want)
		}
	}
}
