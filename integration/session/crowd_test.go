package session

import (
	"bytes"
	"context"
	"flag"
	"fmt"
	"path/filepath"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/viablk/viablk/initiator"
	"github.com/viablk/viablk/integration/history"
	"github.com/viablk/viablk/integration/testbed"
	"github.com/viablk/viablk/via"
	"github.com/viablk/viablk/via/roce"
	"github.com/viablk/viablk/via/shm"
)

var (
	crowdSize   = flag.Int("session.crowd", 16, "initiators of TestCrowdReturns, on each fabric")
	crowdRounds = flag.Int("session.crowdrounds", 2, "how often it kills their target")
	crowdStall  = flag.Duration("session.crowdstall", 0, "how long after the target is ready the last of them may go on, in the median; 0: measure alone")
)

// TestCrowdReturns: many initiators, over RoCE each of another host, lose their
// target at the same time, and return to the next one: none is refused or loses
// a request, and the target accepts at most twice the connections that it had.
// The log says how long after the target was ready the last initiator went on.
func TestCrowdReturns(t *testing.T) {
	for _, provider := range []string{"shm", "roce"} {
		t.Run(provider, func(t *testing.T) {
			c := newCrowd(t, provider)
			var stalls []time.Duration
			for round := range *crowdRounds {
				stalls = append(stalls, c.survive(t, uint64(round)+1))
			}
			slices.Sort(stalls)
			median := stalls[len(stalls)/2]
			t.Logf("%d returns of a target: the last of %d initiators went on %v after it was ready, in the median; %v at most",
				len(stalls), len(c.devices), median, stalls[len(stalls)-1])
			if *crowdStall > 0 && median > *crowdStall {
				t.Errorf("that is more than %v", *crowdStall)
			}
		})
	}
}

// crowd is the initiators of this process with a disk each, of one target.
type crowd struct {
	args    []string
	target  *testbed.Process
	devices []*initiator.Device
}

// newCrowd starts a target and attaches its disks over a fabric.
func newCrowd(t *testing.T, provider string) *crowd {
	t.Helper()
	host := "127.79.10.1"
	of, uri := via.Provider(roce.New(roce.Options{})), "via+roce://"+host+"/"
	if provider == "shm" {
		host = filepath.Join(testbed.Folder(t), "v")
		of, uri = shm.New(shm.Options{}), "via+shm:///?socket="+host
	}
	c := &crowd{args: []string{
		"target", "--admin", filepath.Join(testbed.Folder(t), "target"), "--listen", uri,
	}}
	for i := range *crowdSize {
		c.args = append(c.args, "--export", fmt.Sprintf("d%d=file:%s", i, testbed.SparseFile(t, 1<<20)))
	}
	c.target = testbed.StartBinary(t, testbed.Program(t), c.args...)
	for i := range *crowdSize {
		device := ""
		if provider == "roce" {
			device = fmt.Sprintf("127.80.%d.1", i) // a host of its own
		}
		nic, err := via.OpenNic(of, device)
		testbed.Must(t, err)
		nic.ErrorCallback(func(via.AsyncError) {})
		t.Cleanup(func() { testbed.Must(t, nic.Close()) })
		d, err := initiator.Dial(context.Background(), initiator.Config{
			NIC: nic, Host: host, Export: fmt.Sprint("d", i), LossTimeout: initiator.Forever, PoolBytes: 1 << 20,
		})
		testbed.Must(t, err)
		t.Cleanup(func() { testbed.Must(t, d.Close()) })
		c.devices = append(c.devices, d)
		testbed.Must(t, c.write(i, 0))
	}
	return c
}

// write has an initiator write a block, and read it back.
func (c *crowd) write(i int, value uint64) error {
	data, back := make([]byte, history.BlockSize), make([]byte, history.BlockSize)
	history.Fill(data, value)
	if _, err := c.devices[i].WriteAt(data, 0); err != nil {
		return err
	}
	if _, err := c.devices[i].ReadAt(back, 0); err != nil {
		return err
	}
	if !bytes.Equal(data, back) {
		return fmt.Errorf("initiator %d reads other data", i)
	}
	return nil
}

// crowdAway is how long the target is away once all have noticed.
const crowdAway = 500 * time.Millisecond

// survive kills the target and starts it again. It returns how long after that
// the last initiator's request, which met the killed target, was answered.
func (c *crowd) survive(t *testing.T, round uint64) time.Duration {
	t.Helper()
	before := c.target.Status().Targets[0]
	c.target.Crash()
	ended := make([]time.Time, len(c.devices))
	var running sync.WaitGroup
	for i := range c.devices {
		running.Go(func() {
			if err := c.write(i, round); err != nil {
				t.Errorf("initiator %d: %v", i, err)
			}
			ended[i] = time.Now()
		})
	}
	testbed.Eventually(t, "the loss at each initiator", func() (any, bool) {
		n := 0
		for _, d := range c.devices {
			if d.Status().SessionLosses == round {
				n++
			}
		}
		return n, n == len(c.devices)
	})
	time.Sleep(crowdAway)
	c.target = testbed.StartBinary(t, testbed.Program(t), c.args...)
	ready := time.Now()
	running.Wait()

	for i, d := range c.devices {
		if st := d.Status(); !st.Connected || st.SessionLosses != round || st.Stats.Reconnects != round || st.Stats.Errors != 0 {
			t.Errorf("initiator %d: %+v", i, st)
		}
	}
	st := c.target.Status().Targets[0]
	if st.Sessions != len(c.devices) || st.Connections != before.Connections || st.Accepted > 2*uint64(before.Connections) || st.Refused != 0 {
		t.Errorf("%d initiators had %d connections; the target has %d sessions and %d connections, after %d were accepted and %d refused",
			len(c.devices), before.Connections, st.Sessions, st.Connections, st.Accepted, st.Refused)
	}
	return slices.MaxFunc(ended, time.Time.Compare).Sub(ready)
}
