package integration

import (
	"os"
	"testing"
	"time"
)

// waitForSocket waits until a socket exists: its listener is bound then.
func waitForSocket(t testing.TB, path string) {
	t.Helper()
	for deadline := time.Now().Add(30 * time.Second); time.Now().Before(deadline); time.Sleep(time.Millisecond) {
		if st, err := os.Stat(path); err == nil && st.Mode()&os.ModeSocket != 0 {
			return
		}
	}
	t.Fatalf("no socket at %s", path)
}
