package backend

import (
	"errors"
	"os"
	"strings"
	"testing"
)

// examples are specifications by kind, up to the options.
var examples = map[string]string{
	"memory": "memory:1M", "file": "file:/x", "mmap": "mmap:/x", "cow": "cow:/x,/y", "crc": "crc:memory:1M,/y", "null": "null:1M", "rbd": "rbd:p/i",
}

// Every kind of disk has exactly the options that are listed, and the manual
// has a row for each kind with them.
func TestKinds(t *testing.T) {
	manual, err := os.ReadFile("../../docs/disks.md")
	if err != nil {
		t.Fatal(err)
	}
	rows := make(map[string]string)
	for line := range strings.Lines(string(manual)) {
		if scheme, _, ok := strings.Cut(strings.TrimPrefix(line, "| `"), ":"); ok && strings.HasPrefix(line, "| `") && rows[scheme] == "" {
			rows[scheme] = line
		}
	}
	for _, k := range Kinds() {
		if rows[k.Scheme] == "" {
			t.Errorf("docs/disks.md has no row of %s:", k.Scheme)
		}
		if !strings.Contains(schemeList(), k.Scheme+":") {
			t.Errorf("%q does not name %s:", schemeList(), k.Scheme)
		}
		for _, option := range k.Options {
			first, _, _ := strings.Cut(option, "|")
			if !strings.Contains(rows[k.Scheme], "`"+first+"`") {
				t.Errorf("docs/disks.md does not say that %s: has %s: %s", k.Scheme, first, rows[k.Scheme])
			}
			key, values, _ := strings.Cut(option, "=")
			for value := range strings.SplitSeq(values, "|") {
				value = strings.NewReplacer("SIZE", "1M", "PATH", "/c").Replace(value)
				if _, err := Parse(examples[k.Scheme]+"?"+key+"="+value, nil); errors.Is(err, ErrUsage) && k.Scheme != "rbd" {
					t.Errorf("%s?%s=%s: %v", examples[k.Scheme], key, value, err)
				}
			}
		}
		if len(k.Options) == 0 {
			continue
		}
		_, err := Parse(examples[k.Scheme]+"?other=1", nil)
		if want := `has no option "other": there are ` + strings.Join(optionsOf(k.Scheme), ", "); !errors.Is(err, ErrUsage) || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", k.Scheme, err, want)
		}
	}
}
