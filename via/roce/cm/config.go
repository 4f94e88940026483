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
	// Local is the address that datagrams are sent from and received at. Its IP
	// address is our GID, so it is a concrete one.
	Local netip.AddrPort

	// GUID names the endpoint: random, not 0, another one each time it is opened.
	// Peers tell by it and by the queue pair which connections are stale.
	GUID uint64

	PKey uint16   // 0 is wire.DefaultPKey
	MTU  wire.MTU // the largest path MTU; REQs with a larger one are refused

	// Random returns unpredictable numbers, for communication and transaction IDs.
	// nil is the system's.
	Random func() uint64

	// Interval is when a message is first repeated; each further wait is twice as
	// long, up to 1 s. 0 is 50 ms.
	Interval time.Duration

	// Patience is how long a silent peer is waited for. 0 is 8 s.
	Patience time.Duration

	// Think is what our MRAs ask for while a consumer thinks about a REQ or REP.
	// A peer that asks again is told again. 0 is 17 s.
	Think time.Duration

	// TimeWait is how long an ended connection is remembered. 0 is 2 s.
	TimeWait time.Duration

	// Pending bounds the requests of peers that are not established connections
	// yet, PendingPerAddr those from one IP address. A new one takes the place of
	// the oldest that nobody has answered. 0 is 256, and 32.
	Pending, PendingPerAddr int
}

const (
	defaultInterval       = 50 * time.Millisecond
	maxInterval           = time.Second
	defaultPatience       = 8 * time.Second
	defaultThink          = 17 * time.Second
	defaultTimeWait       = 2 * time.Second
	defaultPending        = 256
	defaultPendingPerAddr = 32
)

// withDefaults returns a copy without zeros that mean something else.
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
		{&c.Patience, defaultPatience},
		{&c.Think, defaultThink},
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
	return c
}

func systemRandom() uint64 {
	var b [8]byte
	rand.Read(b[:]) // never fails
	return binary.NativeEndian.Uint64(b[:])
}

// Validate tells everything that is wrong with the configuration.
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
	check(c.Interval >= 0 && c.Patience >= 0 && c.Think >= 0 && c.TimeWait >= 0,
		"interval %v, patience %v, think %v, time-wait %v", c.Interval, c.Patience, c.Think, c.TimeWait)
	check(c.Pending >= 0 && c.PendingPerAddr >= 0, "pending %d, per address %d", c.Pending, c.PendingPerAddr)
	return errors.Join(all...)
}
