package attack

import (
	"flag"
	"path/filepath"
	"testing"

	"github.com/viablk/viablk/integration/netbed"
	"github.com/viablk/viablk/integration/testbed"
)

var programFlag = flag.String("attack.program", "", "the viablk to attack on a cable; empty: of these sources")

// cable is a target and an initiator, two processes of two hosts.
type cable struct {
	t       testing.TB
	bed     *netbed.Bed
	program string
	folder  string // of certificates; "" is sessions in clear
	disk    testbed.Disk
	file    string // of the disk
	target  *testbed.Process
	attach  *testbed.Process
}

// keepAlive is so long that a busy machine is not silent for several of them:
// a client that comes while a session is lost is refused.
const keepAlive = "700ms"

// newCable starts neither process.
func newCable(t testing.TB, sealed bool) *cable {
	t.Helper()
	c := &cable{t: t, bed: netbed.New(t, netbed.Options{MTU: 4500}), program: *programFlag, file: testbed.SparseFile(t, diskSize)}
	if c.program == "" {
		c.program = testbed.Program(t)
	}
	c.disk = testbed.Disk{Name: exportName, Spec: "file:" + c.file}
	if sealed {
		c.folder = testbed.Certificates(t, "alice")
	}
	return c
}

// startTarget starts the target.
func (c *cable) startTarget() {
	c.t.Helper()
	args := []string{
		"target", "--admin", filepath.Join(testbed.Folder(c.t), "target"), "--listen", testbed.RoCEURI(c.bed.B.IPv4),
		"--export", c.disk.Name + "=" + c.disk.Spec, "--keepalive", keepAlive,
	}
	if c.folder == "" {
		args = append(args, "--insecure")
	} else {
		args = append(args, "--certificates", filepath.Join(c.folder, "server"), "--security", "require")
	}
	c.target = testbed.StartBinaryAt(c.t, c.bed.B.StartGroup, c.program, args...)
}

// startInitiator attaches the disk.
func (c *cable) startInitiator(more ...string) {
	c.t.Helper()
	if c.folder != "" {
		more = append(more, "--certificates", filepath.Join(c.folder, "alice"), "--target-name", "localhost")
	}
	more = append(more, "--reconnect-delay", "10ms")
	c.attach = testbed.AttachURIAt(c.t, c.bed.A.StartGroup, c.program, c.target.URI(c.disk.Name, "via+roce"), c.disk.Name, more...)
}

// uri is where clients of host A find the disk.
func (c *cable) uri() string { return c.attach.URI(c.disk.Name, "nbd+unix") }

// failedTags returns how many messages and records both ends refused.
func (c *cable) failedTags() uint64 {
	c.t.Helper()
	n := uint64(0)
	for _, i := range c.attach.Status().Initiators {
		n += i.Stats.Forged
	}
	for _, d := range c.target.Status().Targets {
		n += d.Stats.Forged
	}
	return n
}

// flawless checks that no request failed.
func (c *cable) flawless() {
	c.t.Helper()
	if i := c.attach.Status().Initiators[0]; i.Stats.Errors != 0 || i.State != "connected" {
		c.t.Errorf("the initiator is %s, %q, and %d requests failed", i.State, i.Error, i.Stats.Errors)
	}
}
