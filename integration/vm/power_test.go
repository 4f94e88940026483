//go:build vm

package vm

import (
	"context"
	"flag"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/viablk/viablk/integration/vm/crashcheck"
	"github.com/viablk/viablk/internal/block"
	"github.com/viablk/viablk/internal/nbd"
	"github.com/viablk/viablk/target/backend"
)

var (
	powerSeed = flag.Uint64("power.seed", 0, "seed of power cuts; 0 is another one each time")
	powerCuts = flag.Int("power.cuts", 3, "power cuts of a target")
)

// powerBed is a machine with an initiator, which stays, and the line to a
// target, which loses its power.
type powerBed struct {
	*VM
	ctx    context.Context
	line   *line
	files  map[string]string // of target machines
	random *rand.Rand
}

// Addresses of the target.
const (
	targetMAC  = "52:54:00:77:01:01"
	targetHost = "10.77.1.1:4791"
)

// exports are the disks of a target: a raw device, a sparse file of a file
// system, and an overlay there over a base that must stay as it is.
var exports = []string{"raw", "file", "cow"}

// TestTargetLosesPower cuts the power of a machine with a target in the middle
// of writes, again and again. Under its disks lies an NBD server of ours that
// loses what was not flushed, sector by sector: all of it, or some. The
// promises to an initiator on another machine hold when the target is back, on
// a raw device, in a file of ext4 and in an overlay.
//
// A target without fsync, and without RWF_DSYNC, would fail the test.
func TestTargetLosesPower(t *testing.T) {
	t.Parallel()
	seed := *powerSeed
	if seed == 0 {
		seed = rand.Uint64()
	}
	t.Logf("replay with -power.seed %d", seed)
	line, end := newLine(t)
	worker := Program(t, modulePath+"/integration/vm/worker")
	bed := &powerBed{
		VM: Boot(t, Config{
			CPUs: 1, Files: map[string]string{"/usr/bin/worker": worker}, Limit: 21 * waitLimit, // of a host that is busy
			NICs: []NIC{{End: end, Address: "10.77.1.2/24", MTU: 4500}},
		}),
		line: line, random: rand.New(rand.NewPCG(seed, 0)),
		files: map[string]string{"/usr/bin/viablk": Program(t, modulePath+"/cmd/viablk")},
	}
	var cancel context.CancelFunc
	bed.ctx, cancel = context.WithTimeout(t.Context(), 20*waitLimit)
	defer cancel()
	for _, c := range []struct {
		name   string
		cuts   int
		prefix []string
		loses  bool
	}{
		{"honest", *powerCuts, nil, false},
		{"without fsync", 1, strings.Fields("strace -f -qq -o /dev/null --seccomp-bpf " +
			"-e trace=fsync,fdatasync,sync_file_range,pwritev2 -e inject=fsync,fdatasync:retval=0 -e inject=pwritev2:error=EOPNOTSUPP"), true},
	} {
		t.Run(c.name, func(t *testing.T) { bed.test(t, c.cuts, c.prefix, c.loses) })
	}
	t.Run("initiator waits", bed.testWaits)
}

// test cuts the power of a target several times. loses says that promises will
// not have been kept, on any disk.
func (b *powerBed) test(t *testing.T, cuts int, prefix []string, loses bool) {
	var disks []*losingDisk
	for range 2 {
		disks = append(disks, newLosingDisk(t))
	}
	logs := fmt.Sprintf("/%d-", b.random.Uint32())
	for cut := range cuts {
		target := b.bootTarget(t, disks, cut == 0, prefix, cut%2 == 1)
		if cut > 0 {
			b.check(t, logs, exports, false)
		}
		var writers []*Command
		for _, export := range exports {
			writers = append(writers, b.write(t, logs, export))
		}
		for i, w := range writers {
			answers := 16 * (4 + b.random.IntN(12)) // of which it says so
			if err := w.Await(b.ctx, fmt.Sprintf("answered %d\n", answers)); err != nil {
				t.Fatalf("%s: %v; %s", exports[i], err, target.log())
			}
		}
		target.cut(t, b, disks, cut%2 == 0)
		endWriters(t, writers)
	}
	target := b.bootTarget(t, disks, false, nil, false)
	b.check(t, logs, exports, loses)
	target.cut(t, b, disks, false)
}

