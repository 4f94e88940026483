package main

import (
	"slices"
	"strings"
	"testing"
)

// TestSuccessorCommand: a program is started anew with its arguments, and
// without what is of this process alone.
func TestSuccessorCommand(t *testing.T) {
	for _, c := range []struct{ before, after []string }{
		{[]string{"target", "--config", "f"}, []string{"target", "--config", "f", "--takeover=/s"}},
		{[]string{"target", "--takeover", "/old", "--config", "f"}, []string{"target", "--config", "f", "--takeover=/s"}},
		{[]string{"target", "--takeover=/old"}, []string{"target", "--takeover=/s"}},
	} {
		if got := successorArguments(c.before, "/s"); !slices.Equal(got, c.after) {
			t.Errorf("%q becomes %q", c.before, got)
		}
	}
	for _, v := range []string{"WATCHDOG_PID", "LISTEN_PID", "LISTEN_FDS", "LISTEN_FDNAMES", "WATCHDOG_USEC", "NOTIFY_SOCKET"} {
		t.Setenv(v, "1")
	}
	c, err := (&app{args: []string{"target"}}).successorCommand("/s")
	if err != nil {
		t.Fatal(err)
	}
	var left []string
	for _, v := range c.Env {
		if name, _, _ := strings.Cut(v, "="); strings.HasPrefix(name, "WATCHDOG_") || strings.HasPrefix(name, "LISTEN_") || name == "NOTIFY_SOCKET" {
			left = append(left, name)
		}
	}
	if slices.Sort(left); !slices.Equal(left, []string{"NOTIFY_SOCKET", "WATCHDOG_USEC"}) {
		t.Errorf("the new process gets %q", left)
	}
}
