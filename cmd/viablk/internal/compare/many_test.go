package compare

import (
	"context"
	"fmt"
	"path/filepath"
	"testing"
	"time"

	"github.com/viablk/viablk/initiator"
	"github.com/viablk/viablk/integration/testbed"
	"github.com/viablk/viablk/via"
	"github.com/viablk/viablk/via/shm"
)

// lone are the loads of one disk at a target with many, or with many
// sessions.
var lone = []cell{
	{op: "randread", size: "4k", depth: 8, rate: 10000},
	{op: "randwrite", size: "4k", depth: 8, rate: 10000},
	{op: "randread", size: "4k", depth: 32},
}

// compareMany measures what a request costs through the chain at targets with
// so many exports, or sessions, beside one that has the first of these numbers.
// All but one are idle.
func (plan *costPlan) compareMany(t *testing.T, numbers []int, start func(t *testing.T, n int) contender) []outcome {
	t.Helper()
	b := &comparison{size: manyDisk, rounds: plan.rounds, runtime: plan.runtime}
	for i, n := range numbers {
		c := start(t, n)
		c.name = fmt.Sprint(n)
		if i == 0 {
			b.controls = append(b.controls, c)
		} else {
			b.ours = append(b.ours, c)
		}
	}
	b.fill(t)
	for _, list := range [][]contender{b.ours, b.controls} {
		for i := range list {
			list[i].measureRest(t, plan.runtime)
			t.Logf("%s, without requests: %.2f %% of a processor", list[i].name, 100*list[i].rest)
		}
	}
	return b.compare(t, plan.many)
}

// measureRest measures what the server takes without requests.
func (c *contender) measureRest(t testing.TB, d time.Duration) {
	t.Helper()
	began, before := time.Now(), c.processorTime(t)
	time.Sleep(d)
	used, passed := c.processorTime(t)-before, time.Since(began)
	c.rest = used.Seconds() / passed.Seconds()
}

// manyDisk is the size of each of many disks.
const manyDisk = "16M"

// manyExports starts a target with so many exports, of which one is attached.
func manyExports(t *testing.T, n int) contender {
	t.Helper()
	var disks []testbed.Disk
	for i := range n {
		disks = append(disks, testbed.Disk{Name: fmt.Sprintf("disk%d", i), Spec: "memory:" + manyDisk})
	}
	return attachedTo(t, testbed.StartTarget(t, testbed.PlainProgram(t), "via+shm:///?socket="+filepath.Join(testbed.Folder(t), "v"), disks...))
}

// attachedTo is the chain over the first disk of a target.
func attachedTo(t *testing.T, target *testbed.Process) contender {
	t.Helper()
	a := testbed.AttachDisk(t, testbed.PlainProgram(t), target, "disk0")
	return contender{uri: a.URI("disk0", "nbd+unix"), processes: []int{target.PID(), a.PID()}}
}

// manySessions starts a target with so many sessions, all but one of this
// process. Each has a disk and an I/O connection.
func manySessions(t *testing.T, n int) contender {
	t.Helper()
	testbed.RaiseFiles(t, uint64(32*n)+testbed.FilesOfBoth)
	host, limit := filepath.Join(testbed.Folder(t), "v"), fmt.Sprint(2*n+8)
	args := []string{
		"target", "--admin", filepath.Join(testbed.Folder(t), "target"), "--listen", "via+shm:///?socket=" + host,
		"--connections", limit, "--connections-per-address", limit,
	}
	for i := range n {
		args = append(args, "--export", fmt.Sprintf("disk%d=memory:%s", i, manyDisk))
	}
	target := testbed.StartBinary(t, testbed.PlainProgram(t), args...)
	nic, err := via.OpenNic(shm.New(shm.Options{}), "")
	testbed.Must(t, err)
	nic.ErrorCallback(func(via.AsyncError) {})
	t.Cleanup(func() { testbed.Must(t, nic.Close()) })
	for i := range n - 1 {
		d, err := initiator.Dial(context.Background(), initiator.Config{
			NIC: nic, Host: host, Export: fmt.Sprint("disk", i+1), LossTimeout: initiator.Forever, PoolBytes: 1 << 20,
		})
		testbed.Must(t, err)
		t.Cleanup(func() { testbed.Must(t, d.Close()) })
		_, err = d.ReadAt(make([]byte, 512), 0)
		testbed.Must(t, err)
	}
	return attachedTo(t, target)
}
