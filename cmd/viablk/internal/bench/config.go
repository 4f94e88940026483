package bench

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"time"

	"github.com/viablk/viablk/via"
)

// Mode is what is measured.
type Mode string

// The modes.
const (
	PingPong  Mode = "pingpong"   // one-way latency: half a round trip
	Window    Mode = "window"     // messages one way, many in flight
	RdmaWrite Mode = "rdma-write" // RDMA Writes, beside copies of the same size
	RdmaRead  Mode = "rdma-read"  // RDMA Reads, beside copies of the same size
	PostRate  Mode = "post-rate"  // what posting costs its processor
	PollScale Mode = "pollscale"  // what a completion of many VIs costs to poll

	// The yardsticks, for ends with a network between them.
	UDP Mode = "udp" // one-way latency of datagrams
	TCP Mode = "tcp" // a stream in writes of 64 KiB
)

// Modes returns the modes of VIA in the order in which they are measured.
func Modes() []Mode {
	return []Mode{PingPong, Window, RdmaWrite, RdmaRead, PostRate, PollScale}
}

// Yardsticks returns the modes that measure the network.
func Yardsticks() []Mode { return []Mode{UDP, TCP} }

// Wait is how an end waits for completions.
type Wait string

// The ways to wait. Both ends wait the same way.
const (
	Poll  Wait = "poll"  // it polls until there are some
	Spin  Wait = "spin"  // it polls for a bounded time, then sleeps
	Sleep Wait = "sleep" // it sleeps at once: Arm, then ppoll on the queue's file descriptor
)

// Waits returns all ways to wait.
func Waits() []Wait { return []Wait{Poll, Spin, Sleep} }

// Limits of a configuration, which a peer checks, too.
const (
	MaximumSize = 64 << 20 // bytes of a message
	MaximumVIs  = 4096
	MaximumOps  = 1 << 30 // operations of a case and round
)

// Config says what to measure.
type Config struct {
	Modes  []Mode
	Sizes  []int // bytes; post-rate and pollscale always use 64
	Waits  []Wait
	Level  via.ReliabilityLevel
	Rounds int

	// Ops is the operations of a case and round; 0 is the mode's default.
	// Volume bounds the bytes that they move, in favour of fewer operations;
	// but up to 64 KiB a round never has less than a thousand round trips or
	// two thousand messages, and above that all rounds together, unless Ops
	// says so. Brief is that least.
	Ops    int
	Volume int64 // bytes
	Brief  bool

	// VIs is how many VIs on one completion queue take turns; 0 is one. Many is
	// how many post-rate and pollscale compare with one; 0 is a thousand.
	VIs, Many int

	Spin    time.Duration // how long Spin polls; 0 is 50 µs
	Timeout time.Duration // without progress, after which the peer hangs; 0 is 10 s

	// Network is the address at which the other end's yardsticks are reached,
	// if any are measured.
	Network netip.Addr

	// Packets, if not nil, returns what the provider has sent and received so
	// far.
	Packets func() Packets

	// Processor, if not nil, is where the measuring end runs.
	Processor *int

	// Progress, if not nil, is called before each case of a round.
	Progress func(done, total int, c Case)
}

// Packets count the packets of a network, and the system calls that carried
// some.
type Packets struct {
	Sent, SendCalls        uint64
	Received, ReceiveCalls uint64
}

// since returns how many packets a call sent, and received, after an earlier
// count.
func (p Packets) since(before Packets) (perSend, perReceive float64) {
	per := func(packets, calls uint64) float64 { return float64(packets) / float64(max(calls, 1)) }
	return per(p.Sent-before.Sent, p.SendCalls-before.SendCalls), per(p.Received-before.Received, p.ReceiveCalls-before.ReceiveCalls)
}

// Case is one line of the result.
type Case struct {
	Mode  Mode `json:"mode"`
	Size  int  `json:"size"` // bytes
	Wait  Wait `json:"wait"`
	VIs   int  `json:"vis"`   // on one completion queue
	Batch int  `json:"batch"` // operations to a doorbell or a poll; 0 if that is not fixed
}

// String describes the case.
func (c Case) String() string {
	return fmt.Sprintf("%s %d B, %s, %d VIs", c.Mode, c.Size, c.Wait, c.VIs)
}

// Defaults of the configuration.
const (
	DefaultMany    = 1000
	DefaultSpin    = 50 * time.Microsecond
	DefaultTimeout = 10 * time.Second

	smallMessage  = 64        // bytes, of post-rate and pollscale
	defaultVolume = 128 << 20 // bytes
	mediumMessage = 64 << 10  // bytes up to which a round has the least operations
)

