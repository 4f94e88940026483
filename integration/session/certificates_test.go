package session

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/viablk/viablk/initiator"
	"github.com/viablk/viablk/integration/testbed"
	"github.com/viablk/viablk/internal/pki"
)

// secureTarget starts a target over RoCE that wants certificates.
func secureTarget(t *testing.T, listen, certificates string, disks ...testbed.Disk) *testbed.Process {
	t.Helper()
	args := []string{
		"target", "--admin", filepath.Join(testbed.Folder(t), "target"), "--listen", listen,
		"--security", "require", "--certificates", certificates,
	}
	for _, d := range disks {
		args = append(args, "--export", d.Name+"="+d.Spec)
	}
	return testbed.Start(t, args...)
}

// secureAttach attaches a disk with the certificates of a folder. Each test has
// an address of its own, so the target has another name.
func secureAttach(t *testing.T, listen, certificates, disk string, more ...string) *testbed.Process {
	t.Helper()
	more = append([]string{"--certificates", certificates, "--target-name", "localhost", "--reconnect-delay", "50ms"}, more...)
	return testbed.AttachURIAt(t, testbed.StartCommand, testbed.Program(t), listen+disk, disk, more...)
}

// fails runs a command that ends with an exit code, and returns what it writes.
func fails(t *testing.T, code int, args ...string) string {
	t.Helper()
	c := testbed.StartPathAt(t, testbed.StartCommand, testbed.Environment(t), testbed.Program(t), args...)
	if got := c.Wait(t, testbed.ToolLimit); got != code {
		t.Fatalf("%s: exit code %d, not %d\n%s", c, got, code, c.Output())
	}
	return c.Output()
}

// TestInitiatorWithoutCertificate: a target that wants certificates gives
// nothing to an initiator without one, to one of another authority, to one that
// shows a server's, and to one that expects another target. Each is told why at
// once, and the disk is as it was.
func TestInitiatorWithoutCertificate(t *testing.T) {
	t.Parallel()
	const listen = "via+roce://127.77.40.1/"
	folder, elsewhere := testbed.Certificates(t, "alice"), testbed.Certificates(t, "alice")
	at := func(name string) string { return filepath.Join(folder, name) }
	path := testbed.SparseFile(t, 1<<20)
	testbed.Must(t, os.WriteFile(path, []byte(strings.Repeat("SECRET", 1<<10)), 0o600))
	before, err := os.ReadFile(path)
	testbed.Must(t, err)
	p := secureTarget(t, listen, at("server"), testbed.Disk{Name: "disk", Spec: "file:" + path})
	nbd := "nbd+unix:///disk?socket=" + filepath.Join(testbed.Folder(t), "n")
	for _, c := range []struct {
		name, want string
		options    []string
	}{
		{"no certificate", "the target wants certificates: --certificates FOLDER", nil},
		{"another authority", "", []string{"--certificates", filepath.Join(elsewhere, "alice"), "--target-name", "localhost"}},
		{"another target", "127.77.40.1", []string{"--certificates", at("alice")}},
	} {
		for _, command := range [][]string{{"list", listen}, {"info", listen + "disk"}, {"attach", listen + "disk", "--nbd", nbd}} {
			out := fails(t, 77, append(command, c.options...)...)
			if !strings.Contains(out, c.want) || strings.Contains(out, "1MiB") || strings.Contains(out, "SECRET") {
				t.Errorf("%s, %s: %s", c.name, command[0], out)
			}
		}
	}
	options := []string{"--certificates", at("alice"), "--target-name", "localhost"}
	if out := fails(t, 0, append([]string{"list", listen}, options...)...); !strings.Contains(out, "disk") {
		t.Errorf("alice: %s", out)
	}
	after, err := os.ReadFile(path)
	testbed.Must(t, err)
	if string(before) != string(after) {
		t.Error("the disk is not as it was")
	}
	if x := p.Status().Targets[0].Exports[0]; x.Stats.Reads+x.Stats.Writes != 0 {
		t.Errorf("the target served %+v", x.Stats)
	}
}

// TestTargetWithoutSecurity: an initiator with certificates does not use a
// target that has none.
func TestTargetWithoutSecurity(t *testing.T) {
	t.Parallel()
	const listen = "via+roce://127.77.41.1/"
	folder := testbed.Certificates(t, "alice")
	p := testbed.StartTarget(t, testbed.Program(t), listen, testbed.Disk{Name: "disk", Spec: "memory:1MiB"})
	for _, command := range [][]string{{"list", listen}, {"info", listen + "disk"}} {
		out := fails(t, 77, append(command, "--certificates", filepath.Join(folder, "alice"), "--target-name", "localhost")...)
		if !strings.Contains(out, "the target offers no security") {
			t.Errorf("%s: %s", command[0], out)
		}
	}
	if n := p.Status().Targets[0].Sessions; n != 0 {
		t.Errorf("the target has %d sessions", n)
	}
}

