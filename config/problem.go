package config

import (
	"fmt"
	"strings"
)

// Origin says where a value came from.
type Origin string

// The origins, strongest first.
const (
	FromFlag        Origin = "flag"
	FromEnvironment Origin = "env"
	FromFile        Origin = "file"
	FromDefault     Origin = "default"

	// FromAdmin is a value that an administrator set while the process ran.
	FromAdmin Origin = "admin"
)

// Problem is one complaint about a configuration.
type Problem struct {
	// the path of the value, such as target.exports[0].name; empty for the file
	// as a whole
	Key     string `json:"key"`
	Origin  Origin `json:"origin"`  // where the value came from
	Source  string `json:"source"`  // the flag, variable or file itself; empty for a default
	Message string `json:"message"` // what is wrong and what would be right

	beside  string // path of another value that it is about; "" for none
	unknown bool   // there is no such key, and no value that could not be read

	// each value is right, and together they give disks away
	Unsafe bool `json:"unsafe,omitempty"`
}

// String returns the complaint as one line.
func (p Problem) String() string {
	s := p.Message
	if p.Key != "" {
		s = p.Key + ": " + s
	}
	if p.Source != "" {
		s += " (from " + p.Source + ")"
	}
	return s
}

// Error is every complaint about a configuration. It is what [Load] and
// [Config.Validate] return.
type Error struct {
	Problems []Problem // never empty
}

// Error returns the first complaint and how many there are beside it.
func (e *Error) Error() string {
	s := e.Problems[0].String()
	if n := len(e.Problems) - 1; n > 0 {
		s += fmt.Sprintf(" (and %d more)", n)
	}
	return s
}

// FlagsOnly reports whether every complaint is about a flag, which makes it a
// matter of usage rather than of configuration. One about what is unsafe is
// not.
func (e *Error) FlagsOnly() bool {
	for _, p := range e.Problems {
		if p.Origin != FromFlag || p.Unsafe {
			return false
		}
	}
	return true
}

// complaints collects problems.
type complaints []Problem

// addUnknown appends a complaint about a key that there is not.
func (c *complaints) addUnknown(key, format string, arguments ...any) {
	*c = append(*c, Problem{Key: key, Message: fmt.Sprintf(format, arguments...), unknown: true})
}

// add appends a complaint about a key.
func (c *complaints) add(key, format string, arguments ...any) {
	*c = append(*c, Problem{Key: key, Message: fmt.Sprintf(format, arguments...)})
}

// addBeside appends a complaint about a key and what is at the path of another
// one, which ends the message.
func (c *complaints) addBeside(key, other, format string, arguments ...any) {
	*c = append(*c, Problem{Key: key, Message: fmt.Sprintf(format, arguments...) + " " + other, beside: other})
}

// unsafe appends a complaint about values that give disks away.
func (c *complaints) unsafe(key, format string, arguments ...any) {
	*c = append(*c, Problem{Key: key, Message: fmt.Sprintf(format, arguments...), Unsafe: true})
}

// err returns the problems as an error, or nil.
func (c complaints) err() error {
	if len(c) == 0 {
		return nil
	}
	return &Error{Problems: c}
}

// topKey cuts a path to the key that has a value of its own: the list for an
// element of a list.
func topKey(path string) string {
	key, _, _ := strings.Cut(path, "[")
	return key
}
