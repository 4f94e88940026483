package wire

import (
	"fmt"
	"go/ast"
	"go/constant"
	"go/parser"
	"go/token"
	"go/types"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// page is docs/roce.md as its tables: heading, then the rows under it.
type page map[string][][]string

func readPage(t *testing.T) page {
	t.Helper()
	text, err := os.ReadFile(filepath.Join("..", "..", "..", "docs", "roce.md"))
	if err != nil {
		t.Fatal(err)
	}
	p, heading := page{}, ""
	for line := range strings.Lines(string(text)) {
		line = strings.TrimSpace(line)
		if name, ok := strings.CutPrefix(strings.TrimLeft(line, "#"), " "); ok && strings.HasPrefix(line, "#") {
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

// compareTable requires that the table under a heading has the wanted rows, in
// order.
func compareTable(t *testing.T, heading string, want [][]string) {
	t.Helper()
	rows := readPage(t)[heading]
	if len(rows) == 0 {
		t.Fatalf("no table %q", heading)
	}
	for i, row := range rows[1:] {
		if i >= len(want) {
			t.Errorf("%s: row too many: %v", heading, row)
		} else if !slices.Equal(row, want[i]) {
			t.Errorf("%s: %q, want %q", heading, row, want[i])
		}
	}
	for i := len(rows) - 1; i < len(want); i++ {
		t.Errorf("%s: lacks %q", heading, want[i])
	}
}

// layouts are the integer constants of the package.
func layouts(t *testing.T) map[string]int {
	t.Helper()
	names, err := filepath.Glob("*.go")
	if err != nil {
		t.Fatal(err)
	}
	fset, files := token.NewFileSet(), []*ast.File(nil)
	for _, name := range names {
		if strings.HasSuffix(name, "_test.go") {
			continue
		}
		file, err := parser.ParseFile(fset, name, nil, 0)
		if err != nil {
			t.Fatal(err)
		}
		files = append(files, file)
	}
	config := types.Config{Error: func(error) {}} // of imports, which layouts do not need
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
// fields, same offsets, no gap, same end. A field "–" is reserved.
func TestTablesMatchTheConstants(t *testing.T) {
	values := layouts(t)
	documented := map[string]bool{}
	for heading, rows := range readPage(t) {
		if rows[0][0] != "offset" {
			continue
		}
		prefix := strings.ToLower(heading)
		next := 0
		for _, row := range rows[1:] {
			offset, err := strconv.Atoi(row[0])
			size, err2 := strconv.Atoi(row[1])
			if err != nil || err2 != nil || offset != next {
				t.Errorf("%s: row %q, but the field before ends at %d", heading, row, next)
			}
			next = offset + size
			if row[2] == "–" {
				continue
			}
			name := prefix + "At" + row[2]
			if value, ok := values[name]; !ok || value != offset {
				t.Errorf("%s is %d, %v, documented as %d", name, value, ok, offset)
			}
			documented[name] = true
		}
		size, ok := values[prefix+"Size"]
		if !ok {
			size = values[heading+"Size"]
		}
		if next != size {
			t.Errorf("%s ends at %d, documented as %d", heading, size, next)
		}
	}
	others := []string{"", "masked", "ip4", "ip6", "udp"} // no layouts of this page
	for name := range values {
		prefix, field, ok := strings.Cut(name, "At")
		ok = ok && prefix == strings.ToLower(prefix) && !slices.Contains(others, prefix)
		if ok && field != "" && !documented[name] {
			t.Errorf("%s is not documented", name)
		}
	}
	if len(documented) < 80 {
		t.Errorf("only %d fields found", len(documented))
	}
}

// mark is a cell that says yes or nothing.
func mark(yes bool) string {
	if yes {
		return "yes"
	}
	return ""
}

func TestOpcodeTable(t *testing.T) {
	extensions := []string{"DETH", "RETH", "AtomicETH", "AETH", "AtomicAckETH", "ImmDt", "IETH"}
	payloads := []string{"none", "0..PMTU", "1..PMTU", "PMTU", "16 reserved"}
	places := map[Flags]string{Start: "first", 0: "middle", End: "last", Start | End: "only"}
	var want [][]string
	for _, op := range known() {
		info := opcodes[op]
		var has []string
		for i, name := range extensions {
			if info.extensions&(1<<i) != 0 {
				has = append(has, name)
			}
		}
		if len(has) == 0 {
			has = []string{"–"}
		}
		want = append(want, []string{
			fmt.Sprintf("0x%02x", int(op)), op.String(), strings.Join(has, ", "),
			payloads[info.payload], places[info.flags&(Start|End)],
			mark(info.flags&Consumes != 0), mark(info.flags&Completes != 0), mark(info.flags&Response != 0),
		})
	}
	compareTable(t, "Opcodes", want)
}

func TestSyndromeTable(t *testing.T) {
	var want [][]string
	for s := NAKSequence; s <= NAKInvalidRD; s++ {
		want = append(want, []string{fmt.Sprintf("0x%02x", int(s)), s.String()})
	}
	compareTable(t, "NAK codes", want)

	want = nil
	for code := range uint8(32) {
		granted := "no limit"
		if n := Syndrome(code).Credits(); n >= 0 {
			granted = strconv.Itoa(n)
		}
		want = append(want, []string{strconv.Itoa(int(code)), granted, RNRDelay(code).String()})
	}
	compareTable(t, "Credits and RNR timers", want)
}

func TestPathMTUTable(t *testing.T) {
	var want [][]string
	for mtu := MTU256; mtu.IsValid(); mtu++ {
		link := mtu.Bytes()
		for got, _ := PathMTU(link); got != mtu; got, _ = PathMTU(link) {
			link++
		}
		want = append(want, []string{strconv.Itoa(int(mtu)), strconv.Itoa(mtu.Bytes()), strconv.Itoa(link)})
	}
	compareTable(t, "Path MTU", want)
}

func TestAttributeTable(t *testing.T) {
	var want [][]string
	for _, s := range sampleMessages() {
		attribute, _, _ := PeekMAD(encodeMessage(s.msg))
		want = append(want, []string{fmt.Sprintf("0x%02x", int(attribute)), strings.ToUpper(s.name)})
	}
	slices.SortFunc(want, func(a, b []string) int { return strings.Compare(a[0], b[0]) })
	rows := readPage(t)["Connection manager"]
	for i := range rows {
		rows[i] = rows[i][:2]
	}
	if len(rows) != len(want)+1 || !slices.EqualFunc(rows[1:], want, slices.Equal[[]string]) {
		t.Errorf("messages %q, want %q", rows, want)
	}
}

func TestReasonTable(t *testing.T) {
	var want [][]string
	for r := RejectNoQP; int(r) < len(reasons); r++ {
		want = append(want, []string{strconv.Itoa(int(r)), r.String()})
	}
	compareTable(t, "Reasons of a REJ", want)
}

func TestRefusalTable(t *testing.T) {
	var want [][]string
	for r := Accepted + 1; r < NumRefusals; r++ {
		answer := "dropped"
		if r.IsInvalidRequest() {
			answer = "NAK 0x61"
		}
		want = append(want, []string{r.String(), answer})
	}
	compareTable(t, "Refusals", want)
}

// What the page calls masked is what the code never reads from a header: the
// bytes that are ones whatever the ends, the length and the ID.
func TestMaskTable(t *testing.T) {
	for heading, ends := range map[string][2]string{
		"Masked in IPv4": {"0.0.0.0:0", "0.0.0.0:0"},
		"Masked in IPv6": {"[::]:0", "[::]:0"},
	} {
		c := checksum(netip.MustParseAddrPort(ends[0]), netip.MustParseAddrPort(ends[1]))
		c.Verify(make([]byte, MinPacket), Identification{})
		headers := c.masked[maskedAtIPv6:]
		if c.IsIPv4() {
			headers = c.masked[maskedAtIPv4:]
		}
		var want, got []string
		for i, b := range headers {
			if b == masked {
				want = append(want, strconv.Itoa(i))
			}
		}
		for _, row := range readPage(t)[heading][1:] {
			first, last, isRange := strings.Cut(row[0], "-")
			if !isRange {
				last = first
			}
			from, _ := strconv.Atoi(first)
			to, err := strconv.Atoi(last)
			if err != nil {
				t.Fatal(err)
			}
			for i := from; i <= to; i++ {
				got = append(got, strconv.Itoa(i))
			}
		}
		if !slices.Equal(got, want) {
			t.Errorf("%s: bytes %v, want %v", heading, got, want)
		}
	}
}
