package session

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/viablk/viablk/initiator"
	"github.com/viablk/viablk/integration/testbed"
)

// startShared starts a target whose disk is reached over shared memory, RoCE
// and NBD. Hosts differ between tests that run at the same time.
func startShared(t *testing.T, host int, spec string, more ...string) *testbed.Process {
	t.Helper()
	here := testbed.Folder(t)
	args := []string{
		"target", "--admin", filepath.Join(here, "a"), "--export", "disk=" + spec,
		"--listen", "via+shm:///?socket=" + filepath.Join(here, "v"),
		"--listen", fmt.Sprintf("via+roce://127.78.1.%d/", host),
		"--listen", "nbd+unix:///?socket=" + filepath.Join(here, "n"),
	}
	return testbed.StartBinary(t, testbed.Program(t), append(args, more...)...)
}

// attachOver attaches the disk of a shared target over a provider.
func attachOver(t *testing.T, p *testbed.Process, provider string, more ...string) *testbed.Process {
	t.Helper()
	more = append([]string{"--reconnect-delay", "50ms"}, more...)
	return testbed.AttachURIAt(t, testbed.StartCommand, testbed.Program(t), p.URI("disk", provider), "disk", more...)
}

// logged waits for a line in the log of a process.
func logged(t *testing.T, p *testbed.Process, line string) {
	t.Helper()
	testbed.Eventually(t, fmt.Sprintf("%q in the log", line), func() (any, bool) {
		text := p.Stderr.String()
		return text, strings.Contains(text, line)
	})
}

// inState waits until the disk of an attach is in a state, and returns why.
func inState(t *testing.T, a *testbed.Process, state initiator.State) (reason string) {
	t.Helper()
	testbed.Eventually(t, fmt.Sprintf("the state %v", state), func() (any, bool) {
		st := a.Status().Initiators[0]
		reason = st.Error
		return st, st.State == state
	})
	return reason
}

// noClients waits until no client has the disk of a target open.
func noClients(t *testing.T, p *testbed.Process) {
	t.Helper()
	testbed.Eventually(t, "a disk without clients", func() (any, bool) {
		x := p.Status().Targets[0].Exports[0]
		return x, len(x.Clients) == 0
	})
}

// anotherWriter is the reason of a disk that another client wrote to.
const anotherWriter = "another client wrote to the disk meanwhile"

// TestLateWritesDoNotOverwrite: an initiator stops with a write in flight, its
// session ends, and another one writes there through another provider. When the
// first goes on, that write must not reach the disk.
func TestLateWritesDoNotOverwrite(t *testing.T) {
	t.Parallel()
	host := 10
	for _, way := range [][2]string{{"via+shm", "via+roce"}, {"via+roce", "via+shm"}} {
		for _, policy := range []initiator.ConflictPolicy{initiator.ConflictFail, initiator.ConflictReopen} {
			host++
			t.Run(way[0]+" "+string(policy), func(t *testing.T) {
				hold := testbed.WriteFile(t, "hold", nil)
				p := startShared(t, host, "fault:write=hang@while="+hold+":file:"+testbed.SparseFile(t, 4<<20), "--keepalive", "300ms")
				a := attachOver(t, p, way[0], "--on-conflict", string(policy))
				late := testbed.Connect(t, a.URI("disk", "nbd+unix"))
				late.Send("fill 0 65536 1")
				testbed.Eventually(t, "a write that hangs in the disk", func() (any, bool) {
					var n uint64
					for _, s := range p.Status().Targets {
						n += s.Stats.Writes
					}
					st := a.Status()
					return st, st.NBD.Connections[0].Receives > 0 && n == 1
				})
				a.Signal(syscall.SIGSTOP)
				t.Cleanup(func() { a.Signal(syscall.SIGCONT) })
				noClients(t, p)
				testbed.Must(t, os.Remove(hold))

				b := attachOver(t, p, way[1])
				k := testbed.Connect(t, b.URI("disk", "nbd+unix"))
				k.Ask("fua 0 65536 2", "ok")
				k.Ask("flush", "ok")
				k.Ask("check 0 65536 2", "ok")
				k.Disconnect()
				b.Stop()

				a.Signal(syscall.SIGCONT)
				late.Expect("EIO")
				logged(t, a, anotherWriter)
				if policy == initiator.ConflictFail {
					if reason := inState(t, a, initiator.StateFailed); !strings.Contains(reason, anotherWriter) {
						t.Errorf("status gives the reason %q", reason)
					}
					late.Ask("fill 0 4096 3", "EIO")
					late.Ask("read 0 4096", "EIO")
				} else {
					inState(t, a, initiator.StateConnected)
					late.Ask("check 0 65536 2", "ok")
					late.Ask("fill 65536 4096 3", "ok")
					late.Ask("flush", "ok")
					late.Disconnect()
					a.Stop()
				}
				testbed.Connect(t, p.URI("disk", "nbd+unix")).Ask("check 0 65536 2", "ok")
			})
		}
	}
}

