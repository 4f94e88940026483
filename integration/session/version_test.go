package session

import (
	"path/filepath"
	"testing"

	"github.com/viablk/viablk/integration/testbed"
)

// differentVersion is the exit code of a command whose target speaks another
// version of the protocol.
const differentVersion = 76

// TestTwoVersionsMeet has an older build of an initiator meet a target, and a
// newer one: who reads the refusal knows which of both to upgrade.
func TestTwoVersionsMeet(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name, target, initiator, line string
	}{
		{
			"an older initiator", testbed.Program(t), testbed.OlderProgram(t),
			`this target speaks version [2-9] of the protocol and the initiator 1 to 1: upgrade the older one`,
		},
		{
			"an older target", testbed.OlderProgram(t), testbed.Program(t),
			`this target speaks version 1 of the protocol and the initiator [2-9] to [2-9]: upgrade the older one`,
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			p := testbed.StartBinary(t, c.target, "target", "--admin", filepath.Join(testbed.Folder(t), "a"), "--export", "disk=memory:1MiB",
				"--listen", "via+shm:///?socket="+filepath.Join(testbed.Folder(t), "v"), "--listen", "via+roce://127.78.7.1/")
			for _, provider := range []string{"via+shm", "via+roce"} {
				uri := p.URI("disk", provider)
				for _, command := range [][]string{
					{"attach", uri, "--admin", "none", "--nbd", "nbd+unix:///x?socket=" + filepath.Join(testbed.Folder(t), "n")},
					{"info", uri},
					{"list", uri},
				} {
					testbed.RefusedBy(t, c.initiator, differentVersion, c.line, command...)
				}
			}
		})
	}
}
