package main

import (
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/viablk/viablk/config"
)

// TestDefaultKeepalive: a target has keepalives of 250 ms unless it is told
// otherwise, and the documentation promises what follows from that.
func TestDefaultKeepalive(t *testing.T) {
	const want = 250 * time.Millisecond
	c := config.Default().Target
	if c.KeepAlive != want {
		t.Errorf("the configuration has %v", c.KeepAlive)
	}
	if got := targetConfig(c, nil, nil).KeepAlive; got != want {
		t.Errorf("a target gets %v", got)
	}
	interval := fmt.Sprintf("%d ms", want.Milliseconds())
	for name, sentence := range map[string]string{
		"docs/protocol.md": "`--keepalive`, " + interval + " by default",
		"docs/paths.md":    fmt.Sprintf("by silence, within %d s with the default `--keepalive`", (4*want)/time.Second),
		"CHANGELOG.md":     "keepalives of " + interval,
	} {
		text, err := os.ReadFile("../../" + name)
		if err != nil {
			t.Fatal(err)
		}
		if !strings.Contains(strings.Join(strings.Fields(string(text)), " "), sentence) {
			t.Errorf("%s does not say %q", name, sentence)
		}
	}
}
