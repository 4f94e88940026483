package session

import (
	"flag"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/viablk/viablk/integration/testbed"
	"github.com/viablk/viablk/internal/block"
	"github.com/viablk/viablk/target/backend/backendtest"
)

var (
	takeovers     = flag.Int("takeovers", 5, "how often a target is taken over, for each provider")
	takeoverPause = flag.Duration("takeovers.pause", 0, "how long a request may take in 99 of 100 takeovers; 0: measure alone")
)

// succession is a line of targets, each of which takes over from the one
// before.
type succession struct {
	t      *testing.T
	args   []string
	target *testbed.Process
	admin  string
}

// newSuccession starts the first target.
func newSuccession(t *testing.T, args ...string) *succession {
	s := &succession{t: t, args: args, admin: filepath.Join(testbed.Folder(t), "admin")}
	s.start()
	return s
}

// start starts a target.
func (s *succession) start(more ...string) {
	s.t.Helper()
	s.target = testbed.StartBinary(s.t, testbed.Program(s.t), slices.Concat([]string{"target", "--admin", s.admin}, s.args, more)...)
}

// next has another target take over, after which the one before ends.
func (s *succession) next() {
	s.t.Helper()
	before := s.target
	s.start("--takeover", s.admin)
	if code := before.ExitCode(); code != 0 {
		s.t.Errorf("the target ends with exit code %d\n%s", code, before.Output())
	}
}

// roceAddress is an address that no other test of the package uses.
const roceAddress = "127.77.40.1"

// listenAt returns where a target listens.
func listenAt(t *testing.T, provider string) string {
	if provider == "roce" {
		return "via+roce://" + roceAddress + "/"
	}
	return "via+shm:///?socket=" + filepath.Join(testbed.Folder(t), "v")
}

// TestTakeoverUnderLoad: clients write and check what they read while one
// target after the other takes over. No request fails, no byte is lost, and no
// session is refused.
func TestTakeoverUnderLoad(t *testing.T) {
	for name, memory := range map[string]bool{"shm": false, "roce": false, "shm, memory": true} {
		t.Run(name, func(t *testing.T) {
			provider, _, _ := strings.Cut(name, ",")
			spec := "memory:16MiB"
			if !memory {
				spec = "file:" + testbed.SparseFile(t, 16<<20)
			}
			s := newSuccession(t, "--listen", listenAt(t, provider), "--export", "disk="+spec)
			a := testbed.AttachURIAt(t, testbed.StartCommand, testbed.Program(t), s.target.URI("disk", "via+"+provider), "disk")
			z := backendtest.NewZones(block.Info{Size: 16 << 20, MinimumBlock: 1, MaximumPayload: block.PayloadLimit})
			path := socketOf(a.URI("disk", "nbd+unix"))
			first := dialZones(t, path)
			for _, x := range z.First() {
				testbed.Must(t, first.use(z, []backendtest.Access{x}))
			}
			var pauses []time.Duration
			for round := range *takeovers {
				t.Run("takeover", func(t *testing.T) { // its clients leave at its end
					pauses = append(pauses, succeedUnderLoad(t, s, path, z, uint64(round)))
				})
			}
			testbed.Must(t, z.Check())
			st := a.Status()
			if i := st.Initiators[0]; st.NBD.Total.Errors != 0 || i.Stats.Errors != 0 || i.SessionLosses != uint64(*takeovers) {
				t.Errorf("nbd: %d errors; initiator: %+v", st.NBD.Total.Errors, i)
			}
			slices.Sort(pauses)
			p99 := pauses[(len(pauses)*99+99)/100-1]
			t.Logf("%s: longest request in each of %d takeovers: p50 %v, p99 %v, longest %v", name, len(pauses),
				pauses[len(pauses)/2], p99, pauses[len(pauses)-1])
			if *takeoverPause > 0 && p99 > *takeoverPause {
				t.Errorf("that is more than %v", *takeoverPause)
			}
			a.Stop()
			s.target.Stop()
		})
	}
}

// succeedUnderLoad has the target taken over while clients use the disk, and
// returns how long the longest request took.
func succeedUnderLoad(t *testing.T, s *succession, path string, z *backendtest.Zones, seed uint64) time.Duration {
	t.Helper()
	users := startZoneUsers(t, path, z, seed)
	time.Sleep(50 * time.Millisecond)
	s.next()
	time.Sleep(50 * time.Millisecond)
	return users.stop()
}

// zoneUsers are NBD clients that write, and check what they read.
type zoneUsers struct {
	over    chan struct{}
	running sync.WaitGroup
	longest [2]time.Duration // of each: its longest request
}