// complete returns the configuration with its defaults, or why it cannot be
// measured over nic.
func (c Config) complete(nic *via.NIC) (Config, error) {
	if c.Spin == 0 {
		c.Spin = DefaultSpin
	}
	if c.Timeout == 0 {
		c.Timeout = DefaultTimeout
	}
	if c.VIs == 0 {
		c.VIs = 1
	}
	if c.Many == 0 {
		c.Many = DefaultMany
	}
	if c.Volume == 0 {
		c.Volume = defaultVolume
	}
	limits := nic.Limits()
	switch {
	case len(c.Modes) == 0 || len(c.Waits) == 0 || len(c.Sizes) == 0:
		return c, errors.New("nothing to measure: no mode, no size or no way to wait")
	case slices.ContainsFunc(c.Modes, Mode.isYardstick) && !c.Network.IsValid():
		return c, errNoNetwork
	case c.Rounds < 1 || c.Ops < 0 || c.Ops > MaximumOps || c.VIs < 1 || c.VIs > MaximumVIs,
		c.Many < 1 || c.Many > MaximumVIs:
		return c, fmt.Errorf("%d rounds of %d operations over %d VIs are not within the limits", c.Rounds, c.Ops, max(c.VIs, c.Many))
	case limits.ReliabilityLevels&c.Level == 0:
		return c, fmt.Errorf("%s has no %v", nic.Name(), c.Level)
	case slices.Contains(c.Modes, RdmaRead) && limits.RdmaReadLevels&c.Level == 0:
		return c, fmt.Errorf("%s has no RDMA Read at %v", nic.Name(), c.Level)
	}
	for _, size := range c.Sizes {
		if size < 0 || size > MaximumSize || uint64(size) > uint64(limits.MaxTransferSize) {
			return c, fmt.Errorf("a message of %d bytes is longer than %d", size, min(uint64(MaximumSize), uint64(limits.MaxTransferSize)))
		}
	}
	return c, nil
}

// cases lists what is measured, in the order of the result.
func (c Config) cases() []Case {
	var all []Case
	add := func(x Case) {
		if !slices.Contains(all, x) {
			all = append(all, x)
		}
	}
	for _, m := range c.Modes {
		switch m {
		case TCP:
			add(streamCase)
		case PostRate:
			add(Case{m, smallMessage, Poll, 1, batch})
			add(Case{m, smallMessage, Poll, c.Many, batch})
		case PollScale:
			for _, k := range []int{1, batch} {
				add(Case{m, smallMessage, Poll, 1, k})
				add(Case{m, smallMessage, Poll, c.Many, k})
			}
		default:
			for _, w := range c.Waits {
				for _, size := range c.Sizes {
					x := Case{Mode: m, Size: size, Wait: w, VIs: c.VIs}
					if m == UDP {
						x.VIs = 1
					}
					if y, ok := x.yardstick(); ok && c.compares(x) {
						add(y) // right before what is compared with it
					}
					if x.exists() {
						add(x)
					}
				}
			}
		}
	}
	return all
}

// exists reports whether there is something to measure.
func (c Case) exists() bool {
	switch c.Mode {
	case PingPong, Window:
		return true
	case UDP:
		return c.Size <= MaximumDatagram
	default:
		return c.Size > 0
	}
}

// usual returns the operations of a round when nothing bounds them, and the
// least that a figure is made of.
func (m Mode) usual() (ops, least int) {
	switch m {
	case PingPong, UDP:
		return 10_000, 1_000
	case TCP:
		return 8_000, 500
	case Window:
		return 20_000, 2_000
	case PostRate:
		return 200_000, 2_000
	case PollScale:
		return 10_000, 1_000
	default:
		return 20_000, 500
	}
}

// ops returns the operations of a case and round.
func (c Config) ops(x Case) int {
	if c.Ops > 0 {
		return max(c.Ops, x.Batch)
	}
	n, least := x.Mode.usual()
	if c.Brief {
		return max(least, x.Batch)
	}
	if x.Size > mediumMessage {
		least = (least + c.Rounds - 1) / c.Rounds
	}
	if x.Mode == PollScale && x.Batch == 1 {
		n /= 10 // each operation costs a round trip that is not measured
	}
	if x.Size > 0 && x.Mode != TCP { // a stream needs time to find its speed
		n = min(n, int(c.Volume/int64(x.Size)))
	}
	if x.Wait != Poll && x.Mode != TCP {
		n /= 4 // a wake-up costs as much as ten messages
	}
	return max(n, least)
}
