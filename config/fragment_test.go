package config

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"syscall"
	"testing"
)

// tree writes files below a folder, which has the configuration main.yaml.
func tree(t *testing.T, files map[string]string) (main string) {
	t.Helper()
	folder := t.TempDir()
	for name, text := range files {
		path := filepath.Join(folder, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	return filepath.Join(folder, "main.yaml")
}

func (e *Effective) setting(key string) Setting {
	for _, s := range e.Settings {
		if s.Key == key {
			return s
		}
	}
	return Setting{}
}

// Fragments add to lists and prevail over values, in the order of their names.
func TestFragments(t *testing.T) {
	main := tree(t, map[string]string{
		"main.yaml":           "target:\n  depth: 7\n  pool: 1M\n  listen: nbd://localhost/ nbd://localhost:1/\n  exports: [a=memory:1M]\nlog: {level: warn}",
		"conf.d/20-b.yaml":    "target:\n  depth: 9\n  exports:\n  - {name: B.c, backend: 'memory:2M', limits: {iops: 5}}\n  - d=null:1M",
		"conf.d/10-c.yaml":    "target: {depth: 8, listen: ['nbd://localhost:2/']}\nattach: {clients: ['user:root']}",
		"conf.d/30-e.yaml":    "target:\n",
		"conf.d/.hidden.yaml": "nonsense: 1",
		"conf.d/old.yaml~":    "nonsense: 1",
		"conf.d/x.yaml.dpkg":  "nonsense: 1",
	})
	e, err := Load(main, nil, nil)
	if err != nil {
		t.Fatal(err)
	}
	c := e.Config.Target
	b, ten, thirty := filepath.Dir(main)+"/conf.d/20-b.yaml", filepath.Dir(main)+"/conf.d/10-c.yaml", filepath.Dir(main)+"/conf.d/30-e.yaml"
	if got := fmt.Sprint(c.Depth, c.Pool, c.Listen, c.Exports, e.Config.Log.Level, e.Config.Attach.Clients, c.Exports[1].Limits.IOPS); got !=
		"9 1MiB [nbd://localhost/ nbd://localhost:1/ nbd://localhost:2/] [a=memory:1M B.c=memory:2M d=null:1M]warn[user:root] 5" {
		t.Errorf("got %s", got)
	}
	if want := []string{main, ten, b, thirty}; !reflect.DeepEqual(e.Files, want) {
		t.Errorf("files %v, want %v", e.Files, want)
	}
	for key, want := range map[string]Setting{
		"target.depth":   {Origin: FromFile, Source: b},
		"target.pool":    {Origin: FromFile, Source: main},
		"target.exports": {Origin: FromFile, Source: main + ", " + b, Elements: []string{main, b, b}},
		"target.listen":  {Origin: FromFile, Source: main + ", " + ten, Elements: []string{main, main, ten}},
		"attach.clients": {Origin: FromFile, Source: ten},
		"target.max_io":  {Origin: FromDefault},
	} {
		got := e.setting(key)
		got.Key, got.Value = "", nil
		if !reflect.DeepEqual(got, want) {
			t.Errorf("%s: %+v, want %+v", key, got, want)
		}
	}
	t.Setenv("VIABLK_TARGET_EXPORTS", "z=null:1M")
	if e, err = Load(main, nil, nil); err != nil || fmt.Sprint(e.Config.Target.Exports) != "[z=null:1M]" || e.setting("target.exports").Elements != nil {
		t.Errorf("the environment does not prevail: %v, %v, %v", e.Config.Target.Exports, e.setting("target.exports"), err)
	}
}

// The main file may have another format than its fragments.
func TestFragmentsOfOtherFormats(t *testing.T) {
	for name, text := range map[string]string{
		"main.toml": "[[target.exports]]\nname = \"a\"\nbackend = \"memory:1M\"\n",
		"main.json": `{"target": {"exports": [{"name": "a", "backend": "memory:1M"}]}}`,
		"main.yml":  "target: {exports: [a=memory:1M]}",
	} {
		main := tree(t, map[string]string{name: text, "conf.d/b.yaml": "target: {exports: [b=memory:2M]}"})
		e, err := Load(filepath.Join(filepath.Dir(main), name), nil, nil)
		if err != nil || fmt.Sprint(e.Config.Target.Exports) != "[a=memory:1M b=memory:2M]" {
			t.Errorf("%s: %v, %v", name, e.Config.Target.Exports, err)
		}
	}
}

// A problem is told with the file that it is in, and with both if two have it.
func TestProblemsOfFragments(t *testing.T) {
	big := strings.Repeat("#", int(maximumText))
	for name, c := range map[string]struct {
		files map[string]string
		want  []string
	}{
		"names": {map[string]string{
			"main.yaml": "target: {exports: [a=null:1M]}", "conf.d/b.yaml": "target: {exports: [b=null:1M, a=null:2M]}", "conf.d/c.yaml": "target: {exports: [b=null:1M]}",
		}, []string{
			`target.exports[2]: the name "a" is already that of target.exports[0] of F/main.yaml (from F/conf.d/b.yaml)`,
			`target.exports[3]: the name "b" is already that of target.exports[1] of F/conf.d/b.yaml (from F/conf.d/c.yaml)`,
		}},
		"names of one": {map[string]string{"main.yaml": "", "conf.d/b.yaml": "target: {exports: [b=null:1M, b=null:2M]}"}, []string{
			`target.exports[1]: the name "b" is already that of target.exports[0] (from F/conf.d/b.yaml)`,
		}},
		"defaults": {map[string]string{
			"main.yaml":     "target: {exports: [{name: a, backend: 'null:1M', default: true}]}",
			"conf.d/b.yaml": "target: {exports: [{name: b, backend: 'null:1M', default: true}]}",
		}, []string{`target.exports[1]: only one export can be the default: another one is target.exports[0] of F/main.yaml (from F/conf.d/b.yaml)`}},
		"values": {map[string]string{"main.yaml": "target: {depth: 7, dept: 7}", "conf.d/b.yaml": "target: {depth: 0, exports: [b=null:1M]}\nlog: {lvl: x}", "conf.d/c.yaml": "target: {exports: [{name: c}]}"}, []string{
			"target.dept: unknown key",
			"log.lvl: unknown key; known here are level, format, trace (from F/conf.d/b.yaml)",
			`target.exports[1]: export "c" has no backend (from F/conf.d/c.yaml)`,
			"target.depth: 0 is not in 1…1024 (from F/conf.d/b.yaml)",
		}},
		"syntax": {map[string]string{"main.yaml": "target: [", "conf.d/b.yaml": "target: text", "conf.d/c.yaml": "{"}, []string{
			"did not find", "target: is a section: write its keys below it (from F/conf.d/b.yaml)", "(from F/conf.d/c.yaml)",
		}},
		"other name": {map[string]string{"main.yaml": "", "conf.d/b.toml": ""}, []string{"the name of a file in conf.d ends in .yaml (from F/conf.d/b.toml)"}},
		"a folder":   {map[string]string{"main.yaml": "", "conf.d/b.yaml/c": ""}, []string{"is not a regular file (from F/conf.d/b.yaml)"}},
		"a file":     {map[string]string{"main.yaml": "", "conf.d": ""}, []string{"is not a folder (from F/conf.d)"}},
		"much":       {map[string]string{"main.yaml": "#", "conf.d/b.yaml": big}, []string{"configuration files have at most 8MiB, all together (from F/conf.d/b.yaml)"}},
	} {
		t.Run(name, func(t *testing.T) { wantProblems(t, tree(t, c.files), c.want) })
	}
}

func wantProblems(t *testing.T, main string, want []string) {
	t.Helper()
	_, err := Load(main, nil, nil)
	var bad *Error
	if !errors.As(err, &bad) || len(bad.Problems) != len(want) {
		t.Fatalf("got %+v, want %q", err, want)
	}
	for i, p := range bad.Problems {
		if got := strings.ReplaceAll(p.String(), filepath.Dir(main), "F"); !strings.Contains(got, want[i]) {
			t.Errorf("got  %s\nwant %s", got, want[i])
		}
	}
}

func TestTooManyFragments(t *testing.T) {
	files := map[string]string{"main.yaml": ""}
	for i := range maximumFragments + 1 {
		files[fmt.Sprintf("conf.d/%d.yaml", i)] = ""
	}
	wantProblems(t, tree(t, files), []string{"has 1001 files, at most 1000 are allowed (from F/conf.d)"})
}

// Load refuses files that other users may write: they name commands that the
// process runs.
func TestUntrustedFiles(t *testing.T) {
	both := map[string]string{"main.yaml": "target: {exports: [a=null:1M]}", "conf.d/b.yaml": "target: {exports: [b=null:1M]}"}
	for path, mode := range map[string]fs.FileMode{"main.yaml": 0o666, "conf.d": 0o777, "conf.d/b.yaml": 0o602} {
		main := tree(t, both)
		if err := os.Chmod(filepath.Join(filepath.Dir(main), path), mode); err != nil {
			t.Fatal(err)
		}
		wantProblems(t, main, []string{"every user may write to it: chmod o-w (from F/" + path + ")"})
	}
	if os.Geteuid() != 0 {
		return // only root makes files of other users
	}
	for _, c := range []struct {
		path        string
		uid, mainID int
		want        []string
	}{
		{"conf.d", 7, 0, []string{"belongs to uid 7, who is neither root nor the user of the process, nor has F/main.yaml (from F/conf.d)"}},
		{"conf.d/b.yaml", 7, 8, []string{"belongs to uid 7"}},
		{"conf.d/b.yaml", 7, 7, nil},
	} {
		main := tree(t, both)
		if err := errors.Join(os.Chown(filepath.Join(filepath.Dir(main), c.path), c.uid, 0), os.Chown(main, c.mainID, 0)); err != nil {
			t.Fatal(err)
		}
		if c.want != nil {
			wantProblems(t, main, c.want)
		} else if _, err := Load(main, nil, nil); err != nil {
			t.Error(err)
		}
	}
}

// A FIFO has no content: reading it would wait.
func TestFragmentThatIsFIFO(t *testing.T) {
	main := tree(t, map[string]string{"main.yaml": "", "conf.d/a.yaml": ""})
	if err := syscall.Mkfifo(filepath.Join(filepath.Dir(main), "conf.d", "b.yaml"), 0o600); err != nil {
		t.Fatal(err)
	}
	wantProblems(t, main, []string{"is not a regular file (from F/conf.d/b.yaml)"})
}
