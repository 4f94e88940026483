package integration

import (
	"fmt"
	"path/filepath"
	"testing"
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
	var disks []disk
	for i := range 1 + sessions {
		disks = append(disks, disk{fmt.Sprintf("disk%d", i), "null:1GiB"})
	}
	p := startTarget(t, plain(t), "via+shm:///?socket="+filepath.Join(folder(t), "v"), disks...)
	t.Logf("no session:  %s", resident(p))
	session := func(d disk) {
		a := attachDisk(t, plain(t), p, d.name)
		k := connect(t, a.uri(d.name, "nbd+unix"))
		k.ask("write 0 4096", "ok")
		k.ask("read 0 4096", "ok")
	}
	session(disks[0])
	eventually(t, "one idle session under 64 MiB", func() (any, bool) {
		n := p.memory("VmRSS")
		return n >> 10, n < targetMemory
	})
	first := p.memory("VmRSS")
	t.Logf("one session: %s", resident(p))
	for _, d := range disks[1:] {
		session(d)
	}
	eventually(t, "further sessions under 1.2 MiB each", func() (any, bool) {
		n := p.memory("VmRSS") - first
		return fmt.Sprintf("%d KiB each", n/sessions>>10), n < sessions*sessionMemory
	})
	t.Logf("%d sessions: %s; %d KiB for each further one", 1+sessions, resident(p), (p.memory("VmRSS")-first)/sessions>>10)
}

// resident describes the resident memory of a process.
func resident(p *process) string {
	return fmt.Sprintf("%d KiB resident, of these %d private and %d shared",
		p.memory("VmRSS")>>10, p.memory("RssAnon")>>10, p.memory("RssShmem")>>10)
}
