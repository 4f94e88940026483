package limit

import (
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/viablk/viablk/internal/block"
	"github.com/viablk/viablk/target/backend"
)

// richDisk has every optional interface of a device that a wrapper forwards.
type richDisk struct{ block.Device }

var richIdentity = block.NewIdentity()

func (richDisk) Durability() block.Durability { return block.OutlivesProcess }
func (richDisk) Identity() block.Identity     { return richIdentity }

// optional are the interfaces that a device may have besides [block.Device],
// and how a test sees that a wrapper forwards one. A nil function is an
// interface that no wrapper forwards, for the reason beside it.
var optional = map[string]func(t *testing.T, d block.Device){
	"DurabilityReporter": func(t *testing.T, d block.Device) {
		if got := block.DurabilityOf(d); got != block.OutlivesProcess {
			t.Errorf("durability %v", got)
		}
	},
	"Identified": func(t *testing.T, d block.Device) {
		if got := block.IdentityOf(d); got != richIdentity {
			t.Errorf("identity %v", got)
		}
	},
	"Mapped":      nil, // its user would bypass the wrapper
	"FileMapped":  nil, // likewise; TestAdjust has the one exception
	"Shared":      nil, // of the outermost wrapper alone, which is Export
	"growable":    nil, // of the disk as it was opened: see backend.PrepareGrow
	"WriteBacker": nil, // of the disk as it was opened, by a copy
}

// wrapped are the wrappers around a disk, and the interfaces, in one text, that
// one does not forward because it has an answer of its own.
var wrapped = map[string]struct {
	wrap    func(t *testing.T, d block.Device) block.Device
	answers string
}{
	"block.adjusted": {func(t *testing.T, d block.Device) block.Device {
		adjusted, err := block.Adjust(d, block.Adjustments{MinimumBlock: 4096})
		if err != nil {
			t.Fatal(err)
		}
		return adjusted
	}, ""},
	"block.adjustedMapped":     {nil, ""}, // as adjusted, of an interface that only disks have
	"block.adjustedFileMapped": {nil, ""},
	"backend.wrapper":          {nil, ""}, // made of text: TestWrappersOfText
	"backend.crc":              {nil, ""}, // likewise
	"backend.Volatile": {func(_ *testing.T, d block.Device) block.Device {
		return backend.NewVolatile(d)
	}, "DurabilityReporter Identified"}, // its cache ends with the device
	"limit.Export": {func(t *testing.T, d block.Device) block.Device { return export(t, d) }, ""},
	"limit.Session": {func(t *testing.T, d block.Device) block.Device {
		return export(t, d).Session()
	}, ""},
}

func export(t *testing.T, d block.Device) *Export {
	t.Helper()
	e, err := NewExport(d, Rates{Requests: 1000}, Rates{})
	if err != nil {
		t.Fatal(err)
	}
	return e
}