// testWaits has initiators wait for a target that lost its power. An initiator
// without unflushed writes goes on after the reconnect. An initiator with
// unflushed writes gets errors, because they may be lost: it ends, unless all
// happened to be covered. In either case promises are kept, also those from
// after the reconnect.
func (b *powerBed) testWaits(t *testing.T) {
	disks := []*losingDisk{newLosingDisk(t), newLosingDisk(t)}
	logs := fmt.Sprintf("/%d-", b.random.Uint32())
	target := b.bootTarget(t, disks, true, nil, false)
	careless := b.write(t, logs, "raw", "-wait", "1m")
	careful := b.write(t, logs, "file", "-wait", "1m", "-durable")
	for _, w := range []*Command{careless, careful} {
		must(t, w.Await(b.ctx, "answered 64\n"))
	}
	target.cut(t, b, disks, true)
	before := strings.Count(careful.Output(), "\n")
	target = b.bootTarget(t, disks, false, nil, false)
	if err := careful.Await(b.ctx, fmt.Sprintf("answered %d\n", 16*(before+8))); err != nil {
		t.Fatalf("who had nothing to lose does not go on: %v; %s", err, target.log())
	}
	target.cut(t, b, disks, true)
	endWriters(t, []*Command{careless, careful})
	t.Logf("the careless one was told: %v", strings.Contains(careless.Output(), "lost:"))
	target = b.bootTarget(t, disks, false, nil, false)
	b.check(t, logs, []string{"raw", "file"}, false)
	target.cut(t, b, disks, false)
}

// write starts a writer.
func (b *powerBed) write(t *testing.T, logs, export string, more ...string) *Command {
	t.Helper()
	w, err := b.Start(b.ctx, append([]string{
		"worker", "log-write", "-host", targetHost, "-export", export,
		"-log", logs + export, "-seed", fmt.Sprint(b.random.Uint64()), "-blocks", fmt.Sprint(exportSize / crashcheck.Block),
	}, more...)...)
	must(t, err)
	return w
}

// endWriters has writers keep their logs.
func endWriters(t *testing.T, writers []*Command) {
	t.Helper()
	for _, w := range writers {
		must(t, w.Signal(syscall.SIGTERM))
		r := w.Wait()
		if !r.OK() {
			t.Fatal(r)
		}
		t.Log(lastLine(r.Stdout))
	}
}

// check compares the disks with what they promised.
func (b *powerBed) check(t *testing.T, logs string, exports []string, loses bool) {
	t.Helper()
	for _, export := range exports {
		r := b.Run(b.ctx, "worker", "log-check", "-host", targetHost, "-export", export, "-log", logs+export)
		if loses && r.Code == 1 && strings.Contains(r.Stderr, "was promised") {
			t.Logf("%s: found out: %s", export, strings.SplitN(r.Stderr, "\n", 2)[0])
		} else if loses || !r.OK() {
			t.Errorf("%s: promises were to be kept: %v: %v", export, !loses, r)
		} else {
			t.Logf("%s: %s", export, lastLine(r.Stdout))
		}
	}
}

func lastLine(text string) string {
	text = strings.TrimSpace(text)
	return text[strings.LastIndexByte(text, '\n')+1:]
}

// powerTarget is a machine with a target.
type powerTarget struct {
	*VM
	process *Command
}

// log is what the target and its kernel said.
func (p powerTarget) log() string { return p.process.snapshot().String() + p.Console() }

