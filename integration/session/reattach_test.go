package session

import (
	"bytes"
	"flag"
	"fmt"
	"io"
	"math/rand/v2"
	"path/filepath"
	"strings"
	"testing"

	"github.com/viablk/viablk/integration/testbed"
)

var reattaches = flag.Int("session.reattaches", 2, "how often a process takes over a socket from one that was killed or ended")

// socketBed starts processes that serve a disk at one socket, one after
// another.
type socketBed struct {
	t         *testing.T
	uri, path string
}

func newSocketBed(t *testing.T, p *testbed.Process, provider string) socketBed {
	return socketBed{t, p.URI("disk", "via+"+provider), filepath.Join(testbed.Folder(t), "n")}
}

func (b socketBed) args(more ...string) []string {
	return append([]string{"attach", b.uri, "--nbd", "nbd+unix:///disk?socket=" + b.path, "--admin", filepath.Join(testbed.Folder(b.t), "a")}, more...)
}

func (b socketBed) attach(more ...string) *testbed.Process {
	b.t.Helper()
	return testbed.StartBinary(b.t, testbed.Program(b.t), b.args(more...)...)
}

// TestSocketIsReattachedUnderQEMU: QEMU has writes in flight when the process
// behind its disk is killed, or ends, and the next one takes over. No request
// fails, and reads find what was written last.
func TestSocketIsReattachedUnderQEMU(t *testing.T) {
	t.Parallel()
	for i, provider := range []string{"shm", "roce"} {
		for name, end := range map[string]func(*testbed.Process){
			"killed": (*testbed.Process).Crash,
			"ended":  (*testbed.Process).Stop,
		} {
			t.Run(provider+" "+name, func(t *testing.T) {
				t.Parallel()
				listen := fmt.Sprintf("via+roce://127.77.%d.%d/", 90+i, len(name))
				if provider == "shm" {
					listen = "via+shm:///?socket=" + filepath.Join(testbed.Folder(t), "v")
				}
				d := testbed.FileDisk(qemuParts * qemuPart)(t)
				p := testbed.StartTarget(t, testbed.Program(t), listen, testbed.Disk{Name: d.Name, Spec: "delay:write=3ms:" + d.Spec})
				b := newSocketBed(t, p, provider)
				a := b.attach("--reattach")
				load := startQEMULoad(t, b.path)
				var seen uint64
				for range *reattaches {
					testbed.Eventually(t, "more writes", func() (any, bool) {
						n := p.Status().Targets[0].Exports[0].Stats.Writes
						return n, n > seen+50
					})
					end(a)
					a = b.attach("--reattach")
					seen = p.Status().Targets[0].Exports[0].Stats.Writes
				}
				testbed.Eventually(t, "writes through the last process", func() (any, bool) {
					n := a.Status().NBD.Total.Writes
					return n, n > 50
				})
				load.end()
				if st := a.Status(); st.NBD.Total.Errors+st.Initiators[0].Stats.Errors != 0 {
					t.Errorf("%d and %d errors", st.NBD.Total.Errors, st.Initiators[0].Stats.Errors)
				}
				a.Stop()
			})
		}
	}
}

const (
	qemuParts = 64
	qemuPart  = 128 << 10 // bytes
)

// qemuLoad is qemu-io that writes parts of a disk, several at a time, and reads
// them and others back.
type qemuLoad struct {
	t    *testing.T
	tool *testbed.Tool
	over chan struct{}
}

// startQEMULoad starts a load that waits for a lost server.
func startQEMULoad(t *testing.T, path string) *qemuLoad {
	t.Helper()
	testbed.Requires(t, "qemu-io")
	l := &qemuLoad{
		t, testbed.NewTool(nil, testbed.Locate("qemu-io"), "--image-opts",
			"driver=raw,file.driver=nbd,file.export=disk,file.reconnect-delay=60,file.open-timeout=60,file.server.type=unix,file.server.path="+path),
		make(chan struct{}),
	}
	commands, w := io.Pipe()
	rounds := make(lineBell, qemuAhead)
	l.tool.Cmd.Stdin, l.tool.Cmd.Stdout = commands, io.MultiWriter(l.tool.Cmd.Stdout, rounds)
	l.tool.Start(t, testbed.StartCommand)
	go func() {
		defer w.Close()
		random, patterns := rand.New(rand.NewPCG(1, 2)), [qemuParts]int{}
		for round := 1; ; round++ {
			if round > qemuAhead {
				select { // all that is ahead is to be done at the end
				case <-rounds:
				case <-l.over:
					return
				case <-l.tool.Ended:
					return
				}
			}
			if _, err := io.WriteString(w, qemuRound(random, &patterns, round)); err != nil {
				return // it has ended: end tells
			}
		}
	}()
	return l
}