// TestWrappersForward: a wrapper has every optional interface of the device
// behind it.
func TestWrappersForward(t *testing.T) {
	memory, err := backend.Open("memory:1M", backend.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer memory.Close()
	checks := 0
	for name, w := range wrapped {
		if w.wrap == nil {
			continue
		}
		for face, check := range optional {
			if check == nil || strings.Contains(w.answers, face) {
				continue
			}
			checks++
			t.Run(name+" "+face, func(t *testing.T) { check(t, w.wrap(t, richDisk{memory})) })
		}
	}
	if checks < 6 {
		t.Errorf("only %d checks", checks)
	}
}

// TestWrappersOfText: the wrappers that a specification makes, of a file that
// has everything.
func TestWrappersOfText(t *testing.T) {
	path := filepath.Join(t.TempDir(), "disk")
	file := "file:" + path + "?create=1M"
	for _, spec := range []string{"delay:read=1us:" + file, "fault:read=EIO:" + file, "delay:read=1us:fault:read=EIO:" + file, "crc:" + file + "," + path + ".sums"} {
		d, err := backend.Open(spec, backend.Options{})
		if err != nil {
			t.Fatal(err)
		}
		if id := block.IdentityOf(d); id == nil || !id.Persistent() {
			t.Errorf("%s: identity %v", spec, id)
		}
		if got := block.DurabilityOf(d); got != block.OutlivesProcess {
			t.Errorf("%s: durability %v", spec, got)
		}
		if err := d.Close(); err != nil {
			t.Fatal(err)
		}
	}
}

// TestListsAreWhole: the lists above have every optional interface of package
// block and every wrapper of a device in the packages that have any.
func TestListsAreWhole(t *testing.T) {
	for folder, name := range map[string]string{"../../internal/block": "block", "../backend": "backend", ".": "limit"} {
		faces, wrappers := declared(t, folder, name)
		for _, f := range faces {
			if _, known := optional[f]; !known {
				t.Errorf("optional does not have %s.%s", name, f)
			}
		}
		for _, w := range wrappers {
			if _, known := wrapped[w]; !known {
				t.Errorf("wrapped does not have %s", w)
			}
		}
	}
	faces, wrappers := declaredIn(t, `package block
		type Planted interface { Device; Plant() }
		type planted struct { inner Device }
		func (planted) NewQueue(int) (Queue, error) { return nil, nil }`, "block")
	if len(faces) != 1 || len(wrappers) != 1 {
		t.Errorf("the planted interface and wrapper: %q, %q", faces, wrappers)
	}
}

func declared(t *testing.T, folder, name string) (faces, wrappers []string) {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(folder, "*.go"))
	if err != nil || len(files) == 0 {
		t.Fatalf("no files in %s: %v", folder, err)
	}
	var all strings.Builder
	for _, f := range files {
		if strings.HasSuffix(f, "_test.go") {
			continue
		}
		text, err := os.ReadFile(f)
		if err != nil {
			t.Fatal(err)
		}
		a, b := declaredIn(t, string(text), name)
		faces, wrappers = append(faces, a...), append(wrappers, b...)
		all.Write(text)
	}
	// A wrapper is a struct with a device in it that opens queues.
	opens := wrappers[:0]
	for _, w := range wrappers {
		short := strings.TrimPrefix(w, name+".")
		if strings.Contains(all.String(), "*"+short+") Info()") {
			opens = append(opens, w)
		}
	}
	return faces, opens
}

// declaredIn returns the interfaces that embed Device and the structs that hold
// one.
func declaredIn(t *testing.T, source, name string) (faces, wrappers []string) {
	t.Helper()
	f, err := parser.ParseFile(token.NewFileSet(), "", source, 0)
	if err != nil {
		t.Fatal(err)
	}
	isDevice := func(e ast.Expr) bool {
		if s, ok := e.(*ast.SelectorExpr); ok {
			e = s.Sel
		}
		id, ok := e.(*ast.Ident)
		if !ok {
			return false
		}
		switch id.Name {
		case "Device", "Mapped", "FileMapped", "Shared":
			return true
		}
		return name == "limit" && id.Name == "Export" // of a Session
	}
	ast.Inspect(f, func(n ast.Node) bool {
		spec, ok := n.(*ast.TypeSpec)
		if !ok {
			return true
		}
		switch kind := spec.Type.(type) {
		case *ast.InterfaceType:
			for _, m := range kind.Methods.List {
				if len(m.Names) == 0 && isDevice(m.Type) {
					faces = append(faces, spec.Name.Name)
				}
			}
		case *ast.StructType:
			for _, field := range kind.Fields.List {
				e := field.Type
				if p, ok := e.(*ast.StarExpr); ok {
					e = p.X
				}
				if isDevice(e) {
					wrappers = append(wrappers, name+"."+spec.Name.Name)
				}
			}
		}
		return true
	})
	return faces, wrappers
}
