package cm

import (
	"net/netip"
	"strconv"

	"github.com/viablk/viablk/via/roce/wire"
)

// Kind is what happened to a connection.
type Kind uint8

// The events. Of Rejected, TimedOut, Unreachable and Disconnected a connection
// has one, unless its own consumer ended it before by Reject or Abandon: then it
// has none. Released is always last.
const (
	// Requested: a peer asks for a connection. Accept or Reject answers. Set: all
	// but Reason.
	Requested Kind = 1 + iota

	// Granted: the peer has accepted; its queue pair can receive. Establish
	// completes the connection, Reject refuses it. Set: From, Own, GUID, Peer,
	// Private.
	Granted

	// Established: the RTU has arrived, or what stands for it. At the passive end
	// only, and not if Establish was faster.
	Established

	// Rejected: the peer has refused, or given up, before the connection was
	// established. Set: Reason, MTU, Private.
	Rejected

	// TimedOut: the peer is silent; or its request had to give way to others.
	TimedOut

	// Unreachable: the network says that nobody is there.
	Unreachable

	// Disconnected: the connection is over. The peer has disconnected, or has
	// confirmed our Disconnect, or is silent. Set: Reason and Private, if the peer
	// gave any.
	Disconnected

	// Released: nothing of the connection is under way any more; its ID is void
	// and its queue pair number may be used again.
	Released
)

var kinds = [...]string{
	Requested: "requested", Granted: "granted", Established: "established", Rejected: "rejected",
	TimedOut: "timed-out", Unreachable: "unreachable", Disconnected: "disconnected", Released: "released",
}

// String returns the name.
func (k Kind) String() string {
	if int(k) < len(kinds) && k != 0 {
		return kinds[k]
	}
	return "event-" + strconv.Itoa(int(k))
}

// Event is what happened, and what the peer told of itself. Private is the
// receiver's to keep.
type Event struct {
	Kind Kind
	ID   ID

	From    netip.AddrPort // where the peer receives; data packets go there too
	Own     bool           // the peer is of our own kind
	GUID    uint64         // the peer's
	Service wire.ServiceID // that the peer asks for
	CMA     wire.CMA       // who connects to whom, if Service is of the TCP port space
	Peer    End            // the peer's queue pair

	MTU        wire.MTU // of the path; of a Rejected: one that would do, or 0
	Unreliable bool     // UC instead of RC
	Retries    uint8    // 3 bits: how often we are to repeat a packet
	AckTimeout wire.Timeout

	Reason  wire.Reason
	Private []byte // between own ends as long as it was, but for Requested: as long as the field
}
