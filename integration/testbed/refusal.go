package testbed

import (
	"regexp"
	"strings"
	"testing"
)

// Refused runs a viablk command that must end, without a signal, with an exit
// code and one line that says why.
func Refused(t testing.TB, code int, line string, args ...string) {
	t.Helper()
	RefusedAs(t, nil, code, line, args...)
}

// RefusedAs is Refused behind a command that changes what the process is.
func RefusedAs(t testing.TB, prefix []string, code int, line string, args ...string) {
	t.Helper()
	command := append(append(append([]string{}, prefix...), Program(t)), args...)
	if len(prefix) > 0 {
		Requires(t, prefix[0])
		command[0] = Locate(prefix[0])
		command[len(prefix)] = ProgramForAll(t)
	}
	refused(t, code, line, command)
}

// RefusedBy is Refused for one of the binaries.
func RefusedBy(t testing.TB, binary string, code int, line string, args ...string) {
	t.Helper()
	refused(t, code, line, append([]string{binary}, args...))
}

func refused(t testing.TB, code int, line string, command []string) {
	t.Helper()
	c := StartPath(t, Environment(t), command[0], command[1:]...)
	got := c.Wait(t, EndLimit)
	lines := strings.Split(strings.TrimSuffix(c.Stderr.String(), "\n"), "\n")
	last := lines[len(lines)-1]
	for _, l := range lines[:len(lines)-1] {
		if !strings.HasPrefix(l, "time=") { // what it did before it knew
			t.Errorf("%s: more than one line on standard error: %q", c, c.Stderr.String())
			break
		}
	}
	if got != code || !regexp.MustCompile(`^viablk: .*`+line).MatchString(last) {
		t.Errorf("%s: exit code %d and %q, not %d and %q", c, got, last, code, line)
	}
}
