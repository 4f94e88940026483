package netbed

import (
	"sync/atomic"
	"time"
)

// heldMark is the mark of packets that are to be held.
const heldMark = "0x68656c64"

// Reorder makes every n-th packet late: it is held until the next of them comes,
// or for a limit. A host has one reordering at a time.
func (h *Host) Reorder(p Packets, n int, limit time.Duration) *Fault {
	h.t.Helper()
	var q *queue
	err := h.Do(func() (err error) {
		q, err = openQueue()
		return err
	})
	if err != nil {
		h.t.Fatal(err)
	}
	// Not every kernel's nft has queues of its own: it marks what iptables queues.
	rule := h.rule("inet", "hook input priority -1", p, Every(n), "meta mark set "+heldMark)
	queue := []string{"INPUT", "-m", "mark", "--mark", heldMark, "-j", "NFQUEUE", "--queue-num", "0"}
	for _, iptables := range []string{"iptables", "ip6tables"} {
		h.run(iptables, "", append([]string{"-A"}, queue...)...)
	}
	hold := &holder{queue: q, limit: limit}
	ended := make(chan error, 1)
	go func() { ended <- hold.routineHold() }()
	f := &Fault{hits: rule.hits, stop: func() {
		// With a rule's table the kernel drops what is held for it: that is let go
		// before.
		rule.disarm()
		hold.stop.Store(true)
		if err := <-ended; err != nil {
			h.t.Errorf("hold packets: %v", err)
		}
		rule.remove()
		for _, iptables := range []string{"iptables", "ip6tables"} {
			h.run(iptables, "", append([]string{"-D"}, queue...)...)
		}
	}}
	h.t.Cleanup(f.Stop)
	return f
}

// holder holds packets of a queue.
type holder struct {
	*queue
	limit time.Duration
	held  []uint32  // numbers of packets, in the order in which they came
	since time.Time // when the last one came
	stop  atomic.Bool
}

// look is how often a holder looks at everything but packets.
const look = time.Millisecond

// routineHold holds one packet at a time, until it is to stop and no more come.
func (h *holder) routineHold() error {
	defer h.file.Close()
	for {
		arrived, err := h.receive(look)
		if err != nil {
			return err
		}
		stop := h.stop.Load() && len(arrived) == 0
		keep := 1
		if len(arrived) > 0 {
			h.since = time.Now()
		} else if stop || time.Since(h.since) > h.limit {
			keep = 0
		}
		h.held = append(h.held, arrived...)
		for ; len(h.held) > keep; h.held = h.held[1:] {
			if err := h.accept(h.held[0]); err != nil {
				return err
			}
		}
		if stop {
			return nil
		}
	}
}
