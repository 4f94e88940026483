package compare

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/viablk/viablk/integration/testbed"
)

// contest is a comparison of servers of the same kind of disk over the same
// wire.
type contest struct {
	name  string
	disk  string // "memory", or the folder of a file
	wire  string // "unix", "tcp" or "tls"
	jobs  int
	chain bool // ours through VIA too
	// beside qemu-nbd too; it has no disk in memory and serves a file in
	// /dev/shm
	qemu bool
}

// contests are the comparison of NBD servers; see docs/benchmarking.md.
func contests(t testing.TB) []contest {
	onDisk := testbed.Setting("VIABLK_BENCH_DIR", t.TempDir())
	return []contest{
		{name: "memory-unix", disk: "memory", wire: "unix", jobs: 1, chain: true, qemu: true},
		{name: "memory-tcp", disk: "memory", wire: "tcp", jobs: 1, qemu: true},
		{name: "memory-tls", disk: "memory", wire: "tls", jobs: 1},
		{name: "memory-four", disk: "memory", wire: "unix", jobs: 4, chain: true},
		{name: "tmpfs-unix", disk: "/dev/shm", wire: "unix", jobs: 1, chain: true, qemu: true},
		{name: "tmpfs-tcp", disk: "/dev/shm", wire: "tcp", jobs: 1, qemu: true},
		{name: "disk-unix", disk: onDisk, wire: "unix", jobs: 1, chain: true, qemu: true},
		{name: "disk-tcp", disk: onDisk, wire: "tcp", jobs: 1, qemu: true},
	}
}

func (c contest) String() string {
	disk := "a disk in memory"
	if c.disk != "memory" {
		disk = "a file in " + c.disk
	}
	wire := map[string]string{"unix": "a unix socket", "tcp": "TCP", "tls": "TCP and TLS"}[c.wire]
	return fmt.Sprintf("%s, %s, connections: %d", disk, wire, c.jobs)
}

// start starts the servers, each with a disk of its own, and fills the disks.
func (c contest) start(t testing.TB, size string) *comparison {
	t.Helper()
	b := &comparison{size: size, jobs: c.jobs}
	secure := ""
	if c.wire == "tls" {
		secure = testbed.Certificates(t, "fio")
		b.client = testbed.ClientWith(t, filepath.Join(secure, "fio"))
	}
	program := testbed.PlainProgram(t)
	b.ours = append(b.ours, c.plain(t, program, size, secure))
	if c.chain {
		b.ours = append(b.ours, c.through(t, program, size))
	}
	b.controls = append(b.controls, c.nbdkit(t, size, secure))
	if c.qemu {
		b.controls = append(b.controls, c.qemuNBD(t, size))
	}
	b.fill(t)
	return b
}

// file makes the file of a disk, which is gone when the test ends.
func (c contest) file(t testing.TB, size string) string {
	t.Helper()
	at := c.disk
	if at == "memory" {
		at = "/dev/shm"
	}
	f, err := os.CreateTemp(at, "viablk-bench-")
	testbed.Must(t, err)
	t.Cleanup(func() { _ = os.Remove(f.Name()) })
	testbed.Must(t, f.Close())
	testbed.Run(t, "qemu-img", "create", "-q", "-f", "raw", f.Name(), size)
	return f.Name()
}

// spec is the export of our servers.
func (c contest) spec(t testing.TB, size string) string {
	if c.disk == "memory" {
		return "memory:" + size
	}
	return "file:" + c.file(t, size)
}

// plain starts our server without VIA.
func (c contest) plain(t testing.TB, program, size, secure string) contender {
	t.Helper()
	d := testbed.Disk{Name: "disk", Spec: c.spec(t, size)}
	way := testbed.Ways[0]
	switch c.wire {
	case "tcp":
		way = testbed.Ways[1]
	case "tls":
		p := testbed.StartBinary(t, program, "target", "--listen", "nbds://127.0.0.1:0", "--export", d.Name+"="+d.Spec,
			"--admin", filepath.Join(testbed.Folder(t), "target"), "--tls", "require", "--tls-certificates", filepath.Join(secure, "server"))
		return contender{name: "plain", uri: p.URI(d.Name, "nbds"), processes: []int{p.PID()}}
	}
	s := way.Serve(t, program, d)
	return contender{name: "plain", uri: s.URI, processes: []int{s.Target.PID()}}
}

// through starts our server with VIA over shared memory in between.
func (c contest) through(t testing.TB, program, size string) contender {
	t.Helper()
	s := testbed.ChainWay.Serve(t, program, testbed.Disk{Name: "disk", Spec: c.spec(t, size)})
	return contender{name: "chain", uri: s.URI, processes: []int{s.Target.PID(), s.Attach.PID()}}
}

// nbdkit starts nbdkit with the plugin for the disk.
func (c contest) nbdkit(t testing.TB, size, secure string) contender {
	t.Helper()
	plugin := []string{"memory", size}
	if c.disk != "memory" {
		plugin = []string{"file", c.file(t, size)}
	}
	if c.wire == "unix" {
		socket := filepath.Join(testbed.Folder(t), "k")
		p := testbed.StartTool(t, "nbdkit", append([]string{"-f", "-U", socket}, plugin...)...)
		testbed.WaitForSocket(t, socket)
		return contender{name: "nbdkit", uri: "nbd+unix:///?socket=" + socket, processes: []int{p.Cmd.Process.Pid}}
	}
	port, scheme := testbed.FreePort(t), "nbd"
	args := []string{"-f", "-i", "127.0.0.1", "-p", port}
	if c.wire == "tls" {
		scheme = "nbds"
		args = append(args, "--tls=require", "--tls-certificates="+filepath.Join(secure, "server"))
	}
	p := testbed.StartTool(t, "nbdkit", append(args, plugin...)...)
	testbed.WaitForPort(t, port)
	return contender{name: "nbdkit", uri: scheme + "://127.0.0.1:" + port, processes: []int{p.Cmd.Process.Pid}}
}

// qemuNBD starts qemu-nbd on a file, with threads as its manual has them for a
// page cache.
func (c contest) qemuNBD(t testing.TB, size string) contender {
	t.Helper()
	args := []string{"-t", "-f", "raw", "--cache=writeback", "--aio=threads", "-e", "16", "-x", ""}
	file := c.file(t, size)
	if c.wire == "unix" {
		socket := filepath.Join(testbed.Folder(t), "q")
		p := testbed.StartTool(t, "qemu-nbd", append(args, "-k", socket, file)...)
		testbed.WaitForSocket(t, socket)
		return contender{name: "qemu-nbd", uri: "nbd+unix:///?socket=" + socket, processes: []int{p.Cmd.Process.Pid}}
	}
	port := testbed.FreePort(t)
	p := testbed.StartTool(t, "qemu-nbd", append(args, "-b", "127.0.0.1", "-p", port, file)...)
	testbed.WaitForPort(t, port)
	return contender{name: "qemu-nbd", uri: "nbd://127.0.0.1:" + port, processes: []int{p.Cmd.Process.Pid}}
}
