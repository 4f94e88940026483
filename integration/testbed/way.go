package testbed

import (
	"path/filepath"
	"testing"
)

// Disk is an export for a test.
type Disk struct {
	Name, Spec string
}

// Service is a disk that NBD clients reach in some way.
type Service struct {
	URI    string
	Target *Process // that has the disk
	Attach *Process // that clients connect to
}

// Way is a way from an NBD client to a disk.
type Way struct {
	Name  string
	Serve func(t testing.TB, binary string, d Disk) Service
}

// Ways are all of them: what holds for a client holds on each.
var Ways = []Way{
	{"nbd-unix", func(t testing.TB, binary string, d Disk) Service {
		p := StartTarget(t, binary, "nbd+unix:///?socket="+filepath.Join(Folder(t), "n"), d)
		return Service{p.URI(d.Name, "nbd+unix"), p, p}
	}},
	{"nbd-tcp", func(t testing.TB, binary string, d Disk) Service {
		p := StartTarget(t, binary, "nbd://127.0.0.1:0", d)
		return Service{p.URI(d.Name, "nbd"), p, p}
	}},
	{"chain", func(t testing.TB, binary string, d Disk) Service {
		p := StartTarget(t, binary, "via+shm:///?socket="+filepath.Join(Folder(t), "v"), d)
		a := AttachDisk(t, binary, p, d.Name)
		return Service{a.URI(d.Name, "nbd+unix"), p, a}
	}},
	{"up", func(t testing.TB, binary string, d Disk) Service {
		p := StartBinary(t, binary, "up", "--export", d.Name+"="+d.Spec,
			"--admin", filepath.Join(Folder(t), "up"))
		return Service{p.URI(d.Name, "nbd+unix"), p, p}
	}},
}

// ChainWay is the way through two processes.
var ChainWay = Ways[2]

// FailFastWay is the way through two processes of a disk that does not wait
// for its target.
var FailFastWay = Way{"chain without reconnect", func(t testing.TB, binary string, d Disk) Service {
	p := StartTarget(t, binary, "via+shm:///?socket="+filepath.Join(Folder(t), "v"), d)
	a := AttachDisk(t, binary, p, d.Name, "--ctrl-loss-tmo", "0s")
	return Service{a.URI(d.Name, "nbd+unix"), p, a}
}}

// FailFastWays are the ways on which a client hears of the end of the target.
var FailFastWays = []Way{Ways[0], Ways[1], FailFastWay, Ways[3]}

// StartTarget starts a target that serves disks at one URI.
func StartTarget(t testing.TB, binary, listen string, disks ...Disk) *Process {
	t.Helper()
	return StartTargetAt(t, StartCommand, binary, listen, disks...)
}

// StartTargetAt is StartTarget at a place.
func StartTargetAt(t testing.TB, at Place, binary, listen string, disks ...Disk) *Process {
	t.Helper()
	return startTarget(t, at, binary, []string{"--listen", listen}, disks)
}

// startTarget starts a target with options at a place.
func startTarget(t testing.TB, at Place, binary string, options []string, disks []Disk) *Process {
	t.Helper()
	args := append([]string{"target", "--admin", filepath.Join(Folder(t), "target")}, options...)
	for _, d := range disks {
		args = append(args, "--export", d.Name+"="+d.Spec)
	}
	return StartBinaryAt(t, at, binary, args...)
}

// AttachDisk attaches a disk of a target, under its own name.
func AttachDisk(t testing.TB, binary string, p *Process, name string, more ...string) *Process {
	t.Helper()
	return AttachURIAt(t, StartCommand, binary, p.URI(name, "via+shm"), name, more...)
}

// AttachURIAt attaches the disk of a URI at a place, under a name.
func AttachURIAt(t testing.TB, at Place, binary, uri, name string, more ...string) *Process {
	t.Helper()
	here := Folder(t)
	args := []string{
		"attach", uri,
		"--nbd", "nbd+unix:///" + name + "?socket=" + filepath.Join(here, "n"),
		"--admin", filepath.Join(here, "attach"),
	}
	return StartBinaryAt(t, at, binary, append(args, more...)...)
}

// EachWay runs a test on every way to a disk, some at the same time: much of
// what clients and servers do is wait for each other. Nothing follows it in its
// test.
func EachWay(t *testing.T, d func(t testing.TB) Disk, test func(t *testing.T, s Service)) {
	for _, w := range Ways {
		t.Run(w.Name, func(t *testing.T) {
			t.Parallel()
			test(t, w.Serve(t, Program(t), d(t)))
		})
	}
}

// MemoryDisk is a disk in memory.
func MemoryDisk(size string) func(testing.TB) Disk {
	return func(testing.TB) Disk { return Disk{"disk", "memory:" + size} }
}

// FileDisk is a disk in a sparse file.
func FileDisk(size int64) func(testing.TB) Disk {
	return func(t testing.TB) Disk { return Disk{"disk", "file:" + SparseFile(t, size)} }
}
