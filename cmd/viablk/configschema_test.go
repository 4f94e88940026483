package main

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/viablk/viablk/config"
)

// schemaCheck is a program that reports which of the files it gets do not match
// the schema that it gets first.
const schemaCheck = `
import json, sys, yaml
from jsonschema import Draft202012Validator
schema = json.load(open(sys.argv[1]))
Draft202012Validator.check_schema(schema)
for name in sys.argv[2:]:
    if not Draft202012Validator(schema).is_valid(yaml.safe_load(open(name))):
        print(name)
`

// TestConfigSchema: the schema accepts the files that a process accepts, and
// refuses files with mistakes of which it knows, which a process refuses too.
func TestConfigSchema(t *testing.T) {
	good := []string{
		configExample,
		"drain_timeout: 1m30s\ntarget: {pool: 16777216, max_io: 1MiB, exports: [{backend: 'null:1G', multi_conn: true, clients: []}]}",
		"log: {level: debug}\nmetrics: {exports: [a, b], ready_away: 0s}\nnbd: {tls: 'off', busy_poll: 1.5ms}",
	}
	example, err := os.ReadFile("../../contrib/target.yaml")
	if err != nil {
		t.Fatal(err)
	}
	good = append(good, string(example))
	bad := []string{
		"target: {exportz: []}",
		"targets: {depth: 1}",
		"target: {depth: deep}",
		"target: {exports: [{name: a, backend: 'null:1G', limits: {iops: many}}]}",
		"target: {exports: [{name: a}]}",
		"target: {exports: [a]}",
		"log: {level: loud}",
		"drain_timeout: 30",
		"drain_timeout: soon",
		"insecure: perhaps",
		"nbd: [1]",
	}
	folder := t.TempDir()
	arguments := []string{"-c", schemaCheck, filepath.Join(folder, "schema.json")}
	want := make(map[string]bool)
	write := func(name, text string) string {
		path := filepath.Join(folder, name)
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	for i, text := range append(good, bad...) {
		path := write(string(rune('a'+i))+".yaml", text)
		arguments = append(arguments, path)
		want[path] = i >= len(good)
		if _, err := config.Load(path, nil, checkBackend); (err != nil) != want[path] {
			t.Errorf("loaded %q: %v", text, err)
		}
	}
	var schema bytes.Buffer
	if code := run([]string{"config", "schema"}, nil, &schema, &schema); code != exitOK {
		t.Fatal(schema.String())
	}
	write("schema.json", schema.String())
	output, err := exec.CommandContext(t.Context(), "python3", arguments...).CombinedOutput()
	if err != nil {
		t.Fatalf("%v: %s", err, output)
	}
	refused := strings.Fields(string(output))
	for path, wrong := range want {
		if got := strings.Contains(" "+strings.Join(refused, " ")+" ", " "+path+" "); got != wrong {
			text, _ := os.ReadFile(path)
			t.Errorf("refused is %v: %s", got, text)
		}
	}
}
