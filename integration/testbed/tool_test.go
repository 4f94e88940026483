package testbed

import (
	"testing"
)

// The check of logs finds forbidden text wherever it may stand, and nothing
// else.
func TestLogCheckFindsDisasters(t *testing.T) {
	for text, want := range map[string]bool{
		"level=INFO msg=ready\n==================\nWARNING: DATA RACE\nRead at": true,
		"panic: runtime error: index out of range":                              true,
		"level=INFO msg=draining\nfatal error: all goroutines are asleep":       true,
		"SIGQUIT: quit\n\ngoroutine 1 [select]:\n":                              true,
		"unexpected fault address 0x0":                                          true,
		"level=WARN msg=\"client left\" error=\"no panic: it does that\"":       false,
	} {
		if got := IsDisaster(text); got != want {
			t.Errorf("%q: %v", text, got)
		}
	}
}