func startZoneUsers(t *testing.T, path string, z *backendtest.Zones, seed uint64) *zoneUsers {
	t.Helper()
	x := &zoneUsers{over: make(chan struct{})}
	for i := range x.longest {
		u := dialZones(t, path)
		random := rand.New(rand.NewPCG(seed, uint64(i)))
		x.running.Go(func() {
			for {
				select {
				case <-x.over:
					return
				default:
				}
				began := time.Now()
				if err := u.use(z, []backendtest.Access{z.Next(random, true), z.Next(random, true)}); err != nil {
					t.Errorf("client %d: %v", i, err)
					return
				}
				x.longest[i] = max(x.longest[i], time.Since(began))
			}
		})
	}
	return x
}

// stop ends the clients, and returns how long the longest request took.
func (x *zoneUsers) stop() time.Duration {
	close(x.over)
	x.running.Wait()
	return slices.Max(x.longest[:])
}

// socketOf returns the path of the socket of a URI.
func socketOf(uri string) string {
	_, path, _ := strings.Cut(uri, "socket=")
	return path
}

// TestTakeoverOfInheritedSockets: a target that was started with its sockets,
// as by systemd, hands them over, and goes on with them if its successor dies.
func TestTakeoverOfInheritedSockets(t *testing.T) {
	t.Parallel()
	folder := testbed.Folder(t)
	image, socket, admin := testbed.SparseFile(t, 1<<20), filepath.Join(folder, "n"), filepath.Join(folder, "a")
	l, err := net.Listen("unix", socket)
	testbed.Must(t, err)
	defer l.Close()
	file, err := l.(*net.UnixListener).File()
	testbed.Must(t, err)
	args := []string{"target", "--admin", admin, "--export", "disk=file:" + image}
	first := testbed.NewTool(nil, "/bin/sh", slices.Concat([]string{
		"-c", `LISTEN_PID=$$ LISTEN_FDS=1 LISTEN_FDNAMES=front exec "$0" "$@"`, testbed.Program(t),
	}, args)...)
	first.Cmd.ExtraFiles = []*os.File{file}
	first.Start(t, testbed.StartCommand)
	testbed.Must(t, file.Close())
	uri := "nbd+unix:///disk?socket=" + socket
	for i, serves := range []func(){
		func() {},
		func() { dieAsSuccessor(t, "opened", admin) },
		func() {
			next := testbed.StartBinary(t, testbed.Program(t), append(args, "--takeover", admin)...)
			if code := first.Wait(t, testbed.ToolLimit); code != 0 {
				t.Errorf("the target ends with exit code %d\n%s", code, first.Output())
			}
			t.Cleanup(func() { next.Stop() })
		},
	} {
		serves()
		k := testbed.Connect(t, uri)
		k.Ask(fmt.Sprintf("fill 0 4096 %d", i+1), "ok")
		k.Ask("flush", "ok")
		k.Disconnect()
	}
}

// TestTakeoverTakesEveryExport: a target with an export that was added at run
// time is taken over by one that has it in its configuration, and by no other.
func TestTakeoverTakesEveryExport(t *testing.T) {
	t.Parallel()
	late := "late=file:" + testbed.SparseFile(t, 1<<20)
	s := newSuccession(t, "--listen", listenAt(t, "shm"), "--export", "disk=file:"+testbed.SparseFile(t, 1<<20))
	tool := func(args ...string) *testbed.Tool {
		return testbed.StartPath(t, nil, testbed.Program(t), args...)
	}
	if p := tool("export", "add", "--admin", s.admin, late); p.Wait(t, testbed.ToolLimit) != 0 {
		t.Fatalf("%s", p.Output())
	}
	p := tool(slices.Concat([]string{"target", "--takeover", s.admin, "--admin", "none"}, s.args)...)
	if code := p.Wait(t, testbed.ToolLimit); code == 0 || !strings.Contains(p.Output(), `export "late" would end`) {
		t.Errorf("exit code %d\n%s", code, p.Output())
	}
	s.args = append(s.args, "--export", late)
	s.next()
	a := testbed.AttachDisk(t, testbed.Program(t), s.target, "late")
	k := testbed.Connect(t, a.URI("late", "nbd+unix"))
	k.Ask("write 0 4096", "ok")
	k.Disconnect()
	a.Stop()
	s.target.Stop()
}

