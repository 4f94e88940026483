package nbd

import (
	"time"

	"github.com/viablk/viablk/internal/block"
)

// Limits bound what clients may take from a server. The zero value of a field
// means its default. A negative duration switches that limit off.
type Limits struct {
	// Handshake is the time from accept to the transmission phase; default 10
	// s.
	Handshake time.Duration

	// Progress is the time without a single byte after which a client is cut
	// off that is in the middle of a request or does not take its replies;
	// default 30 s. Between requests a client may idle for ever.
	Progress time.Duration

	// BusyPoll is the longest time that a connection busy-polls before it
	// sleeps; default 200 µs, a quarter of it in the middle of a request or
	// among connections at work. Negative: it never spins.
	BusyPoll time.Duration

	// Connections is how many clients may be in transmission at a time; default
	// 100. The next is refused when it asks for its export. The last quarter is
	// for addresses and users that have one already.
	Connections int

	// ConnectionsPerAddress is how many of these may come from one IPv4
	// address, one IPv6 network of 64 bits, or one user of this host; 0: 16 of
	// another host, and no limit of its own for users of this one and loopback
	// addresses.
	ConnectionsPerAddress int

	// Handshakes is how many clients may be in their handshake at a time,
	// besides Connections; default 1024. With the next, the address that has
	// most of them loses its oldest.
	Handshakes int

	Options     int    // in one handshake, plus one for each export listed; default 32
	OptionBytes int    // data of one option; default 64 KiB
	NameBytes   int    // export name; default and most 4096
	Payload     uint32 // bytes of one READ or WRITE; default and most 64 MiB
	InFlight    int64  // bytes of READs and WRITEs in flight per connection; default 64 MiB
	Depth       int    // requests in flight per connection; default 128, most 1024
}

// maximumPayload is the default and the ceiling of [Limits.Payload]. The
// longest request that a foreign test suite sends has 49.9 MiB, and a server of
// the field takes 64 MiB.
const maximumPayload = 64 << 20 // bytes

// withDefaults returns l with zero fields replaced and the rest in range.
func (l Limits) withDefaults() Limits {
	l.Handshake = orDefault(l.Handshake, 10*time.Second)
	l.Progress = orDefault(l.Progress, 30*time.Second)
	l.BusyPoll = orDefault(l.BusyPoll, 200*time.Microsecond)
	l.Connections = orDefault(l.Connections, 100)
	l.Handshakes = orDefault(l.Handshakes, 1024)
	l.Options = orDefault(l.Options, 32)
	l.OptionBytes = orDefault(l.OptionBytes, 64<<10)
	l.NameBytes = min(orDefault(l.NameBytes, maximumText), maximumText)
	l.Payload = min(orDefault(l.Payload, maximumPayload), maximumPayload)
	l.InFlight = orDefault(l.InFlight, 64<<20)
	l.Depth = min(orDefault(l.Depth, 128), maximumDepth)
	return l
}

// maximumDepth is the deepest queue that [block.Device] opens.
const maximumDepth = 1024

// orDefault returns v, or d if v is zero.
func orDefault[T comparable](v, d T) T {
	var zero T
	if v == zero {
		return d
	}
	return v
}

// clientInfo returns what the device says of itself, as a client of the export
// sees it: with the export's own restrictions and every field filled in.
func (e *Export) clientInfo(l *Limits) block.Info {
	i := e.Device.Info()
	if e.ReadOnly {
		i.Features |= block.ReadOnly
	}
	if i.Features&block.ReadOnly != 0 {
		i.Features = readOnlyFeatures(i.Features)
	}
	if i.Features&block.CanWriteZeroes == 0 {
		i.Features &^= block.CanFastZero
	}
	i.MinimumBlock = max(i.MinimumBlock, 1)
	i.PreferredBlock = max(orDefault(i.PreferredBlock, 4096), i.MinimumBlock, 512)
	i.MaximumPayload = min(orDefault(i.MaximumPayload, l.Payload), l.Payload)
	return i
}

// readOnlyFeatures returns the features of a disk for a client that only reads.
func readOnlyFeatures(f block.Features) block.Features {
	return (f | block.ReadOnly) &^ (block.CanTrim | block.CanWriteZeroes | block.CanFastZero)
}
