package config

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"
)

// write puts a configuration file into a fresh directory.
func write(t *testing.T, name, content string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), name)
	if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// The same configuration in the three formats.
var formats = map[string]string{
	"viablk.yaml": `
target:
  listen: ["nbd://[::1]:10810/", "nbd+unix:///?socket=/tmp/s"]
  exports:
    - name: Disk0.img
      backend: memory:1GiB
      default: true
    - name: disk0.IMG
      backend: "file:/srv/a b"
      description: second
      read_only: true
    - "short=null:1TiB"
  depth: 32
  inline_max: 4k
  pool: 1073741824
drain_timeout: 1m
`,
	"viablk.toml": `
drain_timeout = "1m"
[target]
listen = ["nbd://[::1]:10810/", "nbd+unix:///?socket=/tmp/s"]
depth = 32
inline_max = "4k"
pool = 1073741824
exports = [
  {name = "Disk0.img", backend = "memory:1GiB", default = true},
  {name = "disk0.IMG", backend = "file:/srv/a b", description = "second", read_only = true},
  "short=null:1TiB",
]
`,
	"viablk.json": `{
"drain_timeout": "1m",
"target": {
  "listen": ["nbd://[::1]:10810/", "nbd+unix:///?socket=/tmp/s"],
  "depth": 32, "inline_max": "4k", "pool": 1073741824,
  "exports": [
    {"name": "Disk0.img", "backend": "memory:1GiB", "default": true},
    {"name": "disk0.IMG", "backend": "file:/srv/a b", "description": "second", "read_only": true},
    "short=null:1TiB"
  ]}}`,
}

func TestFormatsAgree(t *testing.T) {
	want := Default()
	want.Target.Listen = []string{"nbd://[::1]:10810/", "nbd+unix:///?socket=/tmp/s"}
	want.Target.Exports = []Export{
		{Name: "Disk0.img", Backend: "memory:1GiB", Default: true},
		{Name: "disk0.IMG", Backend: "file:/srv/a b", Description: "second", ReadOnly: true},
		{Name: "short", Backend: "null:1TiB"},
	}
	want.Target.Depth = 32
	want.Target.InlineMax = 4 * KiB
	want.Target.Pool = GiB
	want.DrainTimeout = time.Minute
	for name, content := range formats {
		t.Run(name, func(t *testing.T) {
			got, err := Load(write(t, name, content), nil, nil)
			if err != nil {
				t.Fatal(err)
			}
			if !reflect.DeepEqual(got.Config, want) {
				t.Errorf("got  %+v\nwant %+v", got.Config, want)
			}
		})
	}
}

func TestNothingSetIsDefault(t *testing.T) {
	got, err := Load("", nil, nil)
	if err != nil {
		t.Fatal(err)
	}
	if !reflect.DeepEqual(got.Config, Default()) {
		t.Errorf("got  %+v\nwant %+v", got.Config, Default())
	}
	for _, s := range got.Settings {
		if s.Origin != FromDefault || s.Source != "" {
			t.Errorf("%s comes from %s %q", s.Key, s.Origin, s.Source)
		}
	}
	if err := Default().Validate(nil); err != nil {
		t.Errorf("the default is not valid: %v", err)
	}
}

func TestPrecedence(t *testing.T) {
	path := write(t, "viablk.yaml", "target: {depth: 11, connections: 12, listen: ['nbd://file/']}\nnbd: {depth: 13}\n")
	t.Setenv("VIABLK_TARGET_DEPTH", "21")
	t.Setenv("VIABLK_TARGET_CONNECTIONS", "22")
	t.Setenv("VIABLK_TARGET_LISTEN", "nbd://one/, nbd://two/")
	t.Setenv("VIABLK_TARGET_EXPORTS", "a=memory:1M;\nb=file:x y\n")
	t.Setenv("VIABLK_ATTACH_READ_ONLY", "true")
	t.Setenv("VIABLK_DRAIN_TIMEOUT", "5s")
	t.Setenv("VIABLK_INSECURE", "true")
	t.Setenv("VIABLK_LOG_LEVEL", "") // empty counts as unset
	got, err := Load(path, Flags{"target.depth": {Name: "--depth", Value: "31"}}, nil)
	if err != nil {
		t.Fatal(err)
	}
	c := got.Config
	if c.Target.Depth != 31 || c.Target.Connections != 22 || c.NBD.Depth != 13 || c.Log.Level != "info" {
		t.Errorf("depth %d, connections %d, nbd depth %d, level %q", c.Target.Depth, c.Target.Connections, c.NBD.Depth, c.Log.Level)
	}
	if want := []string{"nbd://one/", "nbd://two/"}; !reflect.DeepEqual(c.Target.Listen, want) {
		t.Errorf("listen %q", c.Target.Listen)
	}
	if want := []Export{{Name: "a", Backend: "memory:1M"}, {Name: "b", Backend: "file:x y"}}; !reflect.DeepEqual(c.Target.Exports, want) {
		t.Errorf("exports %+v", c.Target.Exports)
	}
	if !c.Attach.ReadOnly || c.DrainTimeout != 5*time.Second {
		t.Errorf("read_only %v, drain_timeout %v", c.Attach.ReadOnly, c.DrainTimeout)
	}
	want := map[string][2]string{
		"target.depth":       {"flag", "--depth"},
		"target.connections": {"env", "VIABLK_TARGET_CONNECTIONS"},
		"nbd.depth":          {"file", path},
		"log.level":          {"default", ""},
		"drain_timeout":      {"env", "VIABLK_DRAIN_TIMEOUT"},
	}
	for _, s := range got.Settings {
		if w, ok := want[s.Key]; ok && (string(s.Origin) != w[0] || s.Source != w[1]) {
			t.Errorf("%s comes from %s %q, want %v", s.Key, s.Origin, s.Source, w)
		}
		delete(want, s.Key)
	}
	if len(want) != 0 {
		t.Errorf("no setting for %v", want)
	}
}

