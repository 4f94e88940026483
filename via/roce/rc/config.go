package rc

import (
	"errors"
	"fmt"
	"time"

	"github.com/viablk/viablk/via/roce/wire"
)

// Config describes a queue pair. Both ends agree on it, by the connection
// manager or otherwise.
type Config struct {
	Unreliable bool // UC instead of RC

	PeerQP  uint32   // 24 bits, not 0
	PSN     wire.PSN // of the first packet sent
	PeerPSN wire.PSN // of the first packet expected
	PKey    uint16   // 0 is wire.DefaultPKey
	Tag     uint64   // in each packet sent; 0: none
	MTU     wire.MTU

	SendDepth, ReceiveDepth int // works posted and not polled; at least 1

	AllowWrite, AllowRead bool // what the peer may do
	Reads                 int  // read requests in flight to the peer; 0 forbids Read
	PeerReads             int  // read requests in flight from the peer; 0 forbids them

	// Window bounds the packets in flight, so that they fit the peer's receive
	// buffer. Room bounds the packets that this end requests by Reads and keeps
	// behind a gap, so that they fit its own. 0 is 128, and Window.
	Window, Room int

	// Line bounds what all QPs with peers at one host have in flight; nil: no
	// bound.
	Line *Line

	// Stash keeps packets that arrive behind a gap; nil drops them. Selective
	// says that both ends keep them and know it: then only missing packets are
	// retransmitted, otherwise all from the first missing one on, as the
	// specification has it.
	Stash     *Stash
	Selective bool

	// The peer is gone if it acknowledges nothing for Retries+1 times Timeout.
	// 0 is 500 ms. Until then the QP retransmits, first after a few round
	// trips, then with exponential back-off.
	Timeout time.Duration
	Retries int

	// WaitForReceive answers a message that finds no receive by an RNR NAK, as
	// verbs programs expect. Otherwise the message breaks the connection, as
	// VIA requires.
	WaitForReceive bool
	RNRDelay       time.Duration // of the RNR NAKs of this end
	RNRRetries     int           // RNR NAKs in a row before giving up; 7: no limit
}

const (
	defaultWindow  = 128
	defaultTimeout = 500 * time.Millisecond
	foreverRNR     = 7
	maxWindow      = 1 << 20 // packets
	maxReads       = 255     // limit of the connection manager's field
	maxDepth       = 1 << 20
)

// withDefaults returns a copy with the defaults in place of zeros.
func (c Config) withDefaults() Config {
	if c.PKey == 0 {
		c.PKey = wire.DefaultPKey
	}
	if c.Window == 0 {
		c.Window = defaultWindow
	}
	if c.Room == 0 {
		c.Room = c.Window
	}
	if c.Timeout == 0 {
		c.Timeout = defaultTimeout
	}
	return c
}

// Validate reports everything that is wrong with the configuration.
func (c Config) Validate() error {
	var all []error
	check := func(ok bool, format string, args ...any) {
		if !ok {
			all = append(all, fmt.Errorf(format, args...))
		}
	}
	check(c.PeerQP > 0 && c.PeerQP < 1<<24, "peer queue pair %#x", c.PeerQP)
	check(c.MTU.IsValid(), "path MTU code %d", c.MTU)
	check(c.PSN < 1<<24 && c.PeerPSN < 1<<24, "PSNs %#x and %#x", c.PSN, c.PeerPSN)
	check(c.SendDepth > 0 && c.SendDepth <= maxDepth, "send depth %d", c.SendDepth)
	check(c.ReceiveDepth > 0 && c.ReceiveDepth <= maxDepth, "receive depth %d", c.ReceiveDepth)
	check(c.Reads >= 0 && c.Reads <= maxReads, "reads %d", c.Reads)
	check(c.PeerReads >= 0 && c.PeerReads <= maxReads, "peer's reads %d", c.PeerReads)
	check(c.Window >= 0 && c.Window <= maxWindow, "window %d", c.Window)
	check(c.Room >= 0 && c.Room <= maxWindow, "room %d", c.Room)
	check(c.Timeout >= 0 && c.Retries >= 0 && c.RNRRetries >= 0, "timeout %v, retries %d and %d", c.Timeout, c.Retries, c.RNRRetries)
	return errors.Join(all...)
}