// TestOneWriterOnAllWays: the providers and NBD share one table of who uses a
// disk.
func TestOneWriterOnAllWays(t *testing.T) {
	t.Parallel()
	p := startShared(t, 20, "file:"+testbed.SparseFile(t, 4<<20))
	refused := func(line, provider string, more ...string) {
		t.Helper()
		testbed.Refused(t, 75, line, append([]string{
			"attach", p.URI("disk", provider), "--admin", "none", "--nbd", "nbd+unix:///x?socket=" + filepath.Join(testbed.Folder(t), "n"),
		}, more...)...)
	}
	writes := func(a *testbed.Process) {
		t.Helper()
		k := testbed.Connect(t, a.URI("disk", "nbd+unix"))
		k.Ask("fill 0 4096 1", "ok")
		k.Disconnect()
	}
	nbd := p.URI("disk", "nbd+unix")
	for _, way := range [][2]string{{"via+shm", "via+roce"}, {"via+roce", "via+shm"}} {
		a := attachOver(t, p, way[0])
		writes(a)
		session := `session ` + a.Status().Initiators[0].Session
		refused(session+` has it open read-write: attach it read-only, or preempt that client`, way[1])
		refused(session+` has it open read-write`, way[1], "--exclusive")

		// An NBD client beside the writer looks on, whatever it asks for.
		k := testbed.Connect(t, nbd)
		k.Ask("readonly", "True")
		k.Ask("check 0 4096 1", "ok")
		k.Ask("force", "ok")
		k.Ask("fill 0 4096 2", "EPERM")
		k.Ask("check 0 4096 1", "ok")
		reader := attachOver(t, p, way[1], "--read-only")
		writes(a)
		reader.Stop()
		k.Disconnect()
		a.Stop()

		// NBD clients write together, and no other client beside them.
		one, two := testbed.Connect(t, nbd), testbed.Connect(t, nbd)
		one.Ask("readonly", "False")
		two.Ask("readonly", "False")
		one.Ask("fill 0 4096 3", "ok")
		two.Ask("fill 4096 4096 4", "ok")
		one.Ask("check 4096 4096 4", "ok")
		refused(`nbd client .* has it open read-write`, way[0])
		one.Disconnect()
		refused(`nbd client .* has it open read-write`, way[1])
		two.Disconnect()
		noClients(t, p)

		// An exclusive client is alone, with readers as well.
		a = attachOver(t, p, way[0], "--exclusive")
		writes(a)
		exclusive := `session ` + a.Status().Initiators[0].Session + ` has it open exclusive`
		refused(exclusive, way[1])
		refused(exclusive, way[1], "--read-only")
		c := testbed.StartTool(t, "nbdsh", "-u", nbd, "-c", "h.pread(512, 0)")
		if code := c.Wait(t, testbed.EndLimit); code == 0 || !strings.Contains(c.Output(), "policy") {
			t.Errorf("an NBD client beside an exclusive one: exit code %d\n%s", code, c.Output())
		}
		a.Stop()
	}
}

// TestPreempt: a client that preempts gets the disk, both sides log it, and who
// had it does not get it back.
func TestPreempt(t *testing.T) {
	t.Parallel()
	p := startShared(t, 30, "file:"+testbed.SparseFile(t, 4<<20))
	nbd := testbed.Connect(t, p.URI("disk", "nbd+unix"))
	nbd.Ask("fill 0 4096 1", "ok")
	a := attachOver(t, p, "via+shm", "--preempt")
	testbed.Eventually(t, "the NBD client being ended", func() (any, bool) {
		st := p.Status().NBD
		return st, len(st.Connections) == 0
	})
	logged(t, p, `connection ended: another client preempted it`)
	logged(t, p, `by="session `+a.Status().Initiators[0].Session)
	nbd.Kill()
	k := testbed.Connect(t, a.URI("disk", "nbd+unix"))
	k.Ask("fill 0 4096 2", "ok")

	b := attachOver(t, p, "via+roce", "--preempt")
	logged(t, p, `session ended: another client preempted it`)
	logged(t, p, `by="session `+b.Status().Initiators[0].Session)
	logged(t, a, anotherWriter)
	if reason := inState(t, a, initiator.StateFailed); !strings.Contains(reason, anotherWriter) {
		t.Errorf("status gives the reason %q", reason)
	}
	k.Ask("fill 0 4096 3", "EIO")
	k.Ask("read 0 4096", "EIO")
	other := testbed.Connect(t, b.URI("disk", "nbd+unix"))
	other.Ask("check 0 4096 2", "ok")
	other.Disconnect()
	b.Stop()
	k.Ask("fill 0 4096 3", "EIO")
	testbed.Connect(t, p.URI("disk", "nbd+unix")).Ask("check 0 4096 2", "ok")
}
