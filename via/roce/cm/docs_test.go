package cm_test

import (
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/viablk/viablk/via/roce/cm"
)

// readTables returns the indented lines of docs/roce.md as words, by heading,
// and its text.
func readTables(t *testing.T) (tables map[string][][]string, text string) {
	t.Helper()
	b, err := os.ReadFile(filepath.Join("..", "..", "..", "docs", "roce.md"))
	if err != nil {
		t.Fatal(err)
	}
	tables, heading := make(map[string][][]string), ""
	for line := range strings.Lines(string(b)) {
		if strings.HasPrefix(line, "#") {
			heading = strings.TrimSpace(strings.TrimLeft(line, "# "))
		} else if row, ok := strings.CutPrefix(line, "    "); ok {
			tables[heading] = append(tables[heading], strings.Fields(row))
		}
	}
	return tables, strings.Join(strings.Fields(string(b)), " ")
}

// The page has the states, times and limits of the code.
func TestDocumentation(t *testing.T) {
	tables, text := readTables(t)
	var states []string
	for _, row := range tables["States"] {
		states = append(states, row[0])
	}
	want := slices.Clone(cm.States())
	slices.Sort(states)
	slices.Sort(want)
	if !slices.Equal(states, want) {
		t.Errorf("states %q, want %q", states, want)
	}
	defaults := reflect.ValueOf(cm.Defaults())
	if len(tables["Times"]) != 4 {
		t.Errorf("%d times, want 4", len(tables["Times"]))
	}
	for _, row := range tables["Times"] {
		field := defaults.FieldByName(row[0])
		if !field.IsValid() || time.Duration(field.Int()).String() != row[1] {
			t.Errorf("%s is documented as %s", row[0], row[1])
		}
	}
	d := cm.Defaults()
	for _, sentence := range []string{
		fmt.Sprintf("At most %d requests wait", d.Pending),
		fmt.Sprintf("at most %d from one IP address", d.PendingPerAddr),
		fmt.Sprintf("holds %d requests that were refused, and %d connections", d.Pending, cm.MaxEnded),
		fmt.Sprintf("VendorID %#x", cm.VendorID),
		fmt.Sprintf("at most %.0f minutes", cm.MaxThink.Minutes()),
		fmt.Sprintf("up to %.0f s", cm.MaxInterval.Seconds()),
	} {
		if !strings.Contains(text, sentence) {
			t.Errorf("the page does not say %q", sentence)
		}
	}
}
