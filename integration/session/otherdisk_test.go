package session

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/viablk/viablk/initiator"
	"github.com/viablk/viablk/integration/testbed"
)

// otherDisk is a way in which a target comes back with another disk under the
// name. change returns what the target serves then.
type otherDisk struct {
	name   string
	reason string
	change func(t *testing.T, path string) (spec string)
}

const (
	changedUUID = "serves another disk under this name"
	diskSize    = 4 << 20
)

var otherDisks = []otherDisk{
	{"another file", changedUUID, func(t *testing.T, path string) string {
		testbed.Must(t, os.Rename(testbed.SparseFile(t, diskSize), path))
		return "file:" + path
	}},
	{"a longer file", changedUUID, func(t *testing.T, path string) string {
		testbed.Must(t, os.Rename(testbed.SparseFile(t, 2*diskSize), path))
		return "file:" + path
	}},
	{"a file made anew", changedUUID, func(t *testing.T, path string) string {
		testbed.Must(t, os.Remove(path))
		return fmt.Sprintf("file:%s?create=%d", path, diskSize)
	}},
	{"a copy", changedUUID, func(t *testing.T, path string) string {
		testbed.Run(t, "cp", "--preserve=all", path, path+".copy")
		testbed.Must(t, os.Rename(path+".copy", path))
		return "file:" + path
	}},
	{"a shorter file", "the disk has 2097152 bytes and had 4194304", func(t *testing.T, path string) string {
		testbed.Must(t, os.Truncate(path, diskSize/2))
		return "file:" + path
	}},
}

// TestOtherDiskUnderTheName: a target returns with another disk. Its users get
// EIO for good, and neither the other's data nor their writes on it, whether or
// not everything was flushed.
func TestOtherDiskUnderTheName(t *testing.T) {
	t.Parallel()
	for _, c := range otherDisks {
		for _, flushed := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s flushed %v", c.name, flushed), func(t *testing.T) {
				path := testbed.SparseFile(t, diskSize)
				refusedAfterReturn(t, "file:"+path, flushed, c.reason, func() string { return c.change(t, path) })
			})
		}
	}
	// Limits in front of a disk change nothing about it.
	for _, spec := range []string{"memory:4MiB", "limit:iops=100000:memory:4MiB", "delay:read=1ms:memory:4MiB", "fault:read=EIO@1000:memory:4MiB", "volatile:memory:4MiB"} {
		t.Run(spec, func(t *testing.T) {
			refusedAfterReturn(t, spec, true, changedUUID, func() string { return spec })
		})
	}
}

// refusedAfterReturn attaches a disk, kills its target and starts one with what
// change makes of the disk: it is refused for the reason, and for good.
func refusedAfterReturn(t *testing.T, spec string, flushed bool, reason string, change func() string) {
	t.Helper()
	listen := "via+shm:///?socket=" + filepath.Join(testbed.Folder(t), "v")
	p := testbed.StartTarget(t, testbed.Program(t), listen, testbed.Disk{Name: "disk", Spec: spec})
	a := testbed.AttachDisk(t, testbed.Program(t), p, "disk", "--reconnect-delay", "50ms")
	k := testbed.Connect(t, a.URI("disk", "nbd+unix"))
	k.Ask("fill 0 65536 1", "ok")
	if flushed {
		k.Ask("flush", "ok")
	}
	p.Crash()
	k.Send("fill 4096 4096 2")
	p = testbed.StartTarget(t, testbed.Program(t), listen, testbed.Disk{Name: "disk", Spec: change()})
	k.Expect("EIO")
	if got := inState(t, a, initiator.StateFailed); !strings.Contains(got, reason) {
		t.Errorf("status gives the reason %q, not %q", got, reason)
	}
	logged(t, a, reason)
	k.Ask("read 0 4096", "EIO")
	k.Ask("flush", "EIO")
	testbed.TargetIdle(t, p)
	if n := p.Status().Targets[0].Exports[0].Stats.Writes; n != 0 {
		t.Errorf("%d writes reached the other disk", n)
	}
	p.Stop()
	testbed.StartTarget(t, testbed.Program(t), listen, testbed.Disk{Name: "disk", Spec: "memory:4MiB"})
	k.Ask("fill 0 4096 2", "EIO")
	k.Ask("read 0 4096", "EIO")
}

// TestLimitedDiskOutlivesItsTarget: a target with limits is killed while a
// write is not flushed. The page cache has it, so its users go on.
func TestLimitedDiskOutlivesItsTarget(t *testing.T) {
	t.Parallel()
	path := testbed.SparseFile(t, diskSize)
	for _, front := range []string{"", "limit:iops=100000:", "delay:read=1ms:", "limit:iops=100000:fault:read=EIO@1000:"} {
		t.Run(front, func(t *testing.T) {
			d := testbed.Disk{Name: "disk", Spec: front + "file:" + path}
			listen := "via+shm:///?socket=" + filepath.Join(testbed.Folder(t), "v")
			p := testbed.StartTarget(t, testbed.Program(t), listen, d)
			a := testbed.AttachDisk(t, testbed.Program(t), p, "disk", "--reconnect-delay", "50ms")
			k := testbed.Connect(t, a.URI("disk", "nbd+unix"))
			k.Ask("fill 0 65536 1", "ok")
			p.Crash()
			k.Send("check 0 65536 1")
			testbed.StartTarget(t, testbed.Program(t), listen, d)
			k.Expect("ok")
			k.Ask("fill 65536 4096 2", "ok")
			k.Ask("flush", "ok")
			k.Ask("check 65536 4096 2", "ok")
			inState(t, a, initiator.StateConnected)
		})
	}
}
