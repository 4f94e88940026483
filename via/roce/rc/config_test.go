package rc_test

import (
	"strings"
	"testing"

	"github.com/viablk/viablk/via/roce/rc"
)

// New refuses an invalid configuration and reports all that is wrong.
func TestConfigIsChecked(t *testing.T) {
	for want, change := range map[string]func(*rc.Config){
		"peer queue pair": func(c *rc.Config) { c.PeerQP = 1 << 24 },
		"path MTU code 6": func(c *rc.Config) { c.MTU = 6 },
		"PSNs":            func(c *rc.Config) { c.PeerPSN = 1 << 24 },
		"send depth 0":    func(c *rc.Config) { c.SendDepth = 0 },
		"receive depth":   func(c *rc.Config) { c.ReceiveDepth = -1 },
		"reads 256":       func(c *rc.Config) { c.Reads = 256 },
		"peer's reads":    func(c *rc.Config) { c.PeerReads = -1 },
		"window -1":       func(c *rc.Config) { c.Window = -1 },
		"retries -1":      func(c *rc.Config) { c.Retries = -1 },
	} {
		c := scriptConfig()
		change(&c)
		if _, err := rc.New(c, nil); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: got %v", want, err)
		}
	}
	_, err := rc.New(rc.Config{}, nil)
	if err == nil || strings.Count(err.Error(), "\n") != 3 {
		t.Errorf("the empty configuration: got %v", err)
	}
}

// A queue pair frees its stashed packets when it breaks.
func TestBrokenQueuePairEmptiesItsStash(t *testing.T) {
	c := scriptConfig()
	c.Stash = rc.NewStash(6)
	play(t, c, `
		-> SEND-Only psn=1 n=4
		-> SEND-Only psn=2 n=4
		-> SEND-Only psn=4 n=4
		-> SEND-Only psn=5 n=4
		<- Acknowledge psn=0 syn=96`)
	if n := c.Stash.Room(); n != 3 {
		t.Errorf("room for %d, want 3", n)
	}
	play(t, c, "-> SEND-Only psn=1 n=4\n<- Acknowledge psn=0 syn=96")
	c.Stash = rc.NewStash(3)
	play(t, c, `
		-> SEND-Only psn=1 n=4
		-> SEND-Only psn=2 n=4
		<- Acknowledge psn=0 syn=96
		-> SEND-Only psn=0 n=4
		<- Acknowledge psn=0 syn=99
		event empty-queue
		event broken`)
	if n := c.Stash.Room(); n != 3 {
		t.Errorf("room for %d, want 3", n)
	}
}

// A full queue accepts no work until the consumer polls one: a completed work
// still takes its entry.
func TestQueuesAreBounded(t *testing.T) {
	c := scriptConfig()
	c.SendDepth, c.ReceiveDepth = 2, 4
	qp, err := rc.New(c, &scriptMemory{})
	if err != nil {
		t.Fatal(err)
	}
	works, receives := 0, 0
	for qp.Post(&rc.Work{}) {
		works++
	}
	for qp.PostReceive(&rc.Receive{}) {
		receives++
	}
	if works != 2 || receives != 4 {
		t.Errorf("took %d works and %d receives, want 2 and 4", works, receives)
	}
	qp.Break()
	if qp.Post(&rc.Work{}) {
		t.Error("a full queue accepted a work")
	}
	if w := qp.PollSend(); w.Status != rc.Flushed || !qp.Post(w) {
		t.Errorf("no room after a poll of %+v", w)
	}
	if qp.Cause() != rc.Closed || qp.PollEvent() != rc.Broken {
		t.Error("the QP is not broken, or has no Broken event")
	}
}