// qemuAhead is how many rounds qemu-io has on its way. It reads 4 KiB of
// commands at once, some 8 rounds, and then executes one at a time while there
// are more to read: with less it would wait for ever.
const qemuAhead = 24

// qemuRound is the commands of one round. patterns is what the parts hold.
func qemuRound(random *rand.Rand, patterns *[qemuParts]int, round int) string {
	var text strings.Builder
	for _, part := range random.Perm(qemuParts)[:8] {
		patterns[part] = 1 + round%250
		fmt.Fprintf(&text, "aio_write -q -P %d %d %d\n", patterns[part], part*qemuPart, qemuPart)
	}
	text.WriteString("aio_flush\n")
	for _, part := range random.Perm(qemuParts)[:8] {
		fmt.Fprintf(&text, "read -q -P %d %d %d\n", patterns[part], part*qemuPart, qemuPart)
	}
	if round%4 == 0 {
		text.WriteString("flush\n")
	}
	text.WriteString("length\n") // the one that prints a line
	return text.String()
}

// lineBell rings when a line was printed.
type lineBell chan struct{}

// Write implements io.Writer.
func (b lineBell) Write(text []byte) (int, error) {
	for range bytes.Count(text, []byte("\n")) {
		select {
		case b <- struct{}{}:
		default:
		}
	}
	return len(text), nil
}

// end ends the load, which must have seen no error.
func (l *qemuLoad) end() {
	l.t.Helper()
	close(l.over)
	code, out := l.tool.Wait(l.t, testbed.ToolLimit), l.tool.Output()
	if at := strings.Index(strings.ToLower(out), "fail"); code != 0 || at >= 0 || strings.Contains(out, "error") {
		l.t.Errorf("qemu-io: exit code %d, %s", code, out[max(0, at-100):min(len(out), max(0, at)+1000)])
	}
}

// TestReattachAfterAnotherWriter: after another client wrote, no process
// continues for the clients of a socket, which would resend older writes; nor
// after writes may be lost. One that begins anew does.
func TestReattachAfterAnotherWriter(t *testing.T) {
	t.Parallel()
	for _, ends := range []string{"killed", "ended"} {
		t.Run(ends, func(t *testing.T) {
			t.Parallel()
			p := testbed.StartTarget(t, testbed.Program(t), "via+shm:///?socket="+filepath.Join(testbed.Folder(t), "v"), testbed.FileDisk(4<<20)(t))
			b := newSocketBed(t, p, "shm")
			a := b.attach("--reattach")
			testbed.Refused(t, 75, `socket is in use by process [0-9]+`, b.args("--reattach")...)
			k := testbed.Connect(t, a.URI("disk", "nbd+unix"))
			k.Ask("fill 0 4096 1", "ok")
			if ends == "killed" {
				a.Crash()
			} else {
				k.Disconnect()
				a.Stop()
			}
			a = b.attach("--reattach")
			a.Crash()
			testbed.Eventually(t, "a disk without clients", func() (any, bool) {
				x := p.Status().Targets[0].Exports[0]
				return x, len(x.Clients) == 0
			})

			other := testbed.AttachDisk(t, testbed.Program(t), p, "disk")
			k = testbed.Connect(t, other.URI("disk", "nbd+unix"))
			k.Ask("fill 0 4096 2", "ok")
			k.Disconnect()
			other.Stop()

			why := `another client wrote to the disk meanwhile .*: end the clients of .*/n, check what is on the disk, and attach it without --reattach`
			for range 2 { // a refusal leaves the record
				testbed.Refused(t, 1, why, b.args("--reattach")...)
			}
			k = testbed.Connect(t, b.attach().URI("disk", "nbd+unix"))
			k.Ask("check 0 4096 2", "ok")
		})
	}
}

// TestReattachAfterAReboot: the machine of the target was started again while
// no process served the socket, and its disk was open: writes may be lost.
func TestReattachAfterAReboot(t *testing.T) {
	t.Parallel()
	listen, d := "via+shm:///?socket="+filepath.Join(testbed.Folder(t), "v"), testbed.FileDisk(4<<20)(t)
	p := testbed.StartTarget(t, testbed.Program(t), listen, d)
	b := newSocketBed(t, p, "shm")
	a := b.attach()
	k := testbed.Connect(t, a.URI("disk", "nbd+unix"))
	k.Ask("fill 0 4096 1", "ok")
	a.Crash()
	p.Crash()
	testbed.StartTargetAt(t, testbed.OtherBoot(t), testbed.Program(t), listen, d)
	testbed.Refused(t, 1, `writes that were answered may be lost: end the clients of `, b.args("--reattach")...)
}
