package session

import (
	"fmt"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/viablk/viablk/initiator"
	"github.com/viablk/viablk/integration/testbed"
)

// TestTargetReturnsUnderLoad: fio writes and reads back while the target of its
// disk is killed, or ends, and is started again, and sees nothing of that.
func TestTargetReturnsUnderLoad(t *testing.T) {
	t.Parallel()
	for i, provider := range []string{"shm", "roce"} {
		for name, end := range map[string]func(*testbed.Process){
			"killed":   (*testbed.Process).Crash,
			"replaced": (*testbed.Process).Stop,
		} {
			t.Run(provider+" "+name, func(t *testing.T) {
				t.Parallel()
				d := testbed.FileDisk(24 << 20)(t)
				listen := fmt.Sprintf("via+roce://127.77.%d.%d/", 20+i, len(name))
				if provider == "shm" {
					listen = "via+shm:///?socket=" + filepath.Join(testbed.Folder(t), "v")
				}
				p := testbed.StartTarget(t, testbed.Program(t), listen, d)
				a := testbed.AttachURIAt(t, testbed.StartCommand, testbed.Program(t), p.URI(d.Name, "via+"+provider), d.Name, "--reconnect-delay", "100ms")
				// fio catches up with a rate after each absence, and would end too early.
				c := testbed.StartFio(t, a.URI(d.Name, "nbd+unix"), testbed.WithVerify("--rw=randwrite", "--bsrange=4k-256k", "--iodepth=16",
					"--size=12m", "--thinktime=50ms", "--fsync=32", "--numjobs=2", "--offset_increment=12m", "--group_reporting")...)
				const times = 3
				for round := range uint64(times) {
					testbed.Eventually(t, "more writes", func() (any, bool) {
						n := a.Status().NBD.Total.Writes
						return n, n > 40*(round+1)
					})
					before := a.Status().Initiators[0].Stats.Reconnects
					end(p)
					testbed.Eventually(t, "the loss being noticed", func() (any, bool) {
						st := a.Status().Initiators[0]
						return st, st.SessionLosses == round+1 && !st.Connected && st.DisconnectedSeconds > 0
					})
					p = testbed.StartTarget(t, testbed.Program(t), listen, d)
					testbed.Eventually(t, "the connections", func() (any, bool) {
						st := a.Status().Initiators[0]
						return st, st.Connected && st.Stats.Reconnects > before
					})
				}
				if code := c.Wait(t, testbed.ToolLimit); code != 0 {
					t.Errorf("%s: exit code %d\n%s", c, code, c.Output())
				}
				st := a.Status()
				if i := st.Initiators[0]; st.NBD.Total.Errors != 0 || i.Stats.Errors != 0 || i.SessionLosses != times {
					t.Errorf("nbd: %d errors; initiator: %+v", st.NBD.Total.Errors, i)
				}
				a.Stop()
			})
		}
	}
}

// TestAnotherDiskIsRefused: a disk in memory is not the same after its target
// has been started again. Its users get errors, and the log says why.
func TestAnotherDiskIsRefused(t *testing.T) {
	t.Parallel()
	listen := "via+shm:///?socket=" + filepath.Join(testbed.Folder(t), "v")
	d := testbed.MemoryDisk("16MiB")(t)
	p := testbed.StartTarget(t, testbed.Program(t), listen, d)
	a := testbed.AttachDisk(t, testbed.Program(t), p, d.Name)
	k := testbed.Connect(t, a.URI(d.Name, "nbd+unix"))
	k.Ask("write 0 4096", "ok")
	k.Ask("flush", "ok")
	p.Crash()
	k.Send("read 0 4096")
	testbed.StartTarget(t, testbed.Program(t), listen, d)
	k.Expect("EIO")
	k.Ask("read 0 4096", "EIO")
	if inState(t, a, initiator.StateFailed) == "" {
		t.Error("status gives no reason")
	}
	k.Disconnect()
	a.Signal(syscall.SIGTERM)
	if code := a.ExitCode(); code != 0 {
		t.Errorf("exit code %d\n%s", code, a.Output())
	}
}
