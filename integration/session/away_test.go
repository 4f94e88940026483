package session

import (
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/viablk/viablk/initiator"
	"github.com/viablk/viablk/integration/testbed"
)

// TestNewClientsAreToldWhy: a client that asks for a disk while its target is
// away, before and after the loss is noticed, or when it is lost for good, is
// told which it is. No client is told that there is no such export.
func TestNewClientsAreToldWhy(t *testing.T) {
	for provider, listen := range map[string]string{
		"shm":  "via+shm:///?socket=" + filepath.Join(testbed.Folder(t), "v"),
		"roce": "via+roce://127.77.61.1/",
	} {
		t.Run(provider, func(t *testing.T) {
			t.Parallel()
			d := testbed.MemoryDisk("16MiB")(t)
			p := testbed.StartTarget(t, testbed.Program(t), listen, d)
			a := testbed.AttachURIAt(t, testbed.StartCommand, testbed.Program(t), p.URI(d.Name, "via+"+provider), d.Name, "--reconnect-delay", "100ms")
			uri := a.URI(d.Name, "nbd+unix")
			p.Crash()
			refused(t, uri, `the target \S+ (does not answer|has been away for [0-9.]+m?s): try again`)
			inState(t, a, initiator.StateWaiting)
			refused(t, uri, `the target \S+ has been away for [0-9.]+m?s: try again`)
			testbed.StartTarget(t, testbed.Program(t), listen, d)
			inState(t, a, initiator.StateFailed)
			refused(t, uri, `the target is back, but serves another disk`)
		})
	}
}

// refused checks what QEMU and libnbd say of a disk that they do not get.
func refused(t *testing.T, uri, want string) {
	t.Helper()
	qemu, libnbd := testbed.StartTool(t, "qemu-img", "info", uri), testbed.StartTool(t, "nbdinfo", uri)
	for _, c := range []*testbed.Tool{qemu, libnbd} {
		if code := c.Wait(t, testbed.ToolLimit); code == 0 {
			t.Errorf("%s got a disk that is away\n%s", c, c.Output())
		}
		text := c.Output()
		if lower := strings.ToLower(text); strings.Contains(lower, "no export") || strings.Contains(lower, "no such") || strings.Contains(lower, "unexpected") {
			t.Errorf("%s says: %s", c, text)
		}
		if c == qemu && !regexp.MustCompile(want).MatchString(text) { // libnbd keeps the text to itself
			t.Errorf("%s says: %s\nand not %q", c, text, want)
		}
	}
}
