package backend

import (
	"encoding/binary"
	"fmt"
	"syscall"
	"time"

	"github.com/viablk/viablk/initiator"
	"github.com/viablk/viablk/internal/block"
)

// client is a writer and what the oracle knows of it.
type client struct {
	*writer
	name   string
	port   *port
	policy initiator.ConflictPolicy
	home   *medium // the file it attached

	// known is what the blocks hold that it wrote itself, or read when they were
	// durable.
	known contents
	sure  [mediumBlocks]bool

	dirty   bool // an answered write is not durable, as far as it was told
	foreign bool // another writer was there since it came last
	lost    bool // the disk may have lost writes since it came last
}

// attach attaches a client.
func (h *history) attach(name string, p *port, preempt bool) *client {
	c := &client{name: name, port: p, home: h.medium, policy: initiator.ConflictFail}
	if h.coin(4) {
		c.policy = initiator.ConflictReopen
	}
	cfg := config(p)
	cfg.LossTimeout, cfg.ReconnectDelay = initiator.Forever, 500*time.Microsecond
	cfg.OnConflict, cfg.Preempt = c.policy, preempt
	w, err := attach(cfg)
	if err != nil {
		h.fail("%s does not attach: %v", name, err)
		return nil
	}
	c.writer = w
	h.note("%s attaches, on conflict %s", name, c.policy)
	h.look(c)
	return c
}

// look reads the disk. The client relies on what is durable: what another
// client wrote and did not flush is that client's loss.
func (h *history) look(c *client) {
	for i := range c.known {
		b := make([]byte, mediumBlock)
		err := c.do(&block.Request{Op: block.Read, Offset: int64(i) * mediumBlock, Length: mediumBlock, Data: b})
		if err != nil {
			h.fail("%s reads block %d: %v", c.name, i, err)
		}
		c.known[i] = binary.LittleEndian.Uint64(b)
		c.sure[i] = c.known[i] == h.medium.durable[i]
	}
}

// compare reads what the client knows.
func (h *history) compare(c *client) {
	was := *c
	h.look(c)
	for i, sure := range was.sure {
		if sure && c.known[i] != was.known[i] {
			h.fail("wrong accept: %s is back, and block %d holds %d instead of %d", c.name, i, c.known[i], was.known[i])
		}
		c.sure[i] = c.sure[i] || sure
	}
}

// write is a write of a random block.
func (h *history) write(flags block.Flags) *block.Request {
	h.value++
	return &block.Request{
		Op: block.Write, Flags: flags, Offset: h.random.Int64N(mediumBlocks) * mediumBlock, Length: mediumBlock, Data: stamp(h.value),
	}
}

// wrote notes an answered write of a client.
func (h *history) wrote(c *client, r *block.Request, err error) {
	i := r.Offset / mediumBlock
	durable := r.Flags&block.FUA != 0
	h.note("%s writes %d to block %d, fua %v: %v", c.name, binary.LittleEndian.Uint64(r.Data), i, durable, errnoOf(err))
	fails := durable && (h.medium.failing || h.latched)
	if (err != nil) != fails {
		h.fail("a write of %s: %v, and it fails: %v", c.name, err, fails)
	}
	h.overwritten(c)
	c.known[i], c.sure[i] = binary.LittleEndian.Uint64(r.Data), err == nil
	switch {
	case fails && !h.latched:
		h.latch()
	case !fails && !durable:
		c.dirty = true
	}
}

// overwritten notes that a client wrote, for all others.
func (h *history) overwritten(by *client) {
	for _, c := range []*client{h.a, h.b} {
		if c != nil && c != by && c.home == h.medium {
			c.foreign = true
		}
	}
}

// flush flushes. The answer is never OK when a write of the client is lost.
func (h *history) flush(c *client) {
	err := c.do(&block.Request{Op: block.Flush})
	h.note("%s flushes: %v", c.name, errnoOf(err))
	fails := h.medium.failing || h.latched
	switch {
	case err != nil && !fails:
		h.fail("a flush of %s fails: %v", c.name, err)
	case err == nil && fails:
		h.fail("a flush of %s is answered OK, and the disk failed", c.name)
	case err != nil:
		if !h.latched {
			h.latch()
		}
	default:
		c.dirty = false
		for i, sure := range c.sure {
			if sure && h.medium.durable[i] != c.known[i] {
				h.fail("a flush of %s is answered OK, and block %d is lost", c.name, i)
			}
		}
	}
}

// latch notes that the disk failed to make writes durable.
func (h *history) latch() {
	h.latched, h.medium.failed = true, true
	h.losing()
}

// losing notes that the disk may have lost writes.
func (h *history) losing() {
	for _, c := range []*client{h.a, h.b} {
		if c != nil && c.home == h.medium {
			c.lost = true
		}
	}
}

// back waits for the client to be accepted or refused, and compares that with
// the oracle. It returns false if the client was refused, rightly.
func (h *history) back(c *client, losses uint64, pending *block.Request) bool {
	want := ""
	switch {
	case c.home != h.medium:
		want = "another disk"
	case c.foreign && c.policy == initiator.ConflictFail:
		want = "another writer"
	case c.lost && c.dirty:
		want = "writes may be lost"
	}
	refused, ok := h.verdict(c, losses)
	if !ok {
		return false
	}
	h.note("%s comes back: %v, and the oracle says %q", c.name, refused, want)
	switch {
	case refused == nil && want != "":
		h.fail("wrong accept of %s: %s", c.name, want)
	case refused != nil && want == "":
		h.fail("false refusal of %s: %v", c.name, refused)
	}
	conflict := c.foreign
	if pending != nil {
		err := c.wait()
		switch {
		case want == "" && !conflict:
			h.wrote(c, pending, err)
		case block.Errno(err) != syscall.EIO:
			h.fail("a write that waited is answered %v, and its disk is gone", err)
		}
	}
	if h.failure != "" || want != "" {
		return false
	}
	c.lost, c.foreign = false, false
	if conflict {
		// The queue fails what it got before it is connected again.
		_ = c.do(&block.Request{Op: block.Read, Length: mediumBlock, Data: make([]byte, mediumBlock)})
		h.look(c)
	} else {
		h.compare(c)
	}
	return h.failure == ""
}

// verdictTime bounds how long a client waits for its target, which is there.
const verdictTime = 30 * time.Second

// verdict waits until the client is accepted or refused for good.
func (h *history) verdict(c *client, losses uint64) (refused error, ok bool) {
	for began := time.Now(); ; time.Sleep(100 * time.Microsecond) {
		if err := c.device.Err(); err != nil {
			return err, true
		}
		if st := c.device.Status(); st.Connected && st.SessionLosses > losses {
			return nil, true
		}
		if time.Since(began) > verdictTime {
			h.fail("%s waits: %+v", c.name, c.device.Status())
			return nil, false
		}
	}
}

func errnoOf(err error) string {
	if err == nil {
		return "OK"
	}
	return fmt.Sprintf("errno %d", block.Errno(err))
}
