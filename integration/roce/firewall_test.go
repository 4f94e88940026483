package roce

import (
	"path/filepath"
	"testing"

	"github.com/viablk/viablk/integration/netbed"
	"github.com/viablk/viablk/integration/testbed"
)

// TestFirewallIsGuessed: a client whose datagrams a firewall drops is told in
// one line to look at the port, and may try again.
func TestFirewallIsGuessed(t *testing.T) {
	b := netbed.New(t, netbed.Options{})
	p := testbed.StartBinaryAt(t, b.B.StartGroup, testbed.Program(t), "target", "--insecure", "--admin", filepath.Join(testbed.Folder(t), "target"),
		"--listen", testbed.RoCEURI(b.B.IPv4), "--export", "disk=memory:1MiB")
	list := func() *testbed.Tool {
		return testbed.StartPathAt(t, b.A.StartGroup, nil, testbed.Program(t), "list", testbed.RoCEURI(b.B.IPv4))
	}
	testbed.Succeed(t, list())
	lost := b.A.Lose(netbed.Datagrams, netbed.Always)
	refused := list()
	code := refused.Wait(t, testbed.ToolLimit)
	if want := "viablk: " + testbed.RoCEURI(b.B.IPv4) + ": no answer: is its UDP port open between the hosts?\n"; code != 75 || refused.Stderr.String() != want {
		t.Errorf("%s: exit code %d, %q, want %q", refused, code, refused.Stderr.String(), want)
	}
	lost.Stop()
	testbed.Succeed(t, list())
	p.Stop()
}
