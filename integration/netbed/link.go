package netbed

import (
	"encoding/json"
	"errors"
	"fmt"

	"github.com/viablk/viablk/internal/netns"
)

// Unplug takes the device of the host down: its own sends fail, the peer's get
// lost, and both forget who is on the link. Addresses stay. plug undoes it.
func (h *Host) Unplug() (plug func()) {
	h.t.Helper()
	h.run("ip", "", "link", "set", "dev", netns.Device, "down")
	return func() {
		h.t.Helper()
		h.run("ip", "", "link", "set", "dev", netns.Device, "up")
		if err := errors.Join(h.AwaitLink(), h.peer.AwaitLink()); err != nil {
			h.t.Fatal(err)
		}
	}
}

// burst is what a limited cable takes at once, bytes: the longest packet.
const burst = 70_000

// Limit makes the cable to the host slow: bits a second, with room for so many
// bytes that wait. A packet that finds no room is lost, and counted as hit.
func (h *Host) Limit(rate, room int) *Fault {
	return h.limit(rate, room, func(q queue) int { return q.Drops })
}

// Slow is Limit, but counts as hit whatever has to wait, too.
func (h *Host) Slow(rate, room int) *Fault {
	return h.limit(rate, room, func(q queue) int { return q.Drops + q.Overlimits })
}

func (h *Host) limit(rate, room int, hits func(queue) int) *Fault {
	h.t.Helper()
	from := h.peer
	from.run("tc", "", "qdisc", "add", "dev", netns.Device, "root", "tbf",
		"rate", fmt.Sprintf("%dbit", rate), "burst", fmt.Sprint(burst), "limit", fmt.Sprint(room))
	return &Fault{
		hits: func() int { return hits(from.queue()) },
		stop: func() { from.run("tc", "", "qdisc", "del", "dev", netns.Device, "root") },
	}
}

// queue is what a device's queue counts: packets without room, and those that
// had to wait.
type queue struct {
	Drops      int `json:"drops"`
	Overlimits int `json:"overlimits"`
}

func (h *Host) queue() queue {
	h.t.Helper()
	var queues []queue
	out := h.run("tc", "", "-j", "-s", "qdisc", "show", "dev", netns.Device)
	if err := json.Unmarshal([]byte(out), &queues); err != nil || len(queues) == 0 {
		h.t.Fatalf("tc: %v\n%s", err, out)
	}
	return queues[0]
}
