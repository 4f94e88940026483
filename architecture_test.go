// Package viablk_test keeps the module in the shape that ARCHITECTURE.md draws.
//
// The rules are the data at the top of this file. An arrow, a package or a
// module that the data does not list is a failure: change the drawing and the
// data together, on purpose, or change the code. The test reads the sources
// itself: the go command knows which files a test opened, so that a cached
// result is never older than the code, which it would be behind "go list".
package viablk_test

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"maps"
	"os"
	"path"
	"runtime/debug"
	"slices"
	"strconv"
	"strings"
	"testing"
)

const module = "github.com/viablk/viablk"

// anything stands for every package of the module.
const anything = "*"

// arrows are the packages of the module and what each may import of it. The
// root holds tests only.
var arrows = map[string][]string{
	".":          {},
	"cmd/viablk": {anything},

	"cmd/viablk/internal/bench": {"via", "internal/eventfd", "internal/spin"},
	"cmd/viablk/internal/regbench": {
		"initiator", "target", "target/backend", "regcache", "via", "via/hook", "internal/block", "cmd/viablk/internal/bench",
	},

	"cmd/viablk/internal/show":       {},
	"cmd/viablk/internal/events":     {},
	"cmd/viablk/internal/activity":   {"internal/latency"},
	"cmd/viablk/internal/statuspage": {"cmd/viablk/internal/activity", "cmd/viablk/internal/show", "internal/latency"},
	"cmd/viablk/internal/top":        {"cmd/viablk/internal/activity", "cmd/viablk/internal/show", "internal/latency"},

	"cmd/viablk/internal/chart":   {},
	"cmd/viablk/internal/compare": {},

	"integration/command": {"config"},
	"integration/nbd":     {},
	"integration/rights":  {},
	"integration/roce":    {},
	"integration/attack":  {},
	"integration/session": {},

	"integration/testbed": {
		"integration/netbed", "integration/program", "initiator", "target", "target/limit", "internal/nbd", "internal/pki",
		"via", "via/roce", "via/shm",
	},
	"integration/program":    {},
	"integration/netbed":     {"internal/netns"},
	"integration/history":    {},
	"integration/nemesis":    {"integration/history", "integration/testbed"},
	"integration/simulation": {"integration/history", "initiator", "target", "target/reserve", "internal/block", "internal/loop", "internal/sched", "internal/takeover", "via"},

	"integration/suites":      {},
	"integration/suites/shim": {},

	"integration/packages": {},
	"integration/page":     {},
	"integration/ceph":     {},

	"via/roce/interop":     {"via", "via/roce", "via/roce/interop/oob"},
	"integration/vm":       {"integration/program", "integration/vm/agent"},
	"integration/vm/agent": {},
	"integration/vm/guest": {"integration/vm/agent"},

	"integration/vm/crashcheck": {},
	"integration/vm/workload":   {"internal/blockdev"},
	"integration/vm/worker": {
		"integration/vm/crashcheck", "integration/vm/workload", "initiator", "internal/block", "internal/nbd", "internal/nbdkernel", "via", "via/roce",
	},

	"integration/vm/interop":     {},
	"integration/vm/interop/end": {"via/roce/interop", "via/roce/interop/oob", "via", "via/roce"},

	"initiator": {"via", "regcache", "internal/backoff", "internal/carrier", "internal/handshake", "internal/seal", "internal/wire", "internal/block", "internal/loop", "internal/ratelog", "internal/ring", "internal/sched", "internal/contain"},
	"target":    {"via", "regcache", "internal/access", "internal/carrier", "internal/handshake", "internal/latency", "internal/seal", "internal/wire", "internal/block", "internal/loop", "internal/spin", "internal/ratelog", "internal/ring", "internal/sched", "internal/contain", "target/reserve"},
	"regcache":  {"via", "internal/buddy"},

	"via":          {"internal/buddy", "internal/eventfd", "internal/prefetch"},
	"via/shm":      {"via", "internal/contain", "internal/eventfd", "internal/memfd", "internal/prefetch", "internal/ring", "internal/sleepflag"},
	"via/arena":    {"via"},
	"via/roce":     {"via", "via/rdmahost", "internal/contain", "internal/eventfd", "via/arena", "via/roce/wire", "via/roce/rc", "via/roce/port", "via/roce/ethernet", "via/roce/cm"},
	"via/rdmahost": {"via", "internal/contain"},
	"via/verbs":    {"via", "via/rdmahost", "via/roce/wire", "internal/eventfd", "via/arena"},
	"via/joint":    {"via"},
	"via/hook":     {"via", "internal/eventfd"},
	"via/vipl":     {"via"},
	"via/viatest":  {"via", "via/hook", "internal/sleepflag"},

	"via/roce/cm":            {"via/roce/wire"},
	"via/roce/interop/oob":   {},
	"via/roce/ethernet":      {"via/roce/port", "via/roce/rc", "via/roce/wire", "internal/eventfd"},
	"via/roce/port":          {"via/roce/rc", "via/roce/wire", "internal/eventfd"},
	"via/roce/port/porttest": {"via/roce/port", "via/roce/rc", "via/roce/wire"},
	"via/roce/rc":            {"via/roce/wire"},
	"via/roce/wire":          {},
	"via/viatest/loopback":   {"via", "internal/eventfd"},

	"target/identity":            {"internal/block"},
	"target/reserve":             {"internal/block", "internal/contain", "internal/sched"},
	"target/limit":               {"internal/block", "internal/contain", "internal/eventfd"},
	"target/backend":             {"internal/block", "internal/blockdev", "internal/bytesize", "internal/contain", "internal/eventfd", "internal/ratelog", "target/backend/checksum", "target/backend/overlay", "target/backend/rbd", "target/backend/uring", "target/identity"},
	"target/backend/backendtest": {"internal/block"},
	"target/backend/uring":       {},
	"target/backend/overlay":     {},
	"target/backend/checksum":    {},
	"target/backend/rbd":         {"internal/block", "internal/eventfd", "internal/ratelog", "internal/ring", "target/identity"},

	"internal/nbd":         {"internal/access", "internal/block", "internal/contain", "internal/latency", "internal/loop", "internal/spin", "internal/ratelog", "internal/eventfd"},
	"internal/nbd/nbdtest": {},
	"internal/nbdclient":   {"internal/block", "internal/contain", "internal/eventfd", "internal/nbd", "internal/ring"},
	"internal/nbdkernel":   {},
	"internal/transfer":    {"internal/block", "internal/eventfd", "internal/latency", "internal/ring"},
	"internal/pki":         {},
	"internal/backoff":     {},
	"internal/block":       {"internal/buddy", "internal/contain", "internal/eventfd", "internal/loop", "internal/ring"},
	"internal/blockdev":    {},
	"internal/buddy":       {},
	"internal/eventfd":     {},
	"internal/memfd":       {},
	"internal/prefetch":    {},
	"internal/ring":        {},
	"internal/loop":        {"internal/eventfd", "internal/sleepflag"},
	"internal/sleepflag":   {"internal/memfd"},
	"internal/spin":        {},
	"internal/sched":       {"internal/eventfd", "internal/loop"},
	"internal/ratelog":     {},
	"internal/carrier":     {"via", "internal/seal"},
	"internal/contain":     {"internal/ratelog"},
	"internal/netns":       {},
	"internal/handshake":   {"internal/contain", "internal/seal", "internal/wire"},
	"internal/seal":        {},
	"internal/takeover":    {},
	"internal/access":      {"internal/contain"},
	"internal/wire":        {},
	"internal/metrics":     {"internal/latency"},
	"internal/latency":     {},
	"internal/bytesize":    {},
	"config":               {"internal/access", "internal/bytesize"},

	"contrib/checklocks": {}, // a module of its own
}

