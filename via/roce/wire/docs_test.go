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
	"time"
)

// page holds the tables of docs/roce.md: heading, then the words of each
// indented line under it.
type page map[string][][]string

func readPage(t *testing.T) page {
	t.Helper()
	text, err := os.ReadFile(filepath.Join("..", "..", "..", "docs", "roce.md"))
	if err != nil {
		t.Fatal(err)
	}
	p, heading := page{}, ""
	for line := range strings.Lines(string(text)) {
		if name, ok := strings.CutPrefix(strings.TrimLeft(line, "#"), " "); ok && strings.HasPrefix(line, "#") {
			heading = strings.TrimSpace(name)
		} else if row, ok := strings.CutPrefix(line, "    "); ok {
			p[heading] = append(p[heading], strings.Fields(row))
		}
	}
	return p
}

// requireSentence requires that docs/roce.md says something, however its lines
// end.
func requireSentence(t *testing.T, sentence string) {
	t.Helper()
	text, err := os.ReadFile(filepath.Join("..", "..", "..", "docs", "roce.md"))
	if err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(strings.Join(strings.Fields(string(text)), " "), sentence) {
		t.Errorf("docs/roce.md does not say %q", sentence)
	}
}

// compareTable requires that the table under a heading has the wanted rows, in
// order.
func compareTable(t *testing.T, heading string, want []string) {
	t.Helper()
	rows := readPage(t)[heading]
	for i, row := range rows {
		if i >= len(want) {
			t.Errorf("%s: row too many: %v", heading, row)
		} else if got := strings.Join(row, " "); got != want[i] {
			t.Errorf("%s: %q, want %q", heading, got, want[i])
		}
	}
	for i := len(rows); i < len(want); i++ {
		t.Errorf("%s: lacks %q", heading, want[i])
	}
}

// layouts returns the integer constants of the package.
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

// marks are those of specifiedOpcodes that a packet's flags have.
func marks(f Flags) string {
	all := ""
	for _, l := range []struct {
		flag Flags
		mark string
	}{{Consumes, "t"}, {Completes, "c"}, {Response, "a"}} {
		if f&l.flag != 0 {
			all += l.mark
		}
	}
	if all == "" {
		return "–"
	}
	return all
}

// describedShape returns the payload and the place in a message of a packet as
// the page says them, by the name of the opcode.
func describedShape(name string) (payload string, place Flags) {
	for word := range strings.FieldsSeq(name) {
		switch word {
		case "First":
			return "PMTU", Start
		case "Middle":
			return "PMTU", 0
		case "Last":
			return "1..PMTU", End
		case "Only":
			return "0..PMTU", Start | End
		case "CNP":
			return "16 reserved", Start | End
		}
	}
	return "none", Start | End
}

func TestOpcodeTable(t *testing.T) {
	extensions := []string{"DETH", "RETH", "AtomicETH", "AETH", "AtomicAckETH", "ImmDt", "IETH"}
	payloads := []string{"none", "0..PMTU", "1..PMTU", "PMTU", "16 reserved"}
	const firstUC, lastUC = 0x20, 0x2b
	requireSentence(t, fmt.Sprintf("UC opcodes %#02x to %#02x are RC opcodes 0x00 to 0x%02x plus %#02x.",
		firstUC, lastUC, lastUC-firstUC, firstUC))
	requireSentence(t, "A First or Middle packet carries as many bytes as the path MTU (PMTU), "+
		"a Last one 1 to PMTU, an Only one 0 to PMTU, a CNP 16 reserved bytes, others none.")
	var got []string
	counterparts := 0
	for _, op := range known() {
		info := opcodes[op]
		payload, place := describedShape(info.name)
		if payloads[info.payload] != payload || info.flags&(Start|End) != place {
			t.Errorf("%v carries %s, with flags %x", op, payloads[info.payload], info.flags)
		}
		if op >= firstUC && op <= lastUC {
			rc := opcodes[op-firstUC]
			rc.name = strings.Replace(rc.name, "RC", "UC", 1)
			if info != rc {
				t.Errorf("%v differs from %v: the page says that they agree", op, op-firstUC)
			}
			counterparts++
			continue
		}
		row := fmt.Sprintf("0x%02x %s %s", int(op), marks(info.flags), op)
		var has []string
		for i, name := range extensions {
			if info.extensions&(1<<i) != 0 {
				has = append(has, name)
			}
		}
		if len(has) != 0 {
			row += " (" + strings.Join(has, ", ") + ")"
		}
		got = append(got, row)
	}
	if all := lastUC - firstUC + 1; counterparts != all {
		t.Errorf("%d UC opcodes are known, the page says %d", counterparts, all)
	}
	if !slices.Equal(got, specifiedOpcodes) {
		t.Errorf("opcodes %q, want %q", got, specifiedOpcodes)
	}
}

