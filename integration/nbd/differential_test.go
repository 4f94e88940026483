package nbd

import (
	"net"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/viablk/viablk/integration/testbed"
	"github.com/viablk/viablk/internal/nbd/nbdtest"
)

// FuzzAgainstNbdkit has the same conversation with our server and with nbdkit's
// memory plugin, both of which keep what earlier conversations have written,
// and wants the same class of answer to everything.
func FuzzAgainstNbdkit(f *testing.F) {
	testbed.Requires(f, "nbdkit")
	p := testbed.StartTarget(f, testbed.PlainProgram(f), "nbd+unix:///?socket="+filepath.Join(testbed.Folder(f), "n"), testbed.Disk{Name: "disk", Spec: "memory:1MiB"})
	ours := &nbdtest.Server{Name: "viablk", Dial: dialer(f, p.URI("disk", "nbd+unix")), Export: "disk"}
	socket := filepath.Join(testbed.Folder(f), "k")
	testbed.StartTool(f, "nbdkit", "-f", "-U", socket, "memory", "1M")
	testbed.WaitForSocket(f, socket)
	theirs := &nbdtest.Server{Name: "nbdkit", Dial: func() (net.Conn, error) { return net.Dial("unix", socket) }, Export: "disk"}
	for _, script := range scriptSeeds {
		f.Add([]byte(script))
	}
	f.Fuzz(func(t *testing.T, script []byte) {
		a, b := ours.RunScript(script), theirs.RunScript(script)
		for i := range max(len(a), len(b)) {
			if i >= len(a) || i >= len(b) || !sameClass(a[i], b[i]) {
				t.Fatalf("ours:\n%s\nnbdkit:\n%s", strings.Join(a[:min(i+1, len(a))], "\n"), strings.Join(b[:min(i+1, len(b))], "\n"))
			}
		}
	})
}

// scriptSeeds are seeds: how many options, the options, how many requests,
// the requests.
var scriptSeeds = []string{
	"",
	"\x00\x04\x00\x00\x00\x00\x01\x00\x00\x02\x07\x00\x00\x00\x00\x02\x00\x00\x00",
	"\x03\x02\x00\x04\x00\x00\x00\x06\x06\x00\x00\x03\x00\x04\x04\x02\x05\x00\x01\x02\x00\x06\x02\x01\x05",
	"\x07\x00\x01\x01\x00\x01\x02\x01\x03\x02\x01\x05\x03\x06\x00\x06\x01",
	"\x01\x02\x00\x08\x00\x06\x00\x00\x01\x06\x04\x03\x09\x05\x03\x02\x02\x07\x00\x08\x05\x03\x05\x07\x00\x04\x00\x06\x01",
}

// allowed are differences that the protocol leaves to servers, as what both say
// behind the last colon.
var allowed = []struct{ what, ours, theirs, why string }{
	{"WRITE flags", "errno 22", "errno 28", "two mistakes at the same time: a flag, and a place beyond the end"},
	{"WRITE_ZEROES flags", "errno 22", "errno 28", "likewise"},
	{"LIST of", "ack", "invalid", "nbdkit answers one LIST"},
}

// sameClass reports whether two lines are the same, or differ in what servers
// may choose.
func sameClass(ours, theirs string) bool {
	if ours == theirs {
		return true
	}
	what, a, _ := strings.Cut(ours, ": ")
	other, b, _ := strings.Cut(theirs, ": ")
	return what == other && slices.ContainsFunc(allowed, func(d struct{ what, ours, theirs, why string }) bool {
		return strings.HasPrefix(what, d.what) && strings.HasPrefix(a, d.ours) && strings.HasPrefix(b, d.theirs)
	})
}
