package via

import (
	"fmt"
	"go/ast"
	"go/constant"
	"go/parser"
	"go/token"
	"go/types"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
)

// manual is docs/via.md as its tables: heading and first cell of the head, then the
// rows.
type manual map[string][][]string

func readManual(t *testing.T) (manual, string) {
	t.Helper()
	text, err := os.ReadFile(filepath.Join("..", "docs", "via.md"))
	if err != nil {
		t.Fatal(err)
	}
	m, heading, table := manual{}, "", ""
	for line := range strings.Lines(string(text)) {
		line = strings.TrimSpace(line)
		if name, ok := strings.CutPrefix(line, "## "); ok {
			heading = name
		}
		switch {
		case !strings.HasPrefix(line, "|"):
			table = ""
			continue
		case strings.HasPrefix(line, "|---"):
			continue
		}
		cells := strings.Split(strings.Trim(line, "|"), "|")
		for i := range cells {
			cells[i] = strings.TrimSpace(cells[i])
		}
		if table == "" {
			table = heading + "/" + cells[0]
			continue
		}
		m[table] = append(m[table], cells)
	}
	return m, string(text)
}

// declared is what the package declares: names, and methods and fields as
// Type.Name; of constants also the value.
func declared(t *testing.T) (names map[string]bool, values map[string]int64) {
	t.Helper()
	names, values = make(map[string]bool), make(map[string]int64)
	fset := token.NewFileSet()
	var files []*ast.File
	sources, err := filepath.Glob("*.go")
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range sources {
		if strings.HasSuffix(name, "_test.go") {
			continue
		}
		f, err := parser.ParseFile(fset, name, nil, parser.SkipObjectResolution)
		if err != nil {
			t.Fatal(err)
		}
		files = append(files, f)
	}
	config := types.Config{Error: func(error) {}} // of imports, which the names do not need
	checked, _ := config.Check("via", fset, files, nil)
	for _, name := range checked.Scope().Names() {
		names[name] = true
		switch o := checked.Scope().Lookup(name).(type) {
		case *types.Const:
			if v, ok := constant.Int64Val(constant.ToInt(o.Val())); ok {
				values[name] = v
			}
		case *types.TypeName:
			if named, ok := o.Type().(*types.Named); ok {
				for m := range named.Methods() {
					names[name+"."+m.Name()] = true
				}
				if s, ok := named.Underlying().(*types.Struct); ok {
					for f := range s.Fields() {
						names[name+"."+f.Name()] = true
					}
				}
			}
		}
	}
	return names, values
}

var quoted = regexp.MustCompile("`([^`]+)`")

// vipl are the calls in the order of the Developer's Guide.
var viplCalls = strings.Fields(`
	VipOpenNic VipCloseNic VipCreateVi VipDestroyVi VipConnectWait VipConnectAccept VipConnectReject
	VipConnectRequest VipDisconnect VipConnectPeerRequest VipConnectPeerDone VipConnectPeerWait
	VipCreatePtag VipDestroyPtag VipRegisterMem VipDeregisterMem VipPostSend VipSendDone VipSendWait
	VipSendNotify VipPostRecv VipRecvDone VipRecvWait VipRecvNotify VipCQDone VipCQWait VipCQNotify
	VipCreateCQ VipDestroyCQ VipResizeCQ VipQueryNic VipSetViAttributes VipQueryVi VipSetMemAttributes
	VipQueryMem VipQuerySystemManagementInfo VipErrorCallback VipNSInit VipNSGetHostByName
	VipNSGetHostByAddr VipNSShutdown`)

