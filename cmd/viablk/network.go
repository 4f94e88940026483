package main

import (
	"fmt"
	"slices"
	"time"

	"github.com/viablk/viablk/via/roce"
	"github.com/viablk/viablk/via/roce/cm"
	"github.com/viablk/viablk/via/roce/port"
)

// networkReport is what one UDP address of RoCE is and did.
type networkReport struct {
	Local         string       `json:"local"`
	Segmentation  bool         `json:"segmentation_offload"` // UDP_SEGMENT
	Coalescing    bool         `json:"coalescing"`           // UDP_GRO
	Sent          uint64       `json:"packets_sent"`
	SendCalls     uint64       `json:"send_calls"` // system calls
	Received      uint64       `json:"packets_received"`
	ReceiveCalls  uint64       `json:"receive_calls"` // those that returned some
	EmptyCalls    uint64       `json:"empty_receive_calls"`
	Retransmitted uint64       `json:"packets_retransmitted"` // of all links ever
	BytesSent     uint64       `json:"bytes_sent"`
	BytesReceived uint64       `json:"bytes_received"`
	Dropped       uint64       `json:"dropped"`    // no room in the device
	Overrun       uint64       `json:"overrun"`    // no room in our receive buffer
	Malformed     uint64       `json:"malformed"`  // too short, or too long
	BadICRC       uint64       `json:"bad_icrc"`   // of a connection, or for queue pair 1
	Unknown       uint64       `json:"unknown"`    // for no queue pair that there is
	BadSource     uint64       `json:"bad_source"` // not from the peer
	Refused       uint64       `json:"refused"`    // as no queue pair takes them
	QueueFull     uint64       `json:"queue_full"` // a queue inside was full
	Misrouted     uint64       `json:"misrouted"`  // arrived at another shard
	Errors        uint64       `json:"errors"`     // system calls that failed
	Manager       cmReport     `json:"connection_manager"`
	Links         []linkReport `json:"links"` // connections, the last that were closed among them
}

// cmReport is what the connection manager of an address did.
type cmReport struct {
	Sent          uint64 `json:"messages_sent"`
	Received      uint64 `json:"packets_received"`
	Retransmitted uint64 `json:"retransmitted"`
	Duplicates    uint64 `json:"duplicates"`
	Malformed     uint64 `json:"malformed"`
	UnknownID     uint64 `json:"unknown_id"` // of no connection
	BadSource     uint64 `json:"bad_source"` // of a connection, not from its peer
	Refused       uint64 `json:"refused"`
	Challenged    uint64 `json:"challenged"`
	Evicted       uint64 `json:"evicted"`
	TimedOut      uint64 `json:"timed_out"`
	Dropped       uint64 `json:"dropped"`
	Connections   int    `json:"connections"`
	Pending       int    `json:"pending"`
}

// linkReport is one connection.
type linkReport struct {
	Peer          string  `json:"peer"`
	QueuePair     uint32  `json:"queue_pair"`
	MTU           int     `json:"path_mtu"` // bytes of payload
	RTT           float64 `json:"rtt_us"`   // smoothed; 0 before it was measured
	Window        int     `json:"window"`   // packets in flight at most
	Sent          uint64  `json:"packets_sent"`
	Received      uint64  `json:"packets_received"`
	Retransmitted uint64  `json:"retransmitted"`
	Timeouts      uint64  `json:"timeouts"`
	NAKsSent      uint64  `json:"naks_sent"`
	NAKsReceived  uint64  `json:"naks_received"`
	Duplicates    uint64  `json:"duplicates"`
	Closed        bool    `json:"closed"`
}

// networkReports returns those of this process.
func networkReports() []networkReport {
	var out []networkReport
	for _, e := range slices.Concat(overRoCE.Statistics(), plainRoCE.Statistics()) {
		r := networkReport{
			Local: e.Local.String(), Segmentation: e.Offloads.Segmentation, Coalescing: e.Offloads.Coalescing,
			Manager: newCMReport(&e.Manager), Links: []linkReport{},
		}
		r.count(&e.CMPort, &e.CM)
		for i := range e.Shards {
			r.add(&e.Shards[i])
		}
		out = append(out, r)
	}
	return out
}

// count adds the counters of a shard.
func (r *networkReport) count(p *port.Counters, l *roce.ShardCounters) {
	r.Sent += p.Sent
	r.SendCalls += p.SendCalls
	r.Received += p.Received
	r.ReceiveCalls += p.ReceiveCalls
	r.EmptyCalls += p.EmptyCalls
	r.BytesSent += p.BytesSent
	r.BytesReceived += p.BytesReceived
	r.Dropped += p.Dropped
	r.Overrun += p.Overrun
	r.Malformed += p.Malformed
	r.BadICRC += p.BadICRC
	r.Unknown += l.Unknown
	r.BadSource += l.BadSource
	r.Refused += l.Refused
	r.QueueFull += l.QueueFull
	r.Misrouted += l.Misrouted
	r.Errors += l.Errors
}

// add adds a shard and its links.
func (r *networkReport) add(l *roce.ShardStatistics) {
	r.count(&l.Port, &l.ShardCounters)
	r.Retransmitted += l.Retransmitted
	for _, x := range l.Recent {
		r.Links = append(r.Links, newLinkReport(x, true))
	}
	for _, x := range l.Links {
		r.Links = append(r.Links, newLinkReport(x, false))
	}
}

func newCMReport(c *cm.Counters) cmReport {
	return cmReport{
		Sent: c.Sent, Received: c.Received, Retransmitted: c.Retransmitted, Duplicates: c.Duplicates,
		Malformed: c.Malformed, UnknownID: c.UnknownID, BadSource: c.BadSource, Refused: c.Refused,
		Challenged: c.Challenged, Evicted: c.Evicted,
		TimedOut: c.TimedOut, Dropped: c.Dropped, Connections: c.Connections, Pending: c.Pending,
	}
}

func newLinkReport(l roce.LinkStatistics, closed bool) linkReport {
	c := &l.Counters
	return linkReport{
		Peer: l.Peer.String(), QueuePair: l.QP, MTU: l.MTU,
		RTT: float64(c.RTT) / float64(time.Microsecond), Window: c.Window,
		Sent: c.Sent, Received: c.Received, Retransmitted: c.Retransmitted, Timeouts: c.Timeouts,
		NAKsSent: c.NAKsSent, NAKsReceived: c.NAKsReceived, Duplicates: c.Duplicates, Closed: closed,
	}
}

// networkRows describes them line by line.
func networkRows(reports []networkReport) [][]string {
	var rows [][]string
	for _, r := range reports {
		rows = append(rows,
			[]string{"network", r.Local},
			[]string{"network offloads", fmt.Sprintf("segmentation %s, coalescing %s", onOff(r.Segmentation), onOff(r.Coalescing))},
			[]string{"network drops", fmt.Sprintf(
				"%d without room to send, %d without room to receive, %d damaged, %d malformed, %d unknown, %d from a bad source, %d refused",
				r.Dropped, r.Overrun+r.QueueFull, r.BadICRC, r.Malformed, r.Unknown, r.BadSource, r.Refused)})
		for _, l := range r.Links {
			rows = append(rows, []string{"network peer", fmt.Sprintf(
				"%s: path MTU %d, round trip %.0f us, %d packets sent, %d retransmitted", l.Peer, l.MTU, l.RTT, l.Sent, l.Retransmitted)})
		}
	}
	return rows
}

func onOff(on bool) string {
	if on {
		return "on"
	}
	return "off"
}