// TestRevokedInitiator: a target reads a list on which a client is that has a
// disk attached. That client is out, and its requests wait; another client does
// not notice. With a new certificate the first is back, and nothing is lost.
func TestRevokedInitiator(t *testing.T) {
	t.Parallel()
	const listen = "via+roce://127.77.42.1/"
	folder := testbed.Certificates(t, "alice", "bob")
	at := func(name string) string { return filepath.Join(folder, name) }
	p := secureTarget(t, listen, at("server"),
		testbed.Disk{Name: "a", Spec: "memory:16MiB"}, testbed.Disk{Name: "b", Spec: "memory:16MiB"})
	alice, bob := secureAttach(t, listen, at("alice"), "a"), secureAttach(t, listen, at("bob"), "b")
	ka, kb := testbed.Connect(t, alice.URI("a", "nbd+unix")), testbed.Connect(t, bob.URI("b", "nbd+unix"))
	ka.Ask("fill 0 1048576 1", "ok")
	kb.Ask("fill 0 1048576 2", "ok")

	fails(t, 0, "pki", "revoke", at("ca"), "bob", "--out", at("server"))
	p.Signal(syscall.SIGHUP)
	inState(t, bob, initiator.StateWaiting)
	logged(t, p, "certificates read again")
	kb.Send("check 0 1048576 2")
	ka.Ask("check 0 1048576 1", "ok")
	if st := alice.Status().Initiators[0]; st.SessionLosses != 0 || st.Stats.Errors != 0 {
		t.Errorf("alice noticed: %+v", st)
	}

	// Without its folder, for a moment, it may have another reason to wait.
	const refusal = `the target is there and refuses: requests wait" event=target_refuses host=127.77.42.1:4791 reason="authentication failed`
	logged(t, bob, refusal)
	testbed.Must(t, os.RemoveAll(at("bob")))
	testbed.Must(t, pki.Issue(at("ca"), pki.Client, []string{"bob"}, at("bob"), time.Hour))
	bob.Signal(syscall.SIGHUP)
	kb.Expect("ok")
	inState(t, bob, initiator.StateConnected)
	if n := strings.Count(bob.Stderr.String(), refusal); n != 1 {
		t.Errorf("%d warnings of the refusal:\n%s", n, bob.Stderr.String())
	}
}

// TestRenewedAtHangup: at SIGHUP either end of an attached disk goes on with
// the certificate that it has been given, and the other end verifies it. No
// request notices.
func TestRenewedAtHangup(t *testing.T) {
	t.Parallel()
	const listen = "via+roce://127.77.44.1/"
	folder := testbed.Certificates(t, "alice")
	at := func(name string) string { return filepath.Join(folder, name) }
	p := secureTarget(t, listen, at("server"), testbed.Disk{Name: "disk", Spec: "memory:16MiB"})
	a := secureAttach(t, listen, at("alice"), "disk")
	k := testbed.Connect(t, a.URI("disk", "nbd+unix"))
	k.Ask("fill 0 1048576 1", "ok")
	serials := func() [2]string {
		return [2]string{a.Status().Initiators[0].Security.Serial, p.Status().Targets[0].Security.Sessions[0].Serial}
	}
	for i, c := range []struct {
		name string
		end  *testbed.Process
	}{{"server", p}, {"alice", a}} {
		before := serials()
		fails(t, 0, "pki", "renew", at("ca"), at(c.name))
		c.end.Signal(syscall.SIGHUP)
		testbed.Eventually(t, c.name+": the rekey", func() (any, bool) {
			st := a.Status().Initiators[0]
			return st, st.Security.Rekeys == uint64(i)+1
		})
		if after := serials(); after[i] == before[i] || after[1-i] != before[1-i] {
			t.Errorf("%s: certificates %v, before %v", c.name, after, before)
		}
		k.Ask("check 0 1048576 1", "ok")
	}
	if st := a.Status().Initiators[0]; st.SessionLosses+st.Stats.Reconnects+st.Stats.Forged != 0 {
		t.Errorf("%+v", st)
	}
}

// TestImpostor: another target comes to the address of the one that was killed,
// with a disk of that name and size. The initiator does not believe it:
// requests wait, and none reaches the disk. When its target is back they are
// answered, and each byte is as it was written.
func TestImpostor(t *testing.T) {
	t.Parallel()
	const listen = "via+roce://127.77.43.1/"
	folder, elsewhere := testbed.Certificates(t, "alice"), testbed.Certificates(t)
	at := func(name string) string { return filepath.Join(folder, name) }
	d := testbed.FileDisk(16 << 20)(t)
	p := secureTarget(t, listen, at("server"), d)
	a := secureAttach(t, listen, at("alice"), d.Name)
	k := testbed.Connect(t, a.URI(d.Name, "nbd+unix"))
	k.Ask("fill 0 4194304 7", "ok")
	for name, impostor := range map[string]func() (p *testbed.Process, reason string){
		"another authority": func() (*testbed.Process, string) {
			return secureTarget(t, listen, filepath.Join(elsewhere, "server"), testbed.Disk{Name: d.Name, Spec: "memory:16MiB"}), "unknown authority"
		},
		"no security": func() (*testbed.Process, string) {
			return testbed.StartTarget(t, testbed.Program(t), listen, testbed.Disk{Name: d.Name, Spec: "memory:16MiB"}), "the target offers no security"
		},
	} {
		p.Crash()
		inState(t, a, initiator.StateWaiting)
		rogue, reason := impostor()
		k.Send("check 0 4194304 7")
		testbed.Eventually(t, name+": the refusal", func() (any, bool) {
			st := a.Status().Initiators[0]
			return st, st.State == initiator.StateWaiting && strings.Contains(st.Error, reason)
		})
		if x := rogue.Status().Targets[0].Exports[0]; x.Stats.Reads+x.Stats.Writes+uint64(x.Opens) != 0 {
			t.Errorf("%s: the impostor served %+v", name, x)
		}
		rogue.Stop()
		p = secureTarget(t, listen, at("server"), d)
		k.Expect("ok")
	}
	k.Ask(fmt.Sprintf("fill %d 65536 8", 4<<20), "ok")
	k.Ask(fmt.Sprintf("check %d 65536 8", 4<<20), "ok")
	if st := a.Status(); st.NBD.Total.Errors+st.Initiators[0].Stats.Errors != 0 {
		t.Errorf("requests failed: %+v", st.Initiators[0])
	}
}
