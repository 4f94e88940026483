package seal_test

import (
	"os"
	"os/exec"
	"testing"

	"github.com/viablk/viablk/internal/seal"
)

// In the mode that forbids counted nonces, a session is refused with what to
// do, and nothing panics.
func TestForbiddingMode(t *testing.T) {
	if os.Getenv("VIABLK_SEAL_MODE") != "" {
		_, err := seal.NewSession(pattern(seal.ExportSize, 1), nonce(2), nonce(3), [seal.NameSize]byte{}, seal.Limits{})
		if err == nil {
			os.Exit(0)
		}
		os.Stdout.WriteString(err.Error())
		os.Exit(42)
	}
	c := exec.Command(os.Args[0], "-test.run=^TestForbiddingMode$")
	c.Env = append(os.Environ(), "VIABLK_SEAL_MODE=1", "GODEBUG=fips140=only")
	out, err := c.CombinedOutput()
	if c.ProcessState == nil || c.ProcessState.ExitCode() != 42 {
		t.Fatalf("%v: %s", err, out)
	}
	if want := seal.ErrMode.Error(); len(out) < len(want) || string(out[:len(want)]) != want {
		t.Errorf("%s", out)
	}
}
