package integration

import (
	"os"
	"testing"
	"time"
)

// patience bounds how long a test waits for something that will happen.
const patience = 30 * time.Second

// waitForSocket waits until a socket exists: its listener is bound then.
func waitForSocket(t testing.TB, path string) {
	t.Helper()
	eventually(t, "a socket at "+path, func() (any, bool) {
		st, err := os.Stat(path)
		return err, err == nil && st.Mode()&os.ModeSocket != 0
	})
}

// eventually asks until the answer is yes, and fails with the last value seen if
// it never is.
func eventually(t testing.TB, what string, ask func() (seen any, done bool)) {
	t.Helper()
	for deadline := time.Now().Add(patience); ; time.Sleep(2 * time.Millisecond) {
		seen, done := ask()
		if done {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("%s: not within %v; at last %v", what, patience, seen)
		}
	}
}
