package cm

import (
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"time"

	"github.com/viablk/viablk/via/roce/wire"
)

// Config describes a Manager.
type Config struct {
	// Local is the address at which datagrams are sent and received. Its IP
	// address is the GID of this end, so it is not a wildcard.
	Local netip.AddrPort

	// GUID identifies the endpoint: random, not 0, new each time it is opened.
	// By GUID and queue pair, peers detect stale connections.
	GUID uint64

	PKey uint16   // 0 is wire.DefaultPKey
	MTU  wire.MTU // the largest path MTU; REQs with a larger one are refused

	// Random returns unpredictable numbers for communication and transaction
	// IDs. nil is the system's generator.
	Random func() uint64

	// Interval is the time before a message is first repeated; each further
	// wait doubles, up to 1 s, of a request up to 200 ms. 0 is 50 ms.
	Interval time.Duration

	// Timeout is how long a peer may be silent. 0 is 8 s.
	Timeout time.Duration

	// ServiceTimeout is the delay that this end's MRAs announce while a
	// consumer decides on a REQ or REP. A repeated message gets another MRA. 0
	// is 17 s.
	ServiceTimeout time.Duration

	// TimeWait is how long an ended connection is kept. 0 is 2 s.
	TimeWait time.Duration

	// Pending bounds the requests of peers that are not established connections
	// yet, PendingPerAddr those from one IP address. A new one evicts the
	// oldest unanswered one. 0 is 256, and 32.
	Pending, PendingPerAddr int

	// Unproven is how many requests of peers are in progress before further
	// ones need a cookie: a proof that the sender receives at its address.
	// UnprovenPerAddr is how many of one IP address are, before further ones of
	// that do: requests in its name leave places to its host. 0 is 32, and 8.
	Unproven, UnprovenPerAddr int
}

const (
	defaultInterval       = 50 * time.Millisecond
	intervalLimit         = time.Second
	requestInterval       = 200 * time.Millisecond // limit of a REQ without any answer
	defaultTimeout        = 8 * time.Second
	defaultServiceTimeout = 17 * time.Second
	defaultTimeWait       = 2 * time.Second
	defaultPending        = 256
	defaultPendingPerAddr = 32
	defaultUnproven       = 32

	defaultUnprovenPerAddr = 8
)

// withDefaults returns a copy with the defaults in place of zeros.
func (c Config) withDefaults() Config {
	if c.PKey == 0 {
		c.PKey = wire.DefaultPKey
	}
	if c.Random == nil {
		c.Random = systemRandom
	}
	for _, d := range []struct {
		field *time.Duration
		value time.Duration
	}{
		{&c.Interval, defaultInterval},
		{&c.Timeout, defaultTimeout},
		{&c.ServiceTimeout, defaultServiceTimeout},
		{&c.TimeWait, defaultTimeWait},
	} {
		if *d.field == 0 {
			*d.field = d.value
		}
	}
	if c.Pending == 0 {
		c.Pending = defaultPending
	}
	if c.PendingPerAddr == 0 {
		c.PendingPerAddr = min(defaultPendingPerAddr, c.Pending)
	}
	if c.Unproven == 0 {
		c.Unproven = defaultUnproven
	}
	if c.UnprovenPerAddr == 0 {
		c.UnprovenPerAddr = min(defaultUnprovenPerAddr, c.Unproven)
	}
	return c
}

func systemRandom() uint64 {
	var b [8]byte
	rand.Read(b[:]) // never fails
	return binary.NativeEndian.Uint64(b[:])
}

// Validate reports everything that is wrong with the configuration.
func (c Config) Validate() error {
	var all []error
	check := func(ok bool, format string, args ...any) {
		if !ok {
			all = append(all, fmt.Errorf(format, args...))
		}
	}
	check(c.Local.IsValid() && !c.Local.Addr().IsUnspecified() && c.Local.Port() != 0, "local address %v", c.Local)
	check(c.GUID != 0, "GUID 0")
	check(c.MTU.IsValid(), "path MTU code %d", c.MTU)
	check(c.Interval >= 0 && c.Timeout >= 0 && c.ServiceTimeout >= 0 && c.TimeWait >= 0,
		"interval %v, timeout %v, service timeout %v, time-wait %v", c.Interval, c.Timeout, c.ServiceTimeout, c.TimeWait)
	check(c.Pending >= 0 && c.PendingPerAddr >= 0 && c.Unproven >= 0 && c.UnprovenPerAddr >= 0,
		"pending %d, per address %d, unproven %d, per address %d", c.Pending, c.PendingPerAddr, c.Unproven, c.UnprovenPerAddr)
	return errors.Join(all...)
}
