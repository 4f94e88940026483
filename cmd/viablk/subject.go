package main

import (
	"io/fs"
	"os"
	"regexp"
	"slices"
	"strings"

	"github.com/viablk/viablk/config"
)

// subjectError is an error about a URI whose text names it once. The packages
// below are libraries: each names the address that it was given.
type subjectError struct {
	text string
	err  error
}

func (e *subjectError) Error() string { return e.text }

func (e *subjectError) Unwrap() error { return e.err }

// about returns an error whose text is what was done to a URI, and why that
// failed. doing may be empty.
func about(doing string, u config.URI, err error) error {
	if doing != "" {
		doing += " "
	}
	hint := notSocket(u)
	return &subjectError{doing + u.String() + ": " + strings.TrimSuffix(cause(err.Error(), u), hint) + hint, err}
}

// notSocket says so of a file that stands where u has a socket: connecting to
// it is refused, as if a process had ended.
func notSocket(u config.URI) string {
	if u.Socket == "" {
		return ""
	}
	if file, err := os.Stat(u.Socket); err != nil || file.Mode()&fs.ModeSocket != 0 {
		return ""
	}
	return ": " + u.Socket + " is no socket"
}

// operation matches the part of an error that says no more than what was done
// to an address.
var operation = regexp.MustCompile(`^(attach|bind|connect|connect to|dial|dial \w+|list exports of|listen|listen \w+|listen (at|on)( socket)?|lookup|open|port|resolve)$`)

// classes are parts of an error that programs look at. They say less than what
// stands beside them.
var classes = []string{"address not reachable", "invalid parameter"}

// cause cuts from an error's text what only repeats the address of u.
func cause(text string, u config.URI) string {
	var parts []string
	for part := range strings.SplitSeq(text, ": ") {
		if before, named := cutAddress(part, u); named {
			part = strings.TrimSuffix(strings.TrimSuffix(before, " at socket"), " at")
		}
		if part != "" && !operation.MatchString(part) && !slices.Contains(parts, part) {
			parts = append(parts, part)
		}
	}
	telling := slices.DeleteFunc(slices.Clone(parts), func(s string) bool { return slices.Contains(classes, s) })
	switch {
	case len(telling) > 0:
		return strings.Join(telling, ": ")
	case len(parts) > 0:
		return strings.Join(parts, ": ")
	}
	return text
}

// cutAddress returns what stands in a part of an error before the address of u,
// if that is in it.
func cutAddress(part string, u config.URI) (before string, named bool) {
	_, address := u.Network()
	for _, name := range []string{u.String(), address, u.Host} {
		if name == "" {
			continue
		}
		for _, word := range []string{name, `"` + name + `"`} {
			if part == word {
				return "", true
			}
			i := strings.Index(part, " "+word)
			if i < 0 {
				continue
			}
			if rest := part[i+1+len(word):]; rest == "" || rest[0] == ' ' || rest[0] == '#' {
				return part[:i], true
			}
		}
	}
	return part, false
}
