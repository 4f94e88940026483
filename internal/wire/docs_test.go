package wire

import (
	"fmt"
	"go/constant"
	"go/types"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
)

// page is docs/wire.md as its tables: heading, then the rows under it.
type page map[string][][]string

func readPage(t *testing.T) page {
	t.Helper()
	text, err := os.ReadFile(filepath.Join("..", "..", "docs", "wire.md"))
	if err != nil {
		t.Fatal(err)
	}
	p, heading := page{}, ""
	for line := range strings.Lines(string(text)) {
		line = strings.TrimSpace(line)
		if name, ok := strings.CutPrefix(strings.TrimLeft(line, "#"), " "); ok &&
			strings.HasPrefix(line, "#") {
			heading = name
			continue
		}
		if !strings.HasPrefix(line, "|") || strings.HasPrefix(line, "|---") {
			continue
		}
		cells := strings.Split(strings.Trim(line, "|"), "|")
		for i := range cells {
			cells[i] = strings.TrimSpace(cells[i])
		}
		p[heading] = append(p[heading], cells)
	}
	return p
}

// layouts evaluates the package's constants without compiling its imports, which
// its layouts do not need.
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

// Every layout of the code has a table, and every table is the code's: same
// fields, same offsets, no gap, same end.
func TestTablesMatchTheConstants(t *testing.T) {
	values := layouts(t)
	documented := map[string]bool{}
	for heading, rows := range readPage(t) {
		if rows[0][0] != "offset" {
			continue
		}
		prefix := strings.ToLower(heading[:1]) + heading[1:]
		next := -1
		for i, row := range rows[1:] {
			if len(row) != 4 {
				break // another table under the same heading
			}
			name := prefix + "At" + row[2]
			offset, err := strconv.Atoi(row[0])
			value, ok := values[name]
			switch {
			case err != nil:
				t.Errorf("%s: %v", name, err)
			case !ok:
				t.Errorf("%s is documented, but not in the code", name)
			case offset != value:
				t.Errorf("%s is %d, documented as %d", name, value, offset)
			case next >= 0 && offset != next:
				t.Errorf("%s: documented at %d, the field before ends at %d",
					name, offset, next)
			}
			documented[name] = true
			next = offset
			if size, err := strconv.Atoi(row[1]); err == nil {
				next += size
			} else if row[1] != "…" {
				t.Errorf("%s has size %q", name, row[1])
			}
			if i == 0 && offset != 0 && offset != HeaderSize {
				t.Errorf("%s: the table starts at %d", heading, offset)
			}
		}
		if size := values[prefix+"Size"]; next != size {
			t.Errorf("%s ends at %d, documented as %d", heading, size, next)
		}
	}
	for name := range values {
		prefix, field, ok := strings.Cut(name, "At")
		if ok && prefix != "header" && field != "" && !documented[name] {
			t.Errorf("%s is not documented", name)
		}
	}
	if len(documented) < 150 {
		t.Errorf("only %d fields found", len(documented))
	}
}

func TestOpcodeTable(t *testing.T) {
	want := map[string]string{}
	for op, name := range opcodeNames {
		if name != "" {
			want[fmt.Sprintf("0x%02x", op)] = name
		}
	}
	messages := map[string]string{}
	for _, s := range samples() {
		op := RawOpcode(mustEncode(s.msg))
		messages[fmt.Sprintf("0x%02x", uint8(op))] = typeName(s.msg)
	}
	for _, row := range readPage(t)["Opcodes"][1:] {
		if want[row[0]] != row[1] {
			t.Errorf("opcode %s is %q, documented as %q", row[0], want[row[0]], row[1])
		}
		if m, ok := messages[row[0]]; ok && m != row[2] {
			t.Errorf("opcode %s is a %s, documented as %s", row[0], m, row[2])
		}
		delete(want, row[0])
	}
	for number, name := range want {
		t.Errorf("opcode %s %s is not documented", number, name)
	}
}

func TestStatusTable(t *testing.T) {
	want := map[string]bool{}
	for s := range statusEnd {
		if s.known() {
			want[fmt.Sprintf("%d %s %d", s, s, s.Errno())] = true
		}
	}
	for _, row := range readPage(t)["Status"][1:] {
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
	rows := readPage(t)["Limits"][1:]
	for _, row := range rows {
		name := strings.Trim(row[0], "`")
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

// The page lists every rule with its class.
func TestRefusalTable(t *testing.T) {
	want := map[string]bool{}
	for _, r := range sourceRefusals(t) {
		want[r.class+": "+r.rule] = true
	}
	for _, row := range readPage(t)["Refusals"][1:] {
		line := strings.Trim(row[0], "`") + ": " + row[1]
		if !want[line] {
			t.Errorf("no such refusal: %s", line)
		}
		delete(want, line)
	}
	for line := range want {
		t.Errorf("refusal %s is not documented", line)
	}
}
