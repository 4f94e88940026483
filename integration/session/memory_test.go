package session

import (
	"fmt"
	"path/filepath"
	"testing"

	"github.com/viablk/viablk/integration/testbed"
)

// The memory that a target may have resident, in bytes.
const (
	targetMemory  = 64 << 20      // with a null disk and one session
	sessionMemory = 12 << 20 / 10 // more for each further session
	sessions      = 8             // further ones
)

// TestTargetMemoryPerSession counts what an initiator with one client costs its
// target. The program is the plain one, without the race detector's shadow.
func TestTargetMemoryPerSession(t *testing.T) {
	var disks []testbed.Disk
	for i := range 1 + sessions {
		disks = append(disks, testbed.Disk{Name: fmt.Sprintf("disk%d", i), Spec: "null:1GiB"})
	}
	p := testbed.StartTarget(t, testbed.PlainProgram(t), "via+shm:///?socket="+filepath.Join(testbed.Folder(t), "v"), disks...)
	t.Logf("no session:  %s", resident(p))
	session := func(d testbed.Disk) {
		a := testbed.AttachDisk(t, testbed.PlainProgram(t), p, d.Name)
		k := testbed.Connect(t, a.URI(d.Name, "nbd+unix"))
		k.Ask("write 0 4096", "ok")
		k.Ask("read 0 4096", "ok")
	}
	session(disks[0])
	testbed.Eventually(t, "one idle session under 64 MiB", func() (any, bool) {
		n := p.Memory("VmRSS")
		return n >> 10, n < targetMemory
	})
	first := p.Memory("VmRSS")
	t.Logf("one session: %s", resident(p))
	for _, d := range disks[1:] {
		session(d)
	}
	testbed.Eventually(t, "further sessions under 1.2 MiB each", func() (any, bool) {
		n := p.Memory("VmRSS") - first
		return fmt.Sprintf("%d KiB each", n/sessions>>10), n < sessions*sessionMemory
	})
	t.Logf("%d sessions: %s; %d KiB for each further one", 1+sessions, resident(p), (p.Memory("VmRSS")-first)/sessions>>10)
}

// resident describes the resident memory of a process.
func resident(p *testbed.Process) string {
	return fmt.Sprintf("%d KiB resident, of these %d private and %d shared",
		p.Memory("VmRSS")>>10, p.Memory("RssAnon")>>10, p.Memory("RssShmem")>>10)
}