// bootTarget boots a machine with a target of the disks, which are new or not.
func (b *powerBed) bootTarget(t *testing.T, disks []*losingDisk, isNew bool, prefix []string, direct bool) powerTarget {
	t.Helper()
	c := Config{
		CPUs: 1, Modules: []string{"ext4"}, Tools: []string{"e2fsprogs/mkfs.ext4", "strace/strace"}, Files: b.files,
		NICs: []NIC{{End: b.line.plug(t), Address: "10.77.1.1/24", MTU: 4500, MAC: targetMAC}},
	}
	for _, d := range disks {
		c.Disks = append(c.Disks, Disk{NBD: d.serve(t)})
	}
	v := Boot(t, c)
	if isNew {
		v.Must("sh", "-ec", fmt.Sprintf(`mkfs.ext4 -q /dev/vdb; mount /dev/vdb /mnt; truncate -s %[1]d /mnt/disk /mnt/base
			dd if=/dev/urandom bs=%[1]d count=1 >>/mnt/base; sha256sum /mnt/base >/mnt/sum
			timeout -s TERM 60 viablk up --export cow=cow:/mnt/base,/mnt/cow?create=1 --run true; sync; umount /mnt`, exportSize))
	}
	v.Must("mount", "/dev/vdb", "/mnt")
	v.Must("sha256sum", "-c", "/mnt/sum")
	how, also := "", ""
	if direct {
		how, also = "?direct=1", "?io=threads"
	}
	target, err := v.Start(b.ctx, append(prefix, "viablk", "target", "--insecure", "--listen", "via+roce://10.77.1.1/",
		"--keepalive", "2s", // a host that is busy stops its machines for seconds
		"--export", "raw=file:/dev/vda"+how, "--export", "file=file:/mnt/disk"+how, "--export", "cow=cow:/mnt/base,/mnt/cow"+also)...)
	must(t, err)
	must(t, target.Await(b.ctx, "via+roce"))
	return powerTarget{v, target}
}

// cut cuts the power of the machine and what its disks held in their caches:
// all of it, or what chance decides.
func (p powerTarget) cut(t *testing.T, b *powerBed, disks []*losingDisk, some bool) {
	t.Helper()
	must(t, p.Kill())
	b.line.unplug()
	for _, d := range disks {
		d.lose(t, some, b.random.Uint64())
	}
}

// exportSize is what logs write to, and diskSize what is around it, bytes.
const (
	exportSize = 2 << 20
	diskSize   = 64 << 20
)

// losingDisk is a disk with a volatile cache, served to one machine after the
// other.
type losingDisk struct {
	kept   block.Device
	folder string

	cache  *backend.Volatile // while it is served
	cancel context.CancelFunc
	served chan error
}

func newLosingDisk(t *testing.T) *losingDisk {
	t.Helper()
	kept, err := backend.Open(fmt.Sprintf("memory:%d", diskSize), backend.Options{})
	must(t, err)
	folder, err := os.MkdirTemp("", "viablk-disk-") // the path of a socket is short
	must(t, err)
	d := &losingDisk{kept: kept, folder: folder}
	t.Cleanup(func() {
		if d.cache != nil {
			d.lose(t, false, 0)
		}
		must(t, kept.Close())
		must(t, os.RemoveAll(folder))
	})
	return d
}

// unclosed is a device that outlives a user who closes it.
type unclosed struct{ block.Device }

func (unclosed) Close() error { return nil }

// serve serves the disk and returns the socket.
func (d *losingDisk) serve(t *testing.T) string {
	t.Helper()
	socket := filepath.Join(d.folder, "nbd")
	d.cache = backend.NewVolatile(unclosed{d.kept})
	served, err := nbd.NewExports(nbd.Export{Name: "disk", Default: true, Device: d.cache})
	must(t, err)
	var ctx context.Context
	ctx, d.cancel = context.WithCancel(context.Background())
	var l net.Listener
	l, err = nbd.ListenUnix(ctx, socket, 0o600)
	must(t, err)
	server := &nbd.Server{Exports: served}
	d.served = make(chan error, 1)
	go func() { d.served <- server.Serve(ctx, l) }()
	return socket
}

// lose ends serving and loses what was not flushed, all or some of it.
func (d *losingDisk) lose(t *testing.T, some bool, seed uint64) {
	t.Helper()
	d.cancel()
	<-d.served // that it was cancelled
	if some {
		must(t, d.cache.Crash(seed))
	}
	must(t, d.cache.Close())
	d.cache = nil
}