// testArrows are what the tests of a package may import of the module beyond
// the arrows and the package itself: kits, and what a kit is run on.
var testArrows = map[string][]string{
	".":       {"config"},
	"via":     {"via/viatest", "via/viatest/loopback", "via/shm", "via/roce"},
	"via/shm": {"via/viatest", "internal/loop"},

	"internal/loop": {"internal/memfd"},

	"via/roce":  {"via/viatest", "via/hook", "via/roce/interop", "via/roce/port/porttest", "internal/netns"},
	"via/verbs": {"via/viatest"},
	"via/joint": {"via/viatest", "via/shm", "via/roce"},
	"via/hook":  {"via/viatest", "via/viatest/loopback", "via/shm"},
	"via/vipl":  {"via/viatest/loopback"},

	"via/roce/interop":            {"via/shm"},
	"via/roce/port":               {"via/roce/port/porttest"},
	"via/roce/ethernet":           {"via/roce/port/porttest"},
	"integration/command":         {"integration/testbed"},
	"integration/nbd":             {"integration/testbed", "internal/nbd/nbdtest", "target/limit"},
	"integration/rights":          {"initiator", "internal/access", "internal/carrier", "internal/handshake", "internal/nbd", "internal/nbd/nbdtest", "internal/pki", "internal/wire", "target", "target/backend", "via", "via/roce", "via/shm", "via/verbs"},
	"integration/roce":            {"integration/history", "integration/nemesis", "integration/testbed", "integration/netbed", "internal/wire", "via/roce/port", "via/roce/wire"},
	"integration/simulation":      {"internal/carrier"},
	"integration/attack":          {"integration/history", "integration/netbed", "integration/program", "integration/testbed", "initiator", "target", "target/backend", "internal/block", "internal/handshake", "internal/pki", "internal/seal", "internal/wire", "via", "via/roce/wire"},
	"integration/session":         {"integration/history", "integration/nemesis", "integration/testbed", "initiator", "target", "target/backend", "target/backend/backendtest", "target/limit", "internal/sched", "target/reserve", "internal/block", "internal/contain", "internal/handshake", "internal/nbd", "internal/pki", "internal/seal", "internal/takeover", "internal/wire", "via", "via/roce", "via/roce/port", "via/roce/port/porttest", "via/shm"},
	"integration/suites":          {"integration/program", "integration/testbed", "internal/netns"},
	"integration/page":            {"integration/testbed"},
	"integration/ceph":            {"integration/history", "integration/program", "integration/testbed", "internal/block", "target/backend", "target/backend/backendtest"},
	"cmd/viablk/internal/compare": {"integration/testbed", "integration/netbed", "cmd/viablk/internal/chart", "initiator", "via", "via/shm"},

	"integration/vm/interop":    {"integration/vm"},
	"integration/vm":            {"integration/vm/crashcheck", "internal/block", "internal/nbd", "target/backend"},
	"integration/vm/crashcheck": {"internal/block", "target/backend"},

	"via/viatest":        {"via/viatest/loopback", "via/shm"},
	"regcache":           {"via/viatest/loopback", "via/shm"},
	"initiator":          {"via/shm", "via/hook", "target", "target/backend", "target/backend/backendtest", "internal/pki"},
	"target":             {"via/shm", "via/hook", "target/backend"},
	"internal/handshake": {"internal/pki"},
	"internal/nbd":       {"target/backend", "internal/nbd/nbdtest", "internal/pki"},
	"internal/nbdclient": {"target/backend", "target/backend/backendtest", "internal/pki"},
	"internal/transfer":  {"target/backend"},
	"internal/block":     {"target/backend/backendtest"},
	"target/backend":     {"target/backend/backendtest", "internal/nbd", "initiator", "target", "target/reserve", "via", "via/viatest/loopback"},
	"target/limit":       {"target/backend", "target/backend/backendtest"},

	"target/backend/backendtest": {"target/backend"},
	"via/viatest/loopback":       {"via/viatest"},
	"internal/carrier":           {"via/viatest/loopback", "via/shm"},

	"cmd/viablk/internal/bench":    {"via/shm"},
	"cmd/viablk/internal/regbench": {"via/shm"},
}

