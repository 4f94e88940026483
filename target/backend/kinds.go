package backend

import (
	"slices"
	"strings"
)

// Kind is a kind of disk.
type Kind struct {
	Scheme  string   // that a specification begins with, without the colon
	Options []string // that may follow it behind a question mark: KEY=VALUE
}

// Kinds returns all kinds. A VALUE in upper case stands for what people choose,
// and others are divided by bars.
func Kinds() []Kind { return slices.Clone(kinds) }

var kinds = []Kind{
	{"memory", []string{"readonly=1"}},
	{"file", []string{"create=SIZE", "readonly=1", "direct=1", "lock=0", "identity=0", "io=" + ioAuto + "|" + ioUring + "|" + ioThreads}},
	{"mmap", []string{"create=SIZE", "readonly=1", "lock=0", "identity=0"}},
	{"cow", []string{"create=1", "readonly=1", "lock=0", "identity=0", "io=" + ioAuto + "|" + ioUring + "|" + ioThreads}},
	{"crc", []string{"lock=0"}},
	{"null", []string{"readonly=1"}},
	{"nbd", nil}, // Options.NBD knows their parameters
	{"run", nil},
	{"rbd", []string{"readonly=1", "user=NAME", "conf=PATH", "namespace=NAME", "steal=1"}},
	{"delay", nil}, // behind them is another kind
	{"fault", nil},
	{"volatile", nil},
}

// optionsOf returns the keys of the options of a kind.
func optionsOf(scheme string) (keys []string) {
	i := slices.IndexFunc(kinds, func(k Kind) bool { return k.Scheme == scheme })
	for _, option := range kinds[i].Options {
		key, _, _ := strings.Cut(option, "=")
		keys = append(keys, key)
	}
	return keys
}

// schemeList lists the kinds for the message about an unknown one.
func schemeList() string {
	var b strings.Builder
	for i, k := range kinds {
		switch {
		case i == len(kinds)-1:
			b.WriteString(" and ")
		case i > 0:
			b.WriteString(", ")
		}
		b.WriteString(k.Scheme + ":")
	}
	return b.String()
}