// TestTakeoverIsRefused: a disk that ends with its process is not taken over,
// nor memory by a target that has another disk in its place; and the target
// serves on with what was written.
func TestTakeoverIsRefused(t *testing.T) {
	t.Parallel()
	memory, plain := "memory:1MiB", "file:"+testbed.SparseFile(t, 1<<20)
	for _, c := range []struct {
		spec, next string
		code       int
		reason     string
	}{
		{"null:1MiB", "null:1MiB", 75, "keeps no identity"},
		{plain + "?identity=0", plain + "?identity=0", 75, "keeps no identity"},
		{memory, "memory:2MiB", 64, "give it the same size"},
		{memory, plain, 64, `export "disk" of the target before is in memory`},
	} {
		t.Run(c.spec+", "+c.next, func(t *testing.T) {
			s := newSuccession(t, "--listen", listenAt(t, "shm"), "--export", "disk="+c.spec)
			a := testbed.AttachDisk(t, testbed.Program(t), s.target, "disk")
			k := testbed.Connect(t, a.URI("disk", "nbd+unix"))
			k.Ask("fill 0 4096 5", "ok")
			p := testbed.StartPath(t, nil, testbed.Program(t), slices.Concat([]string{"target", "--takeover", s.admin, "--admin", "none"}, s.args[:3], []string{"disk=" + c.next})...)
			if code := p.Wait(t, testbed.ToolLimit); code != c.code || !strings.Contains(p.Output(), c.reason) {
				t.Errorf("exit code %d\n%s", code, p.Output())
			}
			if c.spec != "null:1MiB" {
				k.Ask("check 0 4096 5", "ok")
			}
			k.Ask("write 0 4096", "ok")
			k.Ask("flush", "ok")
			k.Disconnect()
			a.Stop()
			s.target.Stop()
		})
	}
}

// TestTakeoverWithoutRemovedMemory: a disk in memory that was removed, and that
// a client still has, keeps no other disk from moving, whether the successor
// serves or dies.
func TestTakeoverWithoutRemovedMemory(t *testing.T) {
	t.Parallel()
	folder := testbed.Folder(t)
	socket, file := filepath.Join(folder, "n"), filepath.Join(folder, "viablk.yaml")
	configure := func(exports ...string) {
		t.Helper()
		text := "target:\n  exports:\n"
		for _, name := range exports {
			text += "    - {name: " + name + ", backend: \"memory:1MiB\"}\n"
		}
		testbed.Must(t, os.WriteFile(file, []byte(text), 0o600))
	}
	configure("disk")
	s := newSuccession(t, "--config", file, "--listen", "nbd+unix:///?socket="+socket, "--drain-timeout", "1s")
	reload := func() {
		t.Helper()
		if p := testbed.StartPath(t, nil, testbed.Program(t), "reload", "--admin", s.admin); p.Wait(t, testbed.ToolLimit) != 0 {
			t.Fatalf("%s", p.Output())
		}
	}
	for i, serves := range []func(){func() { dieAsSuccessor(t, "opened", s.admin) }, s.next} {
		configure("disk", "gone")
		reload()
		k := testbed.Connect(t, "nbd+unix:///disk?socket="+socket)
		k.Ask(fmt.Sprintf("fill 0 4096 %d", i+1), "ok")
		k.Disconnect()
		stays := testbed.Connect(t, "nbd+unix:///gone?socket="+socket)
		stays.Ask("fill 0 4096 9", "ok")
		configure("disk")
		reload()
		stays.Ask("check 0 4096 9", "ok")
		serves()
		k = testbed.Connect(t, "nbd+unix:///disk?socket="+socket)
		k.Ask(fmt.Sprintf("check 0 4096 %d", i+1), "ok")
		k.Disconnect()
	}
	s.target.Stop()
}

// TestTakeoverOfAbandonedTarget: a target that gives up a disk that does not
// answer, at the end of its time to drain, leaves its memory to the successor.
func TestTakeoverOfAbandonedTarget(t *testing.T) {
	t.Parallel()
	socket := filepath.Join(testbed.Folder(t), "n")
	s := newSuccession(t, "--listen", "nbd+unix:///?socket="+socket, "--drain-timeout", "1s",
		"--export", "disk=memory:1MiB", "--export", "slow=delay:write=1h:file:"+testbed.SparseFile(t, 1<<20))
	k := testbed.Connect(t, "nbd+unix:///disk?socket="+socket)
	k.Ask("fill 0 4096 7", "ok")
	k.Disconnect()
	writer := testbed.StartPath(t, nil, testbed.Locate("qemu-io"), "-f", "raw", "nbd+unix:///slow?socket="+socket, "-c", "write 0 4096")
	testbed.Eventually(t, "a request in the slow disk", func() (any, bool) {
		n := s.target.Status().NBD.InFlight
		return n, n > 0
	})
	before := s.target
	s.start("--takeover", s.admin)
	if code := before.ExitCode(); code != 74 || !strings.Contains(before.Output(), `export \"slow\" does not answer`) {
		t.Errorf("the target that cut off a request ends with exit code %d\n%s", code, before.Output())
	}
	writer.Wait(t, testbed.ToolLimit)
	k = testbed.Connect(t, "nbd+unix:///disk?socket="+socket)
	k.Ask("check 0 4096 7", "ok")
	k.Disconnect()
	s.target.Stop()
}