func TestFlagListReplacesFileList(t *testing.T) {
	path := write(t, "viablk.yaml", "target: {exports: [{name: a, backend: 'memory:1M'}]}")
	got, err := Load(path, Flags{"target.exports": {Name: "--export", Value: []string{"B.c=memory:2M"}}}, nil)
	if err != nil {
		t.Fatal(err)
	}
	if want := []Export{{Name: "B.c", Backend: "memory:2M"}}; !reflect.DeepEqual(got.Config.Target.Exports, want) {
		t.Errorf("exports %+v, want %+v", got.Config.Target.Exports, want)
	}
}

func TestEveryKeyHasAnEnvironmentVariable(t *testing.T) {
	for _, s := range settings(Default()) {
		t.Run(s.Key, func(t *testing.T) {
			t.Setenv(EnvironmentName(s.Key), "\x01 no such value")
			_, err := Load("", nil, nil)
			switch s.Key {
			case "admin", "nbd.tls_certificates", "target.certificates", "attach.certificates", "attach.target_name", "attach.description", "target.state_folder",
				"metrics.certificates", "metrics.exports": // any text will do
				if err != nil {
					t.Fatal(err)
				}
				return
			}
			var bad *Error
			if !errors.As(err, &bad) || bad.Problems[0].Source != EnvironmentName(s.Key) {
				t.Errorf("got %v, want a complaint about %s", err, EnvironmentName(s.Key))
			}
		})
	}
}

// A variable that had an effect once is refused, not ignored.
func TestRenamedVariable(t *testing.T) {
	t.Setenv("VIABLK_NBD_SPIN", "0")
	_, err := Load("", nil, nil)
	want := "nbd.spin: unknown key; did you mean VIABLK_NBD_BUSY_POLL? (from VIABLK_NBD_SPIN)"
	if err == nil || err.Error() != want {
		t.Errorf("got %v, want %s", err, want)
	}
}

