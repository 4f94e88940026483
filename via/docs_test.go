package via

import (
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

// manual is docs/via.md as its tables, by heading: the cells of each row, the
// head of a table with bars included, and the words of each indented line.
type manual map[string][][]string

func readManual(t *testing.T) (manual, string) {
	t.Helper()
	text, err := os.ReadFile(filepath.Join("..", "docs", "via.md"))
	if err != nil {
		t.Fatal(err)
	}
	m, heading := manual{}, ""
	for line := range strings.Lines(string(text)) {
		if strings.HasPrefix(line, "#") {
			heading = strings.TrimSpace(strings.TrimLeft(line, "#"))
		} else if row, ok := strings.CutPrefix(line, "    "); ok {
			m[heading] = append(m[heading], strings.Fields(row))
		} else if strings.HasPrefix(line, "|") && !strings.HasPrefix(line, "|---") {
			cells := strings.Split(strings.Trim(strings.TrimSpace(line), "|"), "|")
			for i := range cells {
				cells[i] = strings.TrimSpace(cells[i])
			}
			m[heading] = append(m[heading], cells)
		}
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

// errorName is the name of an error in a comment.
var errorName = regexp.MustCompile(`\bErr[A-Z][A-Za-z]+`)

// The comment of an exported function names each call of VIPL, and the comments
// of functions name no error that does not exist.
func TestCallsHaveCounterparts(t *testing.T) {
	names, _ := declared(t)
	if len(viplCalls) != 41 {
		t.Fatalf("%d calls, want 41", len(viplCalls))
	}
	comments := functionComments(t)
	for _, call := range viplCalls {
		isNamed := false
		word := regexp.MustCompile(`\b` + call + `\b`)
		for name, comment := range comments {
			if ast.IsExported(name[strings.LastIndex(name, ".")+1:]) && word.MatchString(comment) {
				isNamed = true
			}
		}
		if !isNamed {
			t.Errorf("no comment of an exported function names %s", call)
		}
	}
	for name, comment := range comments {
		for _, e := range errorName.FindAllString(comment, -1) {
			if !names[e] {
				t.Errorf("the comment of %s names %s, which does not exist", name, e)
			}
		}
	}
}

// functionComments returns the comments of the package's functions, methods as
// Type.Name.
func functionComments(t *testing.T) map[string]string {
	t.Helper()
	all := make(map[string]string)
	sources, err := filepath.Glob("*.go")
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range sources {
		file, err := parser.ParseFile(token.NewFileSet(), name, nil, parser.ParseComments)
		if err != nil {
			t.Fatal(err)
		}
		for _, d := range file.Decls {
			f, ok := d.(*ast.FuncDecl)
			if !ok {
				continue
			}
			name := f.Name.Name
			if f.Recv != nil {
				name = types.ExprString(f.Recv.List[0].Type) + "." + name
			}
			all[strings.TrimPrefix(name, "*")] = f.Doc.Text()
		}
	}
	return all
}

// Codes and bits have the numbers of VIPL, all of them.
func TestNumbersOfVIPL(t *testing.T) {
	_, values := declared(t)
	for name, want := range viplNumbers {
		if got, ok := values[name]; !ok || got != want {
			t.Errorf("%s is %#x, %v, in VIPL %#x", name, got, ok, want)
		}
	}
	for name := range values {
		for _, prefix := range []string{"Err", "Async", "Status", "Control"} {
			if _, ok := viplNumbers[name]; strings.HasPrefix(name, prefix) && !ok && name != "ControlSegmentSize" {
				t.Errorf("%s has no number of VIPL", name)
			}
		}
	}
}

// viplNumbers are those of vipl.h.
var viplNumbers = map[string]int64{
	"ErrNotDone":            1,
	"ErrInvalidParameter":   2,
	"ErrResource":           3,
	"ErrTimeout":            4,
	"ErrReject":             5,
	"ErrInvalidReliability": 6,
	"ErrInvalidMTU":         7,
	"ErrInvalidQoS":         8,
	"ErrInvalidPtag":        9,
	"ErrInvalidRdmaRead":    10,
	"ErrDescriptor":         11,
	"ErrInvalidState":       12,
	"ErrNameService":        13,
	"ErrNoMatch":            14,
	"ErrNotReachable":       15,
	"ErrNotSupported":       16,

	"AsyncPostDescriptor": 0,
	"AsyncConnectionLost": 1,
	"AsyncRecvQueueEmpty": 2,
	"AsyncOverrun":        3,
	"AsyncRdmaWriteProt":  4,
	"AsyncRdmaWriteData":  5,
	"AsyncRdmaWriteAbort": 6,
	"AsyncRdmaReadProt":   7,
	"AsyncCompletionProt": 8,
	"AsyncRdmaTransport":  9,
	"AsyncCatastrophic":   10,

	"ControlOpMask":    0x0003,
	"ControlImmediate": 0x0004,
	"ControlFence":     0x0008,

	"StatusDone":            0x00001,
	"StatusFormatError":     0x00002,
	"StatusProtectionError": 0x00004,
	"StatusLengthError":     0x00008,
	"StatusPartialError":    0x00010,
	"StatusFlushed":         0x00020,
	"StatusTransportError":  0x00040,
	"StatusRdmaProtError":   0x00080,
	"StatusRemoteDescError": 0x00100,
	"StatusErrorMask":       0x001fe,
	"StatusOpMask":          0x70000,
	"StatusOpSend":          0x00000,
	"StatusOpReceive":       0x10000,
	"StatusOpRdmaWrite":     0x20000,
	"StatusOpRemoteWrite":   0x30000,
	"StatusOpRdmaRead":      0x40000,
	"StatusImmediate":       0x80000,
}

// The manual has a row for each error of the matrix.
func TestManualOfErrors(t *testing.T) {
	m, _ := readManual(t)
	if rows := m["Errors and reliability levels"]; len(rows) != 18 {
		t.Errorf("the matrix has %d rows with its head, want 18", len(rows))
	} else {
		for i, row := range rows[1:] {
			if len(row) != 5 || row[0] != strconv.Itoa(i+1) {
				t.Errorf("row %d of the matrix is %q", i+1, row)
			}
		}
	}
}

// Every Go identifier that the manual quotes exists.
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