// specifiedOpcodes are those of the specification: number, whether the packet
// takes a receive (t), completes it (c) or answers (a), name, headers.
var specifiedOpcodes = []string{
	"0x00 t RC SEND First",
	"0x01 – RC SEND Middle",
	"0x02 c RC SEND Last",
	"0x03 c RC SEND Last with Immediate (ImmDt)",
	"0x04 tc RC SEND Only",
	"0x05 tc RC SEND Only with Immediate (ImmDt)",
	"0x06 – RC WRITE First (RETH)",
	"0x07 – RC WRITE Middle",
	"0x08 – RC WRITE Last",
	"0x09 tc RC WRITE Last with Immediate (ImmDt)",
	"0x0a – RC WRITE Only (RETH)",
	"0x0b tc RC WRITE Only with Immediate (RETH, ImmDt)",
	"0x0c – RC READ Request (RETH)",
	"0x0d a RC READ Response First (AETH)",
	"0x0e a RC READ Response Middle",
	"0x0f a RC READ Response Last (AETH)",
	"0x10 a RC READ Response Only (AETH)",
	"0x11 a RC Acknowledge (AETH)",
	"0x12 a RC ATOMIC Acknowledge (AETH, AtomicAckETH)",
	"0x13 – RC CompareSwap (AtomicETH)",
	"0x14 – RC FetchAdd (AtomicETH)",
	"0x16 c RC SEND Last with Invalidate (IETH)",
	"0x17 tc RC SEND Only with Invalidate (IETH)",
	"0x64 tc UD SEND Only (DETH)",
	"0x65 tc UD SEND Only with Immediate (DETH, ImmDt)",
	"0x81 – CNP",
}

func TestSyndromeTable(t *testing.T) {
	var want []string
	for s := NAKSequence; s <= NAKInvalidRD; s++ {
		want = append(want, fmt.Sprintf("0x%02x %v", int(s), s))
	}
	compareTable(t, "NAK codes", want)
}

// specifiedCredits are those of the specification by code, 0 to 30. The RNR
// timer of a code above 0 is 10 µs for each.
var specifiedCredits = []int{
	0, 1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024,
	1536, 2048, 3072, 4096, 6144, 8192, 12288, 16384, 24576, 32768,
}

func TestCreditTable(t *testing.T) {
	for code, want := range specifiedCredits {
		if n := Syndrome(code).Credits(); n != want {
			t.Errorf("code %d grants %d credits, want %d", code, n, want)
		}
		delay := time.Duration(want) * 10 * time.Microsecond
		if code == 0 {
			delay = 655360 * time.Microsecond // the longest
		}
		if d := RNRDelay(uint8(code)); d != delay {
			t.Errorf("the RNR timer of code %d is %v, want %v", code, d, delay)
		}
	}
	if n := Syndrome(31).Credits(); n >= 0 {
		t.Errorf("code 31 limits credits to %d", n)
	}
	if d := RNRDelay(31); d != 491520*time.Microsecond {
		t.Errorf("the RNR timer of code 31 is %v", d)
	}
}

func TestPathMTUTable(t *testing.T) {
	var want []string
	for mtu := MTU256; mtu.IsValid(); mtu++ {
		link := mtu.Bytes()
		for got, _ := PathMTU(link); got != mtu; got, _ = PathMTU(link) {
			link++
		}
		want = append(want, fmt.Sprintf("%d %d %d", mtu, mtu.Bytes(), link))
	}
	compareTable(t, "Path MTU", want)
}

func TestAttributeTable(t *testing.T) {
	var want []string
	for _, s := range sampleMessages() {
		attribute, _, _ := PeekMAD(encodeMessage(s.msg))
		want = append(want, fmt.Sprintf("0x%02x %s", int(attribute), strings.ToUpper(s.name)))
	}
	slices.Sort(want)
	var got []string
	for _, row := range readPage(t)["Connection manager"] {
		got = append(got, row[0]+" "+row[1])
	}
	if !slices.Equal(got, want) {
		t.Errorf("messages %q, want %q", got, want)
	}
}

// The code reads none of the masked bytes from a header: they are ones for any
// ends, length and ID.
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
		for _, row := range readPage(t)[heading] {
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
