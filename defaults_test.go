package viablk_test

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"maps"
	"os"
	"path"
	"reflect"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/viablk/viablk/config"
)

// libraries are the packages that have defaults for those who use them without
// a configuration, with the keys of the configuration by the fields that the
// function withDefaults fills. A field without a key has no other default.
var libraries = map[string]map[string]string{
	"target": {
		"Depth": "target.depth", "InlineMax": "target.inline_max", "MaxIO": "target.max_io",
		"MaxConnections": "target.connections", "RegisterMax": "target.register_max",
		"KeepAlive": "target.keepalive", "BusyPoll": "target.busy_poll",
	},
	"initiator": {
		"Timeout": "attach.timeout", "ReconnectDelay": "attach.reconnect_delay", "PoolBytes": "", "Chunk": "", "RekeyInterval": "",
	},
	"internal/nbd": {
		"Handshake": "nbd.handshake_timeout", "Progress": "nbd.progress_timeout", "BusyPoll": "nbd.busy_poll",
		"Connections": "nbd.connections", "Handshakes": "nbd.handshakes", "Options": "nbd.options", "Depth": "nbd.depth",
		"OptionBytes": "", "NameBytes": "", "Payload": "", "InFlight": "",
	},
}

// restated are comments of fields that state a constant of another package.
var restated = []struct{ dir, field, from, constant string }{
	{"config", "Burst", "target/limit", "DefaultBurst"},
	{"initiator", "RegisterMax", "regcache", "defaultBudget"},
	{"regcache", "MaxBytes", "regcache", "defaultBudget"},
}

// limitRow is a row of the table of limits in docs/nbd.md that has a number.
var limitRow = regexp.MustCompile("(?m)^\\| `([A-Z][A-Za-z]*)` \\| ([0-9]+)(?: (ns|µs|ms|s|KiB|MiB|GiB))?[ ,;]")

// units are the constants of package time.
var units = map[string]int64{
	"Nanosecond": 1, "Microsecond": int64(time.Microsecond), "Millisecond": int64(time.Millisecond),
	"Second": int64(time.Second), "Minute": int64(time.Minute), "Hour": int64(time.Hour),
}

// suffixes are the units of values that comments state.
var suffixes = map[string]int64{
	"": 1, "ns": 1, "µs": int64(time.Microsecond), "ms": int64(time.Millisecond), "s": int64(time.Second),
	"min": int64(time.Minute), "h": int64(time.Hour), "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30,
}

// statedDefault matches a default in the comment of a field.
var statedDefault = regexp.MustCompile(`(?:; |\bdefault (?:and most )?|\b0 is |\b(?:Zero|0) means )([0-9]+) ?(ns|µs|ms|s|min|h|KiB|MiB|GiB)?(?:[,.;]| or |$)`)

// library is the sources of a package, with those it takes constants from.
type library struct {
	constants map[string]ast.Expr
	comments  map[string]string   // of fields
	fills     map[string]ast.Expr // of withDefaults, by field
}

// readLibrary reads the files of a folder.
func readLibrary(sources tree, dir string) (*library, error) {
	l := &library{make(map[string]ast.Expr), make(map[string]string), make(map[string]ast.Expr)}
	for name, content := range sources {
		from := path.Dir(name)
		if from != dir && from != "internal/wire" || strings.HasSuffix(name, "_test.go") {
			continue
		}
		f, err := parser.ParseFile(token.NewFileSet(), name, content, parser.ParseComments)
		if err != nil {
			return nil, err
		}
		prefix := ""
		if from != dir {
			prefix = path.Base(from) + "."
		}
		l.read(f, prefix)
	}
	return l, nil
}

// read collects what a file declares; prefix is that of its constants.
func (l *library) read(f *ast.File, prefix string) {
	ast.Inspect(f, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.ValueSpec:
			for i, name := range n.Names {
				if i < len(n.Values) {
					l.constants[prefix+name.Name] = n.Values[i]
				}
			}
		case *ast.TypeSpec:
			s, ok := n.Type.(*ast.StructType)
			if !ok || prefix != "" || n.Name.Name != "Config" && n.Name.Name != "Limits" {
				return true
			}
			for _, field := range s.Fields.List {
				for _, name := range field.Names {
					l.comments[name.Name] = strings.Join(strings.Fields(field.Doc.Text()+" "+field.Comment.Text()), " ")
				}
			}
		case *ast.FuncDecl:
			if n.Name.Name == "withDefaults" && prefix == "" {
				l.readDefaults(n.Body)
			}
		}
		return true
	})
}

