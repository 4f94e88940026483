package cm

import (
	"net/netip"
	"strconv"

	"github.com/viablk/viablk/via/roce/wire"
)

// Kind is the kind of an Event.
type Kind uint8

// The events. A connection has one of Rejected, TimedOut, Unreachable and
// Disconnected, unless its own consumer ended it before by Reject or Abandon.
// Released is always the last.
const (
	// Requested: a peer asks for a connection. Accept or Reject answers. Set:
	// all but Reason.
	Requested Kind = 1 + iota

	// Granted: the peer has accepted; its queue pair can receive. Establish
	// completes the connection, Reject refuses it. Set: From, Own, GUID, Peer,
	// Private.
	Granted

	// Established: the RTU or data has arrived. At the passive end only, and
	// not if Establish was called before.
	Established

	// Rejected: the peer has rejected or given up before the connection was
	// established. Set: Reason, MTU, Private.
	Rejected

	// TimedOut: the peer is silent, or its request was evicted.
	TimedOut

	// Unreachable: ICMP reports the peer's address as unreachable.
	Unreachable

	// Disconnected: the connection has ended. The peer has disconnected, has
	// confirmed our Disconnect, or is silent. Set: Reason and Private, if the
	// peer sent any.
	Disconnected

	// Suspected: a REQ names the peer's queue pair, as after a restart of the
	// peer. Any host may have sent it: the consumer checks whether the queue pair
	// exists. The connection is unchanged.
	Suspected

	// Released: time-wait is over. The ID is invalid, and the queue pair number
	// may be used again.
	Released
)

var kinds = [...]string{
	Requested: "requested", Granted: "granted", Established: "established", Rejected: "rejected",
	TimedOut: "timed-out", Unreachable: "unreachable", Disconnected: "disconnected", Suspected: "suspected", Released: "released",
}

// String returns the name.
func (k Kind) String() string {
	if int(k) < len(kinds) && k != 0 {
		return kinds[k]
	}
	return "event-" + strconv.Itoa(int(k))
}

// Event reports a change of a connection, with data of the peer. The receiver
// may keep Private.
type Event struct {
	Kind Kind
	ID   ID

	From     netip.AddrPort // where the peer receives; data packets go there too
	SameKind bool           // the peer is a viablk end
	GUID     uint64         // the peer's
	Service  wire.ServiceID // that the peer asks for
	CMA      wire.CMA       // who connects to whom, if Service is of the TCP port space
	Peer     End            // the peer's queue pair

	MTU        wire.MTU // of the path; of a Rejected: one that would do, or 0
	Unreliable bool     // UC instead of RC
	Retries    uint8    // 3 bits: how often we are to repeat a packet
	AckTimeout wire.Timeout

	Reason wire.Reason
	// as sent between viablk ends, but for Requested; else as long as the field
	Private []byte
}
