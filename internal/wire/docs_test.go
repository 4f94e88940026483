package wire

import (
	"fmt"
	"go/constant"
	"go/types"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// page is docs/wire.md as its tables: heading, then the words of each indented
// line under it.
type page map[string][][]string

func readPage(t *testing.T) page {
	t.Helper()
	text, err := os.ReadFile(filepath.Join("..", "..", "docs", "wire.md"))
	if err != nil {
		t.Fatal(err)
	}
	p, heading := page{}, ""
	for line := range strings.Lines(string(text)) {
		if name, ok := strings.CutPrefix(strings.TrimLeft(line, "#"), " "); ok &&
			strings.HasPrefix(line, "#") {
			heading = strings.TrimSpace(name)
		} else if row, ok := strings.CutPrefix(line, "    "); ok {
			p[heading] = append(p[heading], strings.Fields(row))
		}
	}
	return p
}

// layouts evaluates the package's constants without compiling its imports,
// which its layouts do not need.
func layouts(t *testing.T) map[string]int {
	t.Helper()
	fset, files := parseSources(t)
	config := types.Config{Error: func(error) {}}
	checked, _ := config.Check("wire", fset, files, nil)
	values := map[string]int{}
	for _, name := range checked.Scope().Names() {
		c, ok := checked.Scope().Lookup(name).(*types.Const)
		if !ok {
			continue
		}
		if n, ok := constant.Int64Val(constant.ToInt(c.Val())); ok {
			values[name] = int(n)
		}
	}
	return values
}

// The offsets of each layout are those of different fields, begin at the header
// or the body, and end before the size. TestGolden has their bytes.
func TestLayouts(t *testing.T) {
	values, fields := layouts(t), map[string][]int{}
	count := 0
	for name, offset := range values {
		prefix, field, ok := strings.Cut(name, "At")
		if ok && prefix != "header" && field != "" {
			fields[prefix] = append(fields[prefix], offset)
			count++
		}
	}
	for prefix, offsets := range fields {
		slices.Sort(offsets)
		if offsets[0] != 0 && offsets[0] != HeaderSize {
			t.Errorf("%s starts at %d", prefix, offsets[0])
		}
		if len(slices.Compact(slices.Clone(offsets))) != len(offsets) {
			t.Errorf("%s has two fields at one of %v", prefix, offsets)
		}
		size, ok := values[prefix+"Size"]
		if last := offsets[len(offsets)-1]; !ok || last > size {
			t.Errorf("%s ends at %d, its last field begins at %d", prefix, size, last)
		}
	}
	if len(fields) < 20 || count < 185 {
		t.Errorf("only %d layouts with %d fields found", len(fields), count)
	}
}

// A message has the opcode of its name: a command Command, a keepalive
// KeepAlive, an open OpenRequest and its response OpenResponse.
func TestOpcodeOfMessages(t *testing.T) {
	for _, s := range samples() {
		op := Opcode(RawOpcode(mustEncode(s.msg)))
		want := ""
		for part := range strings.SplitSeq(opcodeNames[op], "-") {
			want += strings.ToUpper(part[:1]) + part[1:]
		}
		switch {
		case op.IsCommand():
			want = "Command"
		case op == OpKeepAlive || op == OpKeepAliveAck:
			want = "KeepAlive"
		case op == OpAuthResponse:
			want = "Auth"
		}
		if got := typeName(s.msg); got != want && got != want+"Request" {
			t.Errorf("opcode %v is a %s", op, got)
		}
	}
}

// The page lists every reserved number, and this version assigns none of them.
func TestReservedTable(t *testing.T) {
	want := map[string]bool{
		"Opcode 0x07": true, "Opcode 0x47": true, "Opcode 0xc7": true,
		"DataMode 2": true, "DataModes 4": true, "Role 3": true,
	}
	for _, row := range readPage(t)["Reserved numbers"] {
		number, err := strconv.ParseUint(row[1], 0, 8)
		if err != nil {
			t.Fatal(err)
		}
		assigned := false
		switch row[0] {
		case "Opcode":
			assigned = Opcode(number).known()
		case "DataMode":
			for _, modes := range modesOf {
				assigned = assigned || modes>>number&1 != 0
			}
		case "DataModes":
			assigned = modesKnown&DataModes(number) != 0
		case "Role":
			assigned = roleNames[number] != ""
		}
		key := row[0] + " " + row[1]
		if assigned || !want[key] {
			t.Errorf("%s: assigned %v, reserved in the code %v", key, assigned, want[key])
		}
		delete(want, key)
	}
	for key := range want {
		t.Errorf("%s is not documented", key)
	}
}

func TestStatusTable(t *testing.T) {
	want := map[string]bool{}
	for s := range statusEnd {
		if s.known() {
			want[fmt.Sprintf("%d %s %d", s, s, s.Errno())] = true
		}
	}
	for _, row := range readPage(t)["Status"] {
		line := strings.Join(row, " ")
		if !want[line] {
			t.Errorf("no such status: %s", line)
		}
		delete(want, line)
	}
	for line := range want {
		t.Errorf("status %s is not documented", line)
	}
}

func TestLimitTable(t *testing.T) {
	values := layouts(t)
	rows := readPage(t)["Limits"]
	for _, row := range rows {
		name := row[0]
		if value, ok := values[name]; !ok || strconv.Itoa(value) != row[1] {
			t.Errorf("%s is %d, documented as %s", name, value, row[1])
		}
		delete(values, name)
	}
	for name := range values {
		if strings.HasPrefix(name, "Max") {
			t.Errorf("%s is not documented", name)
		}
	}
}

// The page lists the classes of the refusals, all of them. The rules are texts
// in the sources; TestEveryRefusal has a message for each.
func TestDocumentedClasses(t *testing.T) {
	var want, got []string
	for _, r := range sourceRefusals(t) {
		want = append(want, r.class)
	}
	slices.Sort(want)
	for _, row := range readPage(t)["Refusals"] {
		got = append(got, row[0])
	}
	slices.Sort(got)
	if want = slices.Compact(want); !slices.Equal(got, want) {
		t.Errorf("classes %q, want %q", got, want)
	}
}
