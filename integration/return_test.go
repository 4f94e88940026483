package integration

import (
	"fmt"
	"path/filepath"
	"syscall"
	"testing"
)

// TestTargetReturnsUnderLoad: fio writes and reads back while the target of its disk is
// killed, or ends, and is started again, and sees nothing of that.
func TestTargetReturnsUnderLoad(t *testing.T) {
	for i, provider := range []string{"shm", "roce"} {
		for name, end := range map[string]func(*process){
			"killed":   (*process).crash,
			"replaced": (*process).stop,
		} {
			t.Run(provider+" "+name, func(t *testing.T) {
				t.Parallel()
				d := fileDisk(64 << 20)(t)
				listen := fmt.Sprintf("via+roce://127.77.%d.%d/", 20+i, len(name))
				if provider == "shm" {
					listen = "via+shm:///?socket=" + filepath.Join(folder(t), "v")
				}
				p := startTarget(t, program(t), listen, d)
				a := attachURIAt(t, startCommand, program(t), p.uri(d.name, "via+"+provider), d.name, "--reconnect-delay", "100ms")
				c := startFio(t, a.uri(d.name, "nbd+unix"), withVerify("--rw=randwrite", "--bsrange=4k-256k", "--iodepth=16",
					"--size=48m", "--rate=12m", "--fsync=32", "--numjobs=2", "--offset_increment=24m", "--group_reporting")...)
				const times = 3
				for round := range uint64(times) {
					eventually(t, "more writes", func() (any, bool) {
						n := a.status().NBD.Total.Writes
						return n, n > 40*(round+1)
					})
					end(p)
					eventually(t, "the loss being noticed", func() (any, bool) {
						st := a.status().Initiators[0]
						return st, st.Losses == round+1 && !st.Connected && st.Away > 0
					})
					p = startTarget(t, program(t), listen, d)
					eventually(t, "the connections", func() (any, bool) {
						st := a.status().Initiators[0]
						return st, st.Connected && st.Stats.Returns >= 2*(round+1)
					})
				}
				if code := c.wait(t, toolLimit); code != 0 {
					t.Errorf("%s: exit code %d\n%s", c, code, c.output())
				}
				st := a.status()
				if i := st.Initiators[0]; st.NBD.Total.Errors != 0 || i.Stats.Errors != 0 || i.Losses != times {
					t.Errorf("nbd: %d errors; initiator: %+v", st.NBD.Total.Errors, i)
				}
				a.stop()
			})
		}
	}
}

// TestAnotherDiskIsRefused: a disk in memory is not the same after its target has been
// started again. Its users get errors, and the log says why.
func TestAnotherDiskIsRefused(t *testing.T) {
	listen := "via+shm:///?socket=" + filepath.Join(folder(t), "v")
	d := memoryDisk("16MiB")(t)
	p := startTarget(t, program(t), listen, d)
	a := attachDisk(t, program(t), p, d.name)
	k := connect(t, a.uri(d.name, "nbd+unix"))
	k.ask("write 0 4096", "ok")
	k.ask("flush", "ok")
	p.crash()
	k.send("read 0 4096")
	startTarget(t, program(t), listen, d)
	k.expect("EIO")
	k.ask("read 0 4096", "EIO")
	if st := a.status().Initiators[0]; st.Connected || st.Error == "" {
		t.Errorf("the initiator goes on with another disk: %+v", st)
	}
	k.leave()
	a.signal(syscall.SIGTERM)
	if code := a.exitCode(); code != 0 {
		t.Errorf("exit code %d\n%s", code, a.output())
	}
}