// readDefaults collects what withDefaults fills: in an assignment, or by set or
// orDefault, where the value follows the field.
func (l *library) readDefaults(body *ast.BlockStmt) {
	ast.Inspect(body, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.IfStmt: // if c.F == 0 { c.F = value }
			condition, ok := n.Cond.(*ast.BinaryExpr)
			if !ok || condition.Op != token.EQL || len(n.Body.List) != 1 {
				return true
			}
			if a, ok := n.Body.List[0].(*ast.AssignStmt); ok && len(a.Rhs) == 1 {
				l.fill(a.Lhs[0], a.Rhs[0])
			}
		case *ast.CallExpr:
			if f, ok := n.Fun.(*ast.Ident); ok && len(n.Args) == 2 && (f.Name == "set" || f.Name == "orDefault") {
				l.fill(n.Args[0], n.Args[1])
			}
		}
		return true
	})
}

func (l *library) fill(target, value ast.Expr) {
	if a, ok := target.(*ast.UnaryExpr); ok {
		target = a.X
	}
	if s, ok := target.(*ast.SelectorExpr); ok {
		l.fills[s.Sel.Name] = value
	}
}

// value returns the number of a constant expression.
func (l *library) value(x ast.Expr) (int64, bool) {
	switch x := x.(type) {
	case *ast.BasicLit:
		n, err := strconv.ParseInt(x.Value, 0, 64)
		return n, err == nil && x.Kind == token.INT
	case *ast.ParenExpr:
		return l.value(x.X)
	case *ast.Ident:
		c, ok := l.constants[x.Name]
		if !ok {
			return 0, false
		}
		return l.value(c)
	case *ast.SelectorExpr:
		from, ok := x.X.(*ast.Ident)
		if !ok {
			return 0, false
		}
		if from.Name == "time" {
			n, ok := units[x.Sel.Name]
			return n, ok
		}
		c, ok := l.constants[from.Name+"."+x.Sel.Name]
		if !ok {
			return 0, false
		}
		return l.value(c)
	case *ast.BinaryExpr:
		a, ok := l.value(x.X)
		b, well := l.value(x.Y)
		switch {
		case !ok || !well:
		case x.Op == token.MUL:
			return a * b, true
		case x.Op == token.SHL:
			return a << b, true
		case x.Op == token.ADD:
			return a + b, true
		case x.Op == token.SUB:
			return a - b, true
		}
	}
	return 0, false
}

// checkDefaults returns where a library's default is not that of the
// configuration, or not that of its comment, and how many were compared.
func checkDefaults(sources tree, dir string, keys map[string]string, defaults map[string]int64) (bad []string, compared int) {
	l, err := readLibrary(sources, dir)
	if err != nil {
		return []string{err.Error()}, 0
	}
	for _, field := range slices.Sorted(maps.Keys(l.fills)) {
		got, ok := l.value(l.fills[field])
		if !ok {
			continue // not a number, or more than a constant
		}
		key, known := keys[field]
		if !known {
			bad = append(bad, fmt.Sprintf("%s: no row says which key is the field %s", dir, field))
			continue
		}
		if want, ok := defaults[key]; key != "" && (!ok || got != want) {
			bad = append(bad, fmt.Sprintf("%s: the default of %s is %d, that of the key %s %d", dir, field, got, key, want))
		}
		compared++
		bad = append(bad, l.checkComment(dir, field, got)...)
	}
	for _, field := range slices.Sorted(maps.Keys(keys)) {
		if l.fills[field] == nil {
			bad = append(bad, fmt.Sprintf("%s: nothing fills the field %s", dir, field))
		}
	}
	return bad, compared
}

// checkComment checks that the comment of a field states its default.
func (l *library) checkComment(dir, field string, want int64) []string {
	stated := statedDefault.FindStringSubmatch(l.comments[field])
	if stated == nil {
		return []string{fmt.Sprintf("%s: the comment of %s states no default: %q", dir, field, l.comments[field])}
	}
	if number(stated[1], stated[2]) != want {
		return []string{fmt.Sprintf("%s: the comment of %s states %s%s, its default is %d", dir, field, stated[1], stated[2], want)}
	}
	return nil
}

// number returns a number with its unit.
func number(digits, unit string) int64 {
	n, _ := strconv.ParseInt(digits, 10, 64)
	return n * suffixes[unit]
}

// checkRestated checks a row of restated.
func checkRestated(sources tree, dir, field, from, constant string) []string {
	l, err := readLibrary(sources, dir)
	if err != nil {
		return []string{err.Error()}
	}
	other, err := readLibrary(sources, from)
	if err != nil {
		return []string{err.Error()}
	}
	want, ok := other.value(&ast.Ident{Name: constant})
	if !ok {
		return []string{fmt.Sprintf("%s: there is no constant %s", from, constant)}
	}
	return l.checkComment(dir, field, want)
}

// checkLimitTable compares the rows of a page with what a library fills in, and
// returns how many it has.
func checkLimitTable(sources tree, dir, page string) (bad []string, compared int) {
	l, err := readLibrary(sources, dir)
	if err != nil {
		return []string{err.Error()}, 0
	}
	for _, row := range limitRow.FindAllStringSubmatch(page, -1) {
		fill, ok := l.fills[row[1]]
		if !ok {
			continue // a row of another table
		}
		compared++
		if want, ok := l.value(fill); ok && number(row[2], row[3]) != want {
			bad = append(bad, fmt.Sprintf("the page states %s%s for %s, its default is %d", row[2], row[3], row[1], want))
		}
	}
	return bad, compared
}

