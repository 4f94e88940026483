package integration

import (
	"path/filepath"
	"testing"
)

// disk is an export for a test.
type disk struct {
	name, spec string
}

// service is a disk that NBD clients reach in some way.
type service struct {
	uri    string
	target *process // that has the disk
	attach *process // that clients connect to
}

// way is a way from an NBD client to a disk.
type way struct {
	name  string
	serve func(t testing.TB, binary string, d disk) service
}

// ways are all of them: what holds for a client holds on each.
var ways = []way{
	{"nbd-unix", func(t testing.TB, binary string, d disk) service {
		p := startTarget(t, binary, "nbd+unix:///?socket="+filepath.Join(folder(t), "n"), d)
		return service{p.uri(d.name, "nbd+unix"), p, p}
	}},
	{"nbd-tcp", func(t testing.TB, binary string, d disk) service {
		p := startTarget(t, binary, "nbd://127.0.0.1:0", d)
		return service{p.uri(d.name, "nbd"), p, p}
	}},
	{"chain", func(t testing.TB, binary string, d disk) service {
		p := startTarget(t, binary, "via+shm:///?socket="+filepath.Join(folder(t), "v"), d)
		a := attachDisk(t, binary, p, d.name)
		return service{a.uri(d.name, "nbd+unix"), p, a}
	}},
	{"up", func(t testing.TB, binary string, d disk) service {
		p := startBinary(t, binary, "up", "--export", d.name+"="+d.spec,
			"--admin", filepath.Join(folder(t), "up"))
		return service{p.uri(d.name, "nbd+unix"), p, p}
	}},
}

// chainWay is the way through two processes.
var chainWay = ways[2]

// impatientWay is the way through two processes of a disk that does not wait for its
// target.
var impatientWay = way{"impatient chain", func(t testing.TB, binary string, d disk) service {
	p := startTarget(t, binary, "via+shm:///?socket="+filepath.Join(folder(t), "v"), d)
	a := attachDisk(t, binary, p, d.name, "--ctrl-loss-tmo", "0s")
	return service{a.uri(d.name, "nbd+unix"), p, a}
}}

// impatientWays are the ways on which a client hears of the end of the target.
var impatientWays = []way{ways[0], ways[1], impatientWay, ways[3]}

// startTarget starts a target that serves disks at one URI.
func startTarget(t testing.TB, binary, listen string, disks ...disk) *process {
	t.Helper()
	return startTargetAt(t, startCommand, binary, listen, disks...)
}

// startTargetAt is startTarget at a place.
func startTargetAt(t testing.TB, at place, binary, listen string, disks ...disk) *process {
	t.Helper()
	args := []string{"target", "--listen", listen, "--admin", filepath.Join(folder(t), "target")}
	for _, d := range disks {
		args = append(args, "--export", d.name+"="+d.spec)
	}
	return startBinaryAt(t, at, binary, args...)
}

// attachDisk attaches a disk of a target, under its own name.
func attachDisk(t testing.TB, binary string, p *process, name string, more ...string) *process {
	t.Helper()
	return attachURIAt(t, startCommand, binary, p.uri(name, "via+shm"), name, more...)
}

// attachURIAt attaches the disk of a URI at a place, under a name.
func attachURIAt(t testing.TB, at place, binary, uri, name string, more ...string) *process {
	t.Helper()
	here := folder(t)
	args := []string{
		"attach", uri,
		"--nbd", "nbd+unix:///" + name + "?socket=" + filepath.Join(here, "n"),
		"--admin", filepath.Join(here, "attach"),
	}
	return startBinaryAt(t, at, binary, append(args, more...)...)
}

// eachWay runs a test on every way to a disk, some at the same time: much of what
// clients and servers do is wait for each other. Nothing follows it in its test.
func eachWay(t *testing.T, d func(t testing.TB) disk, test func(t *testing.T, s service)) {
	for _, w := range ways {
		t.Run(w.name, func(t *testing.T) {
			t.Parallel()
			test(t, w.serve(t, program(t), d(t)))
		})
	}
}

// memoryDisk is a disk in memory.
func memoryDisk(size string) func(testing.TB) disk {
	return func(testing.TB) disk { return disk{"disk", "memory:" + size} }
}

// fileDisk is a disk in a sparse file.
func fileDisk(size int64) func(testing.TB) disk {
	return func(t testing.TB) disk { return disk{"disk", "file:" + sparseFile(t, size)} }
}
