package netbed

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/florianl/go-nfqueue/v2"
	"golang.org/x/sys/unix"
)

// heldMark is the mark of packets that are to be held.
const heldMark = "0x68656c64"

// queueLength is how many packets can wait for a decision, as many as the
// kernel allows unless told otherwise.
const queueLength = 1024

// Reorder makes every n-th packet late: it is held until the next of them
// comes, or for a limit. A host has one reordering at a time.
func (h *Host) Reorder(p Packets, n int, limit time.Duration) *Fault {
	h.t.Helper()
	hold := &holder{limit: limit, arrived: make(chan uint32, queueLength), end: make(chan error, 1)}
	if err := h.Do(hold.open); err != nil {
		h.t.Fatalf("open a netfilter queue: %v", err)
	}
	// Not every kernel's nft has queues of its own: it marks what iptables
	// queues.
	rule := h.rule("inet", "hook input priority -1", p, Every(n), "meta mark set "+heldMark)
	queue := []string{"INPUT", "-m", "mark", "--mark", heldMark, "-j", "NFQUEUE", "--queue-num", "0"}
	for _, iptables := range []string{"iptables", "ip6tables"} {
		h.run(iptables, "", append([]string{"-A"}, queue...)...)
	}
	ended := make(chan error, 1)
	go func() { ended <- hold.routineHold() }()
	f := &Fault{hits: rule.hits, stop: func() {
		// With a rule's table the kernel drops what is held for it: that is let
		// go before.
		rule.disarm()
		if err := errors.Join(hold.askEnd(), <-ended, hold.close()); err != nil {
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

// holder holds packets of queue 0 of a namespace.
type holder struct {
	queue  *nfqueue.Nfqueue
	cancel context.CancelFunc // ends what the queue calls
	limit  time.Duration

	arrived chan uint32 // numbers of packets, in the order in which they came
	end     chan error  // one, behind the packets before it; nil: it was asked for
	held    []uint32
	since   time.Time // when the last one came
}

// open opens the queue of the namespace of this thread.
func (h *holder) open() (err error) {
	h.queue, err = nfqueue.Open(&nfqueue.Config{AfFamily: unix.AF_UNSPEC, MaxQueueLen: queueLength, Copymode: nfqueue.NfQnlCopyMeta})
	if err != nil {
		return err
	}
	err = h.queue.Con.SetReadBuffer(receiveBuffer)
	if err == nil {
		var ctx context.Context
		ctx, h.cancel = context.WithCancel(context.Background())
		err = h.queue.RegisterWithErrorFunc(ctx, h.arrive(ctx), h.fail(ctx))
	}
	if err != nil {
		return errors.Join(err, h.close())
	}
	return nil
}

// arrive takes packets from the queue.
func (h *holder) arrive(ctx context.Context) nfqueue.HookFunc {
	return func(a nfqueue.Attribute) int {
		if a.PacketID == nil {
			h.tell(errors.New("a packet without a header"))
			return 0
		}
		select {
		case h.arrived <- *a.PacketID:
		case <-ctx.Done():
		}
		return 0
	}
}

// fail takes errors from the queue, which goes on: when it ends, the kernel
// drops what is held.
func (h *holder) fail(ctx context.Context) nfqueue.ErrorFunc {
	return func(err error) int {
		switch {
		case ctx.Err() != nil:
		case errors.Is(err, unix.ENOENT):
			h.tell(nil)
		default:
			h.tell(err)
		}
		return 0
	}
}

// tell says why to end, if nothing has said so before.
func (h *holder) tell(err error) {
	select {
	case h.end <- err:
	default:
	}
}

// noPacket is a number that the kernel gives to no packet: it counts from 1.
const noPacket = 0

// askEnd ends the holder when it has all packets that are queued: the kernel
// answers a decision on a packet that it does not have, behind these.
func (h *holder) askEnd() error { return h.queue.SetVerdict(noPacket, nfqueue.NfAccept) }

// close closes the queue.
func (h *holder) close() error {
	if h.cancel != nil {
		h.cancel()
	}
	return h.queue.Close()
}

// holderPoll is how often a holder checks everything but packets.
const holderPoll = time.Millisecond

// routineHold holds one packet at a time, until it is to end.
func (h *holder) routineHold() error {
	tick := time.NewTicker(holderPoll)
	defer tick.Stop()
	for {
		select {
		case packet := <-h.arrived:
			h.since = time.Now()
			h.held = append(h.held, packet)
			if err := h.release(1); err != nil {
				return err
			}
		case <-tick.C:
			if time.Since(h.since) > h.limit {
				if err := h.release(0); err != nil {
					return err
				}
			}
		case err := <-h.end:
			for len(h.arrived) > 0 {
				h.held = append(h.held, <-h.arrived)
			}
			return errors.Join(err, h.release(0))
		}
	}
}

// release lets packets go on, the oldest first, but the last ones.
func (h *holder) release(keep int) error {
	for ; len(h.held) > keep; h.held = h.held[1:] {
		if err := h.queue.SetVerdict(h.held[0], nfqueue.NfAccept); err != nil {
			return fmt.Errorf("let packet %d go: %w", h.held[0], err)
		}
	}
	return nil
}