func TestComplaints(t *testing.T) {
	for _, c := range []struct {
		name, file string
		want       []string // one per complaint: a part of its line
	}{
		{"unknown key in a section", "target: {dept: 3}", []string{"target.dept: unknown key; known here are listen, exports"}},
		{"unknown section", "targte: {depth: 3}", []string{"targte: unknown key; known here are target, attach"}},
		{
			"unknown key in an export", "target: {exports: [{name: a, backend: 'memory:1M'}, {name: b, path: /x, backend: c}]}",
			[]string{"target.exports[1].path: unknown key; known here are name, backend"},
		},
		{"key of another name", "target: {spin: 1ms}", []string{"target.spin: unknown key; did you mean target.busy_poll?"}},
		{"section is a list", "target: [1]", []string{"target: is a section"}},
		{"exports is a mapping", "target: {exports: {a: b}}", []string{"target.exports: is a list"}},
		{"export is a number", "target: {exports: [3]}", []string{"target.exports[0]: is a mapping"}},
		{"export is no pair", "target: {exports: [disk]}", []string{`target.exports[0]: "disk" is not NAME=BACKEND`}},
		{"fraction", "target: {depth: 1.5}", []string{"target.depth: 1.5 is not a whole number"}},
		{"bool for number", "target: {depth: true}", []string{"target.depth: true is not a whole number"}},
		{"number for bool", "attach: {read_only: 7}", []string{"attach.read_only: 7 is not true or false"}},
		{"number for text", "log: {level: 7}", []string{"log.level: 7 is not text"}},
		{"duration without unit", "drain_timeout: 30", []string{"drain_timeout: 30 has no unit"}},
		{"malformed size", "target: {max_io: 5kB}", []string{`target.max_io: size "5kB": KB means 1000`}},
		{
			"two exports of one name", "target: {exports: [a=memory:1M, a=memory:2M]}",
			[]string{`target.exports[1]: the name "a" is already that of target.exports[0]`},
		},
		{
			"two defaults", "target: {exports: [{name: a, backend: x, default: true}, {name: b, backend: x, default: true}]}",
			[]string{"target.exports[1]: only one export can be the default"},
		},
		{
			"default beside the empty name", "target: {exports: [{name: '', backend: x}, {name: b, backend: x, default: true}]}",
			[]string{"target.exports[1]: cannot be the default"},
		},
		{"no backend", "target: {exports: [{name: a}]}", []string{`target.exports[0]: export "a" has no backend`}},
		{
			"all at once", "target: {depth: 0, connections: -1, max_io: 1, listen: [nbd://h/x, ftp://h/]}\nlog: {level: loud, format: xml}\n",
			[]string{
				`target.listen[0]: a URI to listen on names no export, and this one names "x"`,
				`target.listen[1]: "ftp://h/": unknown scheme "ftp"`,
				"target.connections: -1 is not in 1…4096", "target.depth: 0 is not in 1…1024",
				"target.max_io: 1 is not in 64KiB…64MiB", `log.level: must be debug, info, warn or error, not "loud"`, `log.format: must be text or json, not "xml"`,
			},
		},
		{"TLS", "attach: {uri: 'nbds://h/', nbd: 'via+shm:///?socket=s'}", []string{
			"attach.uri: nbds needs to know whom to trust", "attach.nbd: via+shm is not an NBD scheme",
		}},
		{"port 0 of a remote", "attach: {uri: 'nbd://h:0/', nbd: 'nbd://localhost:0/'}", []string{"attach.uri: port 0 is only good to listen on"}},
		{"timeouts", "drain_timeout: -1s\nnbd: {handshake_timeout: 0s}", []string{
			"nbd.handshake_timeout: 0s is not in", "drain_timeout: -1s is not in",
		}},
		{"broken YAML", "target: [", []string{"did not find expected node content"}},
		{"key twice", "log: {level: info}\nlog: {level: warn}", []string{"already defined"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			path := write(t, "viablk.yaml", c.file)
			_, err := Load(path, nil, nil)
			var bad *Error
			if !errors.As(err, &bad) {
				t.Fatalf("got %v, want an *Error", err)
			}
			if len(bad.Problems) != len(c.want) {
				t.Fatalf("got %d complaints, want %d: %v", len(bad.Problems), len(c.want), bad.Problems)
			}
			for i, p := range bad.Problems {
				line := p.String()
				if !strings.Contains(line, c.want[i]) || !strings.HasSuffix(line, "(from "+path+")") || strings.Contains(line, "\n") {
					t.Errorf("got  %s\nwant %s … (from %s)", line, c.want[i], path)
				}
			}
			if bad.FlagsOnly() {
				t.Error("counts as a matter of flags")
			}
		})
	}
}

func TestComplaintAboutFlag(t *testing.T) {
	_, err := Load("", Flags{
		"target.depth":   {Name: "--depth", Value: "0"},
		"target.exports": {Name: "--export", Value: []string{"a=x", "a=y"}},
	}, nil)
	var bad *Error
	if !errors.As(err, &bad) || !bad.FlagsOnly() {
		t.Fatalf("got %v, want complaints about flags only", err)
	}
	if want := `target.exports[1]: the name "a" is already that of target.exports[0] (from --export) (and 1 more)`; err.Error() != want {
		t.Errorf("got  %s\nwant %s", err, want)
	}
}

func TestUnreadableFile(t *testing.T) {
	if _, err := Load("/nonexistent/viablk.yaml", nil, nil); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("got %v, want %v", err, fs.ErrNotExist)
	}
	if _, err := Load(t.TempDir()+"/x/..", nil, nil); err == nil {
		t.Error("a directory is read as a file")
	}
	var bad *Error
	if _, err := Load(write(t, "viablk.ini", "x"), nil, nil); !errors.As(err, &bad) {
		t.Errorf("got %v, want an *Error about the extension", err)
	}
	directory := filepath.Join(t.TempDir(), "d.yaml")
	if err := os.Mkdir(directory, 0o700); err != nil {
		t.Fatal(err)
	}
	var system *fs.PathError
	if _, err := Load(directory, nil, nil); !errors.As(err, &system) {
		t.Errorf("got %v, want a path error", err)
	}
}

func TestEmptySectionKeepsDefaults(t *testing.T) {
	got, err := Load(write(t, "viablk.yaml", "target:\nattach: {}\n"), nil, nil)
	if err != nil {
		t.Fatal(err)
	}
	if !reflect.DeepEqual(got.Config, Default()) {
		t.Errorf("got  %+v\nwant %+v", got.Config, Default())
	}
}