// numericDefaults returns the defaults of the configuration that are numbers,
// times in nanoseconds, by key.
func numericDefaults() map[string]int64 {
	all := make(map[string]int64)
	var walk func(v reflect.Value, prefix string)
	walk = func(v reflect.Value, prefix string) {
		for i := range v.NumField() {
			key := prefix + v.Type().Field(i).Tag.Get("mapstructure")
			switch field := v.Field(i); {
			case field.Kind() == reflect.Struct:
				walk(field, key+".")
			case field.CanInt():
				all[key] = field.Int()
			case field.CanUint():
				all[key] = int64(field.Uint())
			}
		}
	}
	walk(reflect.ValueOf(config.Default()), "")
	return all
}

// A default has one value, that of config.Default: the libraries' and the
// values in their comments are compared with it.
func TestDefaultsAgree(t *testing.T) {
	sources, defaults, total := readTree(t), numericDefaults(), 0
	for dir, keys := range libraries {
		bad, compared := checkDefaults(sources, dir, keys, defaults)
		total += compared
		for _, complaint := range bad {
			t.Error(complaint)
		}
	}
	if total < 20 {
		t.Errorf("only %d defaults were compared", total)
	}
	for _, row := range restated {
		for _, complaint := range checkRestated(sources, row.dir, row.field, row.from, row.constant) {
			t.Error(complaint)
		}
	}
	page, err := os.ReadFile("docs/nbd.md")
	if err != nil {
		t.Fatal(err)
	}
	bad, compared := checkLimitTable(sources, "internal/nbd", string(page))
	for _, complaint := range bad {
		t.Error("docs/nbd.md: " + complaint)
	}
	if want := len(libraries["internal/nbd"]); compared != want {
		t.Errorf("docs/nbd.md states %d defaults of the limits, there are %d", compared, want)
	}
}

// A default that differs is found, in whichever form it is written.
func TestDifferentDefaultIsFound(t *testing.T) {
	const head = "package x\n\nimport \"time\"\n\nconst k = 2 << 3\n\ntype Config struct {\n" +
		"\tA int // of requests; 16\n\t// B is a time; default 3 s, or less.\n\tB time.Duration\n}\n\n"
	keys, defaults := map[string]string{"A": "x.a", "B": "x.b"}, map[string]int64{"x.a": 16, "x.b": 3e9}
	for name, c := range map[string]struct{ code, want string }{
		"good":        {"set(&c.A, k)\n\tif c.B == 0 {\n\t\tc.B = 3 * time.Second\n\t}", ""},
		"other value": {"set(&c.A, 17)\n\tc.B = orDefault(c.B, 3*time.Second)", "x: the default of A is 17, that of the key x.a 16"},
		"other time":  {"set(&c.A, 16)\n\tif c.B == 0 {\n\t\tc.B = 4 * time.Second\n\t}", "x: the default of B is 4000000000, that of the key x.b 3000000000"},
		"no default":  {"set(&c.A, 16)", "x: nothing fills the field B"},
		"new field":   {"set(&c.A, 16)\n\tset(&c.B, 3*time.Second)\n\tset(&c.C, 1)", "x: no row says which key is the field C"},
	} {
		sources := tree{"x/x.go": head + "func (c Config) withDefaults() {\n\t" + c.code + "\n}\n"}
		bad, _ := checkDefaults(sources, "x", keys, defaults)
		if first := slices.Concat(bad, []string{""})[0]; first != c.want {
			t.Errorf("%s: got %q, want %q", name, bad, c.want)
		}
	}
	stale := tree{"x/x.go": strings.Replace(head, "; 16", "; 8", 1) + "func (c Config) withDefaults() {\n\tset(&c.A, 16)\n\tset(&c.B, 3*time.Second)\n}\n"}
	if bad, _ := checkDefaults(stale, "x", keys, defaults); len(bad) != 1 || bad[0] != "x: the comment of A states 8, its default is 16" {
		t.Errorf("a comment that states another value: %q", bad)
	}
	if bad := checkRestated(stale, "x", "A", "x", "k"); len(bad) != 1 || bad[0] != "x: the comment of A states 8, its default is 16" {
		t.Errorf("a comment on another package's constant: %q", bad)
	}
	if bad := checkRestated(stale, "x", "A", "x", "none"); len(bad) != 1 || bad[0] != "x: there is no constant none" {
		t.Errorf("a constant that is gone: %q", bad)
	}
	page := "| `A` | 16 of them | close |\n| `B` | 4 s, or less | close |\n| `C` | 1 | x |\n"
	want := []string{"the page states 4s for B, its default is 3000000000"}
	if bad, compared := checkLimitTable(stale, "x", page); !slices.Equal(bad, want) || compared != 2 {
		t.Errorf("got %d rows, %q, want %q", compared, bad, want)
	}
}