// The manual has a row for each call, with counterparts that exist and name the call
// in their own comment.
func TestManualOfCalls(t *testing.T) {
	m, _ := readManual(t)
	names, _ := declared(t)
	rows := m["Calls/#"]
	if len(rows) != 41 || len(viplCalls) != 41 {
		t.Fatalf("%d rows and %d calls, want 41", len(rows), len(viplCalls))
	}
	comments := sourceText(t)
	for i, row := range rows {
		if len(row) != 6 || row[0] != strconv.Itoa(i+1) || row[1] != viplCalls[i] {
			t.Fatalf("row %d is %q, want call %s", i+1, row, viplCalls[i])
		}
		counterparts := quoted.FindAllStringSubmatch(row[2], -1)
		if len(counterparts) == 0 {
			t.Errorf("%s has no counterpart", row[1])
		}
		for _, c := range counterparts {
			if !names[c[1]] {
				t.Errorf("%s: %s does not exist", row[1], c[1])
			}
		}
		if !strings.Contains(comments, row[1]) {
			t.Errorf("no comment in the sources names %s", row[1])
		}
		for _, c := range quoted.FindAllStringSubmatch(row[3], -1) {
			if !strings.HasPrefix(c[1], "Err") || !names[c[1]] {
				t.Errorf("%s: %s is no error of the package", row[1], c[1])
			}
		}
		if !regexp.MustCompile(`^(EA|Func|Full|EA default, Func)$`).MatchString(row[4]) {
			t.Errorf("%s is of level %q", row[1], row[4])
		}
	}
}

func sourceText(t *testing.T) string {
	t.Helper()
	var all strings.Builder
	sources, err := filepath.Glob("*.go")
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range sources {
		if !strings.HasSuffix(name, "_test.go") {
			text, err := os.ReadFile(name)
			if err != nil {
				t.Fatal(err)
			}
			all.Write(text)
		}
	}
	return all.String()
}

// Codes and bits stand in the manual with their numbers, all of them.
func TestManualOfNumbers(t *testing.T) {
	m, _ := readManual(t)
	_, values := declared(t)
	for _, c := range []struct {
		table        string
		prefix       string
		name, number int // columns
		format       string
	}{
		{"Return codes/code", "Err", 2, 0, "%d"},
		{"Asynchronous errors/code", "Async", 2, 0, "%d"},
		{"Descriptors/status", "Status", 0, 1, "0x%05x"},
		{"Descriptors/control", "Control", 0, 1, "0x%04x"},
	} {
		seen := make(map[string]bool)
		for _, row := range m[c.table] {
			name := strings.Trim(row[c.name], "`")
			value, ok := values[name]
			switch {
			case name == "nil" || name == "reserved":
			case !ok:
				t.Errorf("%s: %s does not exist", c.table, name)
			case row[c.number] != fmt.Sprintf(c.format, value):
				t.Errorf("%s is "+c.format+", in the manual %s", name, value, row[c.number])
			}
			seen[name] = true
		}
		for name := range values {
			if strings.HasPrefix(name, c.prefix) && !seen[name] && name != "ControlSegmentSize" {
				t.Errorf("%s is not in the manual's table %q", name, c.table)
			}
		}
	}
	if rows := m["Errors and reliability levels/#"]; len(rows) != 17 {
		t.Errorf("the matrix has %d rows, want 17", len(rows))
	} else {
		for i, row := range rows {
			if len(row) != 5 || row[0] != strconv.Itoa(i+1) {
				t.Errorf("row %d of the matrix is %q", i+1, row)
			}
		}
	}
}

// Whatever the manual quotes that looks like Go exists.
func TestManualQuotesWhatExists(t *testing.T) {
	_, text := readManual(t)
	names, _ := declared(t)
	methods := make(map[string]bool) // by their last part: "Disconnect" is enough
	for n := range names {
		methods[n[strings.LastIndex(n, ".")+1:]] = true
	}
	identifier := regexp.MustCompile(`^[A-Z][A-Za-z]+(\.[A-Z][A-Za-z]+)?$`)
	for _, q := range quoted.FindAllStringSubmatch(text, -1) {
		if identifier.MatchString(q[1]) && !names[q[1]] && !methods[q[1]] {
			t.Errorf("the manual quotes %s, which does not exist", q[1])
		}
	}
}