// users are the folders whose packages stand on those of internal/.
var users = []string{"cmd", "config", "initiator", "integration", "regcache", "target"}

// homes are the foreign modules and the packages that may import them, in
// tests too. A module is changed or dropped in its homes alone.
var homes = map[string][]string{
	"github.com/pojntfx/go-nbd":           {"internal/block", "internal/nbd"},
	"github.com/dgraph-io/ristretto":      {"regcache"},
	"github.com/anishathalye/porcupine":   {testsOnly},
	"github.com/florianl/go-nfqueue":      {testsOnly},
	"github.com/gopacket/gopacket":        {testsOnly},
	"github.com/mdlayher/genetlink":       {"internal/nbdkernel"},
	"github.com/mdlayher/netlink":         {"internal/nbdkernel"},
	"github.com/mdlayher/vsock":           {"internal/nbd"},
	"github.com/mdlayher/socket":          {"internal/nbd"},
	"github.com/spf13/viper":              {"config"},
	"github.com/spf13/cobra":              {"cmd/viablk"},
	"github.com/spf13/pflag":              {"cmd/viablk"},
	"gonum.org/v1/plot":                   {"cmd/viablk/internal/chart"},
	"golang.org/x/term":                   {"cmd/viablk"},
	"charm.land/bubbletea":                {"cmd/viablk", "cmd/viablk/internal/top"},
	"charm.land/lipgloss":                 {"cmd/viablk/internal/top"},
	"github.com/prometheus/client_golang": {"internal/metrics"},
	"github.com/prometheus/client_model":  {"internal/metrics"},
	"github.com/prometheus/common":        {"internal/metrics"},
	"golang.org/x/sys":                    {anything},
	"go.uber.org/goleak":                  {testsOnly},
	"pgregory.net/rapid":                  {testsOnly},
	"github.com/rogpeppe/go-internal":     {testsOnly},
	"gvisor.dev/gvisor/tools/checklocks":  {"contrib/checklocks"},
	"golang.org/x/tools":                  {"contrib/checklocks"},
	"C":                                   {"via/verbs", "target/backend/rbd"},
}

