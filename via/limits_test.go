package via_test

import (
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/viablk/viablk/via"
	"github.com/viablk/viablk/via/roce"
	"github.com/viablk/viablk/via/shm"
)

// columnGap separates the columns of the table of limits.
var columnGap = regexp.MustCompile(` {2,}`)

// The manual's table of limits has each field of Limits, with what each
// provider says.
func TestManualOfLimits(t *testing.T) {
	text, err := os.ReadFile(filepath.Join("..", "docs", "via.md"))
	ok(t, err)
	_, section, _ := strings.Cut(string(text), "\n## Limits\n")
	section, _, _ = strings.Cut(section, "\n## ")
	var rows [][]string
	for line := range strings.Lines(section) {
		if row, ok := strings.CutPrefix(line, "    "); ok {
			rows = append(rows, columnGap.Split(strings.TrimSpace(row), -1))
		}
	}
	if len(rows) < 3 {
		t.Fatal("the manual has no table of limits")
	}
	providers := []via.Provider{shm.New(shm.Options{}), roce.New(roce.Options{})}
	limits := make([]reflect.Value, len(providers))
	for i, p := range providers {
		if rows[0][1+i] != p.Name() {
			t.Fatalf("column %d is of %s, want %s", 1+i, rows[0][1+i], p.Name())
		}
		nic, err := via.OpenNic(p, "")
		ok(t, err)
		limits[i] = reflect.ValueOf(nic.Limits())
		ok(t, nic.Close())
	}
	seen := make(map[string]bool)
	for _, row := range rows[1:] {
		if len(row) < 3 {
			t.Fatalf("the row %q has no value of each provider", row)
		}
		field := row[0]
		seen[field] = true
		for i, l := range limits {
			v := l.FieldByName(field)
			if !v.IsValid() {
				t.Errorf("Limits has no field %s", field)
				break
			}
			if want, understood := limitOf(row[1+i], v.Type()); !understood || !v.Equal(want) {
				t.Errorf("%s of %s is %v, in the manual %q", field, providers[i].Name(), v, row[1+i])
			}
		}
	}
	for f := range limits[0].Type().Fields() {
		if !seen[f.Name] {
			t.Errorf("the manual has no row for %s", f.Name)
		}
	}
}

// limitOf reads a limit as the manual writes it.
func limitOf(cell string, kind reflect.Type) (reflect.Value, bool) {
	reliable := via.ReliableDelivery | via.ReliableReception
	words := map[string]any{
		"yes": true, "no": false, "all three": via.UnreliableDelivery | reliable, "the reliable ones": reliable,
	}
	if v, ok := words[cell]; ok {
		return reflect.ValueOf(v), reflect.TypeOf(v) == kind
	}
	digits, unit, _ := strings.Cut(cell, " ")
	n, err := strconv.ParseUint(strings.ReplaceAll(digits, ",", ""), 10, 64)
	shift, known := map[string]int{"": 0, "KiB": 10, "MiB": 20, "GiB": 30, "TiB": 40}[unit]
	if err != nil || !known || !reflect.TypeFor[uint64]().ConvertibleTo(kind) {
		return reflect.Value{}, false
	}
	return reflect.ValueOf(n << shift).Convert(kind), true
}
