package integration

import (
	"regexp"
	"strings"
	"testing"
)

// refused runs a viablk command that must end by itself with an exit code and
// one line that says why.
func refused(t testing.TB, code int, line string, args ...string) {
	t.Helper()
	refusedAs(t, nil, code, line, args...)
}

// refusedAs is refused behind a command that changes what the process is.
func refusedAs(t testing.TB, prefix []string, code int, line string, args ...string) {
	t.Helper()
	command := append(append(append([]string{}, prefix...), binary(t)), args...)
	if len(prefix) > 0 {
		requires(t, prefix[0])
		command[0] = locate(prefix[0])
	}
	c := startPath(t, environment(t), command[0], command[1:]...)
	got := c.wait(t, endLimit)
	lines := strings.Split(strings.TrimSuffix(c.stderr.String(), "\n"), "\n")
	last := lines[len(lines)-1]
	for _, l := range lines[:len(lines)-1] {
		if !strings.HasPrefix(l, "time=") { // what it did before it knew
			t.Errorf("%s: more than one line on standard error: %q", c, c.stderr.String())
			break
		}
	}
	if got != code || !regexp.MustCompile(`^viablk: .*`+line).MatchString(last) {
		t.Errorf("%s: exit code %d and %q, not %d and %q", c, got, last, code, line)
	}
}