// testsOnly stands for the tests of every package, and for the kits.
const testsOnly = "tests"

// kits are packages that only tests import; they may use what tests may use.
var kits = []string{
	"via/viatest", "via/viatest/loopback", "via/roce/port/porttest", "target/backend/backendtest",
	"integration/netbed", "integration/history", "integration/nemesis", "integration/simulation", "integration/testbed", "integration/program", "internal/nbd/nbdtest", "integration/vm",
}

// vague are names that say nothing about what is inside.
var vague = []string{"util", "utils", "common", "type", "types", "helper", "helpers", "manager", "misc"}

// maximumLines bounds a file: what is longer holds more than one noun.
const maximumLines = 600

// tree is the Go sources of the module by slash-separated path.
type tree map[string]string

// readTree reads the sources below the working directory.
func readTree(t *testing.T) tree {
	t.Helper()
	sources := make(tree)
	err := fs.WalkDir(os.DirFS("."), ".", func(name string, d fs.DirEntry, err error) error {
		switch base := path.Base(name); {
		case err != nil:
			return err
		case d.IsDir() && name != "." && (base[0] == '.' || base[0] == '_' || base == "testdata"):
			return fs.SkipDir
		case d.IsDir() || path.Ext(name) != ".go":
			return nil
		}
		content, err := os.ReadFile(name)
		sources[name] = string(content)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return sources
}

// check returns every violation of the rules, sorted.
func (sources tree) check() []string {
	var bad []string
	documented := make(map[string][]string) // package → files with a package comment
	code := make(map[string]bool)           // packages with a file that is no test
	for _, name := range slices.Sorted(maps.Keys(sources)) {
		content := sources[name]
		files := token.NewFileSet()
		f, err := parser.ParseFile(files, name, content, parser.ParseComments)
		if err != nil {
			bad = append(bad, fmt.Sprintf("%s: does not parse: %v", name, err))
			continue
		}
		dir := path.Dir(name)
		if !strings.HasSuffix(name, "_test.go") {
			code[dir] = true
			if f.Doc != nil && f.Doc.Text() != "" {
				documented[dir] = append(documented[dir], name)
				bad = append(bad, checkPackageComment(name, f)...)
			}
		}
		bad = append(bad, checkImports(name, f)...)
		bad = append(bad, checkUnsafe(files, name, f)...)
		bad = append(bad, checkNames(name, f)...)
		bad = append(bad, checkScheduled(files, name, f)...)
		if lines := strings.Count(content, "\n"); lines > maximumLines {
			bad = append(bad, fmt.Sprintf("%s: has %d lines, at most %d are allowed", name, lines, maximumLines))
		}
	}
	for dir := range code {
		if n := len(documented[dir]); n != 1 {
			bad = append(bad, fmt.Sprintf("%s: has %d package comments, not 1 %v", dir, n, documented[dir]))
		}
	}
	slices.Sort(bad)
	return bad
}

// checkPackageComment checks how the comment begins.
func checkPackageComment(name string, f *ast.File) []string {
	want := "Package " + f.Name.Name + " "
	if f.Name.Name == "main" {
		want = "Command " + path.Base(path.Dir(name)) + " "
	}
	if strings.HasPrefix(strings.Join(strings.Fields(f.Doc.Text()), " "), want) {
		return nil
	}
	return []string{fmt.Sprintf("%s: the package comment does not begin with %q", name, want)}
}

// checkImports checks the arrows and the homes.
func checkImports(name string, f *ast.File) []string {
	dir, isTest := path.Dir(name), strings.HasSuffix(name, "_test.go")
	allowed, ok := arrows[dir]
	if !ok {
		return []string{fmt.Sprintf("%s: the package %s is not drawn", name, dir)}
	}
	if isTest {
		allowed = slices.Concat(allowed, testArrows[dir], []string{dir})
	}
	var bad []string
	for _, spec := range f.Imports {
		imported, _ := strconv.Unquote(spec.Path.Value)
		if imported == module || strings.HasPrefix(imported, module+"/") {
			to := strings.TrimPrefix(strings.TrimPrefix(imported, module), "/")
			if !isTest && leadsUp(dir, to) {
				bad = append(bad, fmt.Sprintf("%s: the arrow %s → %s leads up from internal", name, dir, to))
				continue
			}
			if !slices.Contains(allowed, anything) && !slices.Contains(allowed, to) {
				bad = append(bad, fmt.Sprintf("%s: the arrow %s → %s is not drawn", name, dir, to))
			}
			continue
		}
		if complaint := checkHome(dir, imported, isTest); complaint != "" {
			bad = append(bad, fmt.Sprintf("%s: %s", name, complaint))
		}
	}
	return bad
}

// leadsUp reports whether an arrow leaves internal/, which holds the data path
// and what it stands on, for its users. A package that a command alone needs is
// below the command.
func leadsUp(from, to string) bool {
	if !strings.HasPrefix(from, "internal/") {
		return false
	}
	first, _, _ := strings.Cut(to, "/")
	return slices.Contains(users, first)
}

// checkHome checks the import of a package that is not the module's.
func checkHome(dir, imported string, isTest bool) string {
	if first, _, _ := strings.Cut(imported, "/"); !strings.Contains(first, ".") && imported != "C" {
		return "" // the standard library
	}
	for foreign, in := range homes {
		if imported != foreign && !strings.HasPrefix(imported, foreign+"/") {
			continue
		}
		tests := slices.Contains(in, testsOnly) && (isTest || slices.Contains(kits, dir))
		if slices.Contains(in, anything) || slices.Contains(in, dir) || tests {
			return ""
		}
		return fmt.Sprintf("%s is imported outside its home %v", imported, in)
	}
	return fmt.Sprintf("the module of %s has no home", imported)
}

// checkUnsafe checks that unsafe is confined and that each declaration that
// uses it says why it is right.
func checkUnsafe(files *token.FileSet, name string, f *ast.File) []string {
	if !slices.ContainsFunc(f.Imports, func(s *ast.ImportSpec) bool { return s.Path.Value == `"unsafe"` }) {
		return nil
	}
	stem := strings.TrimSuffix(strings.TrimSuffix(name, ".go"), "_test")
	if !strings.HasSuffix(stem, "_unsafe") && path.Dir(name) != "via/verbs" {
		return []string{name + ": unsafe is imported outside *_unsafe.go"}
	}
	var bad []string
	for _, declaration := range f.Decls {
		if !usesUnsafe(declaration) {
			continue
		}
		reasons := slices.ContainsFunc(f.Comments, func(c *ast.CommentGroup) bool {
			inside := c.Pos() >= declaration.Pos() && c.End() <= declaration.End()
			above := c.End()+1 == declaration.Pos()
			return (inside || above) && strings.Contains(c.Text(), "Safety:")
		})
		if !reasons {
			line := files.Position(declaration.Pos()).Line
			bad = append(bad, fmt.Sprintf("%s:%d: unsafe is used without a Safety: line", name, line))
		}
	}
	return bad
}

// usesUnsafe reports whether a declaration selects from package unsafe.
func usesUnsafe(declaration ast.Decl) bool {
	uses := false
	ast.Inspect(declaration, func(n ast.Node) bool {
		if s, ok := n.(*ast.SelectorExpr); ok {
			if x, ok := s.X.(*ast.Ident); ok && x.Name == "unsafe" {
				uses = true
			}
		}
		return !uses
	})
	return uses
}

// checkNames refuses packages and files whose name says nothing.
func checkNames(name string, f *ast.File) []string {
	stem, _, _ := strings.Cut(path.Base(name), ".")
	stem = strings.TrimSuffix(stem, "_test")
	if slices.Contains(vague, stem) || slices.Contains(vague, strings.TrimSuffix(f.Name.Name, "_test")) {
		return []string{name + ": the name does not say what is inside"}
	}
	return nil
}

func TestArchitecture(t *testing.T) {
	sources := readTree(t)
	if len(sources) < 20 {
		t.Fatalf("only %d source files were found", len(sources))
	}
	for _, complaint := range sources.check() {
		t.Error(complaint)
	}
}

// The arrows have no cycle, so that the drawing has a top and a bottom.
func TestArrowsAreAcyclic(t *testing.T) {
	done := make(map[string]bool)
	var visit func(from string, trail []string)
	visit = func(from string, trail []string) {
		if slices.Contains(trail, from) {
			t.Fatalf("cycle: %v → %s", trail, from)
		}
		if done[from] {
			return
		}
		for _, to := range arrows[from] {
			if to == anything {
				continue
			}
			if _, ok := arrows[to]; !ok {
				t.Errorf("%s → %s leads to a package that is not drawn", from, to)
			}
			visit(to, append(trail, from))
		}
		done[from] = true
	}
	for from := range arrows {
		visit(from, nil)
	}
}

// A rule that cannot fail guards nothing: each is shown one planted file.
func TestRulesCanFail(t *testing.T) {
	good := tree{
		"config/config.go": "// Package config is planted.\npackage config\n",
		"target/target.go": "// Package target is planted.\npackage target\n\nimport _ \"" + module + "/via\"\n",
		"via/x_unsafe.go":  "// Package via is planted.\npackage via\n\nimport \"unsafe\"\n\n// Safety: it is a nil.\nvar p = unsafe.Pointer(nil)\n",
		"cmd/viablk/a.go":  "// Command viablk is planted.\npackage main\n\nimport _ \"" + module + "/target\"\n",
	}
	if bad := good.check(); len(bad) != 0 {
		t.Fatalf("the good tree is refused: %v", bad)
	}
	for _, c := range []struct{ name, file, content, want string }{
		{
			"arrow", "target/bad.go", "package target\n\nimport _ \"" + module + "/initiator\"\n",
			"target/bad.go: the arrow target → initiator is not drawn",
		},
		{
			"arrow in a test", "target/bad_test.go", "package target_test\n\nimport _ \"" + module + "/initiator\"\n",
			"target/bad_test.go: the arrow target → initiator is not drawn",
		},
		{
			"test arrow in code", "initiator/bad.go", "// Package initiator is bad.\npackage initiator\n\nimport _ \"" + module + "/target\"\n",
			"initiator/bad.go: the arrow initiator → target is not drawn",
		},
		{
			"arrow up from internal", "internal/wire/bad.go", "// Package wire is bad.\npackage wire\n\nimport _ \"" + module + "/initiator\"\n",
			"internal/wire/bad.go: the arrow internal/wire → initiator leads up from internal",
		},
		{
			"arrow up to a backend", "internal/nbd/bad.go", "// Package nbd is bad.\npackage nbd\n\nimport _ \"" + module + "/target/backend\"\n",
			"internal/nbd/bad.go: the arrow internal/nbd → target/backend leads up from internal",
		},
		{
			"package", "internal/new/new.go", "// Package new is bad.\npackage new\n",
			"internal/new/new.go: the package internal/new is not drawn",
		},
		{
			"home", "target/bad.go", "package target\n\nimport _ \"github.com/spf13/viper\"\n",
			"target/bad.go: github.com/spf13/viper is imported outside its home [config]",
		},
		{
			"home of a subpackage", "config/bad_test.go", "package config\n\nimport _ \"github.com/pojntfx/go-nbd/pkg/server\"\n",
			"config/bad_test.go: github.com/pojntfx/go-nbd/pkg/server is imported outside its home [internal/block internal/nbd]",
		},
		{
			"test module in code", "config/bad.go", "package config\n\nimport _ \"go.uber.org/goleak\"\n",
			"config/bad.go: go.uber.org/goleak is imported outside its home [tests]",
		},
		{
			"module without home", "config/bad.go", "package config\n\nimport _ \"example.org/new\"\n",
			"config/bad.go: the module of example.org/new has no home",
		},
		{
			"cgo", "config/bad.go", "package config\n\nimport \"C\"\n",
			"config/bad.go: C is imported outside its home [via/verbs target/backend/rbd]",
		},
		{
			"no package comment", "regcache/bad.go", "package regcache\n",
			"regcache: has 0 package comments, not 1 []",
		},
		{
			"two package comments", "config/bad.go", "// Package config is planted.\npackage config\n",
			"config: has 2 package comments, not 1 [config/bad.go config/config.go]",
		},
		{
			"malformed package comment", "regcache/bad.go", "// This is bad.\npackage regcache\n",
			`regcache/bad.go: the package comment does not begin with "Package regcache "`,
		},
		{
			"unsafe", "via/bad.go", "package via\n\nimport _ \"unsafe\"\n",
			"via/bad.go: unsafe is imported outside *_unsafe.go",
		},
		{
			"unsafe without a reason", "via/bad_unsafe.go", "package via\n\nimport \"unsafe\"\n\nfunc f() {\n\t_ = unsafe.Pointer(nil)\n}\n",
			"via/bad_unsafe.go:5: unsafe is used without a Safety: line",
		},
		{
			"long file", "config/bad.go", "package config\n" + strings.Repeat("\n", maximumLines),
			"config/bad.go: has 601 lines, at most 600 are allowed",
		},
		{
			"vague file", "config/util.go", "package config\n",
			"config/util.go: the name does not say what is inside",
		},
		{
			"vague package", "config/a_test.go", "package types_test\n",
			"config/a_test.go: the name does not say what is inside",
		},
		{"syntax", "config/bad.go", "package\n", "config/bad.go: does not parse: "},
	} {
		t.Run(c.name, func(t *testing.T) {
			planted := maps.Clone(good)
			planted[c.file] = c.content
			bad := planted.check()
			if len(bad) != 1 || !strings.HasPrefix(bad[0], c.want) {
				t.Errorf("got %q, want %q", bad, c.want)
			}
		})
	}
}

// A race run that lost its flag would pass for ever; this run would not.
func TestRaceDetectorIsOn(t *testing.T) {
	build, ok := debug.ReadBuildInfo()
	if !ok {
		t.Fatal("the test binary has no build information")
	}
	race := slices.Contains(build.Settings, debug.BuildSetting{Key: "-race", Value: "true"})
	if os.Getenv("VIABLK_WANT_RACE") == "1" && !race {
		t.Error("VIABLK_WANT_RACE=1 asks for the race detector, and it is off")
	}
}
