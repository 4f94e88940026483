package compare

import (
	"fmt"
	"path/filepath"
	"testing"
	"time"

	"github.com/viablk/viablk/integration/testbed"
)

// idleFigure is what clients cost that do nothing: each has read once.
type idleFigure struct {
	Server   string    `json:"server"`
	Clients  int       `json:"clients"`        // plain and nbdkit: of one disk; chain: one of each disk
	Share    []float64 `json:"share_percent"`  // of a processor, a value for each round
	Resident int64     `json:"resident_bytes"` // of a client and its disk, beyond a server without
	Threads  int       `json:"threads"`        // of all processes
	Load     []float64 `json:"load"`           // the machine's over the last minute, likewise
}

func (f idleFigure) String() string {
	return fmt.Sprintf("%d idle clients of %s: %.2f %% of a processor, %d KiB each, %d threads, load %.1f",
		f.Clients, f.Server, median(f.Share), f.Resident>>10, f.Threads, median(f.Load))
}

// idleServer is a server with idle clients.
type idleServer struct {
	contender
	figure idleFigure
}

// measureIdle measures servers with idle clients, in rotating order.
func (plan *costPlan) measureIdle(t *testing.T) (figures []idleFigure) {
	t.Helper()
	testbed.RaiseFiles(t, uint64(4*plan.clients)+testbed.FilesOfBoth)
	var servers []*idleServer
	for _, build := range plan.builds(t) {
		for _, name := range plan.servers {
			server := plan.idlePlain
			if name == "chain" {
				server = plan.idleChain
			}
			s := server(t, build.program)
			s.figure.Server += build.suffix
			servers = append(servers, s)
		}
	}
	servers = append(servers, plan.idleClients(t, contest{disk: "memory", wire: "unix"}.nbdkit(t, idleDisk, ""), ""))
	for round := range plan.rounds {
		for i := range servers {
			servers[(i+round)%len(servers)].watch(t, plan.runtime)
		}
	}
	for _, s := range servers {
		for _, pid := range s.processes {
			s.figure.Threads += testbed.Threads(t, pid)
		}
		t.Log(s.figure)
		figures = append(figures, s.figure)
	}
	return figures
}

// watch measures for a while.
func (s *idleServer) watch(t testing.TB, d time.Duration) {
	t.Helper()
	began, before := time.Now(), s.processorTime(t)
	time.Sleep(d)
	used, passed := s.processorTime(t)-before, time.Since(began)
	s.figure.Share = append(s.figure.Share, 100*used.Seconds()/passed.Seconds())
	s.figure.Load = append(s.figure.Load, loadAverage(t))
}

// resident is the memory of a server's processes.
func (c *contender) resident(t testing.TB) (sum int64) {
	t.Helper()
	for _, pid := range c.processes {
		sum += testbed.Memory(t, pid, "VmRSS")
	}
	return sum
}

// idleDisk is the size of a disk of an idle client.
const idleDisk = "16M"

// idlePlain has clients of one disk.
func (plan *costPlan) idlePlain(t testing.TB, program string) *idleServer {
	t.Helper()
	listen := "nbd+unix:///?socket=" + filepath.Join(testbed.Folder(t), "n")
	d := testbed.Disk{Name: "disk", Spec: "memory:" + idleDisk}
	limit := fmt.Sprint(plan.clients)
	p := testbed.StartBinary(t, program, "target", "--admin", filepath.Join(testbed.Folder(t), "target"), "--listen", listen,
		"--export", d.Name+"="+d.Spec, "--nbd-connections", limit, "--nbd-connections-per-address", limit)
	return plan.idleClients(t, contender{name: "plain", uri: p.URI(d.Name, "nbd+unix"), processes: []int{p.PID()}}, d.Name)
}

// idleClients has clients of one server read once.
func (plan *costPlan) idleClients(t testing.TB, c contender, export string) *idleServer {
	t.Helper()
	before := c.resident(t)
	for range plan.clients {
		c.readOnce(t, export)
	}
	each := (c.resident(t) - before) / int64(plan.clients)
	return &idleServer{c, idleFigure{Server: c.name, Clients: plan.clients, Resident: each}}
}

// readOnce connects a client that reads and stays.
func (c *contender) readOnce(t testing.TB, export string) {
	t.Helper()
	_, socket := testbed.AddressOf(t, c.uri)
	conn := testbed.NewCrowdAt(t, socket).Join()
	testbed.Must(t, testbed.Negotiate(conn, export))
	testbed.Must(t, testbed.ReadFirst(conn))
}

// idleChain has a client of each of the disks of a target, attached by a
// process of its own.
func (plan *costPlan) idleChain(t testing.TB, program string) *idleServer {
	t.Helper()
	var disks []testbed.Disk
	for i := range plan.disks {
		disks = append(disks, testbed.Disk{Name: fmt.Sprintf("disk%d", i), Spec: "memory:" + idleDisk})
	}
	p := testbed.StartTarget(t, program, "via+shm:///?socket="+filepath.Join(testbed.Folder(t), "v"), disks...)
	all := contender{name: "chain", processes: []int{p.PID()}}
	before := all.resident(t)
	for _, d := range disks {
		a := testbed.AttachDisk(t, program, p, d.Name)
		client := contender{uri: a.URI(d.Name, "nbd+unix")}
		client.readOnce(t, d.Name)
		all.processes = append(all.processes, a.PID())
	}
	each := (all.resident(t) - before) / int64(plan.disks)
	return &idleServer{all, idleFigure{Server: all.name, Clients: plan.disks, Resident: each}}
}
