package main

import (
	"net/netip"
	"strings"
	"time"

	"github.com/viablk/viablk/cmd/viablk/internal/activity"
	"github.com/viablk/viablk/internal/block"
)

// activityOf translates the states of processes for package activity.
func activityOf(at time.Time, processes []processStatus) activity.State {
	s := activity.State{Time: at}
	for i := range processes {
		processes[i].addActivity(&s)
	}
	return s
}

// addActivity adds the exports, clients and remote disks of the process.
func (p *processStatus) addActivity(s *activity.State) {
	places := p.places()
	known, links, peers := p.latencies(), p.links(), p.peers()
	for i := range p.Faces {
		f := &p.Faces[i]
		b := places[f.Export]
		c := activity.Counters{
			Key: activity.Key{PID: p.PID, Export: f.Export, Face: f.Face}, Started: p.Started,
			State: f.State, Away: time.Duration(f.WaitingSeconds * float64(time.Second)), Reason: f.Reason,
			Backend: b.backend, Remote: b.remote, Connections: f.Connections, InFlight: f.InFlight,
			Reads: f.Reads, Writes: f.Writes, Others: othersOf(&f.Counts), BytesRead: f.BytesRead, BytesWritten: f.BytesWritten,
			Errors: f.Errors, Waits: f.Waits, Throttled: b.throttled, Limited: b.limited,
			Latency: known[faceKey{f.Export, f.Face}],
		}
		for _, x := range f.Paths {
			c.Paths = append(c.Paths, activity.HostPath{
				Host: x.Host, State: string(x.State), Reason: x.Error, Queues: x.Queues, Requests: x.Requests, Losses: x.Losses, LastLoss: x.LastLoss,
			})
		}
		if b.backend == "via+"+roceProvider {
			c.Network = links.all
		} else if f.Face == "via+"+roceProvider {
			c.Network = links.of(peers[faceKey{f.Export, f.Face}])
		}
		s.Exports = append(s.Exports, c)
	}
	for i := range p.Sessions {
		x := &p.Sessions[i]
		s.Sessions = append(s.Sessions, activity.Session{
			PID: p.PID, ID: x.ID, Face: x.Face, Peer: x.Peer, Identity: x.Identity, Exports: x.Exports, Connections: x.Connections,
			Opened: x.Opened, LastActive: x.LastActive, Reads: x.Reads, Writes: x.Writes,
			BytesRead: x.BytesRead, BytesWritten: x.BytesWritten, Waits: x.Waits,
		})
	}
	for i := range p.Initiators {
		x := &p.Initiators[i]
		s.Paths = append(s.Paths, activity.Path{
			PID: p.PID, Export: p.nameOf(i), Provider: x.Provider, Target: x.Target, State: string(x.State), Reason: x.Error,
			Away: time.Duration(x.DisconnectedSeconds * float64(time.Second)), Losses: x.SessionLosses,
		})
	}
}

// roceProvider is the provider whose packets the process counts.
const roceProvider = "roce"

// othersOf returns the requests that are no Reads and no Writes.
func othersOf(c *block.Counts) uint64 {
	return c.Flushes + c.Trims + c.WriteZeroes + c.Statuses + c.Prefetches
}

// behindExport is what is behind an export, whichever way clients come.
type behindExport struct {
	backend   string
	remote    bool
	limited   bool
	throttled time.Duration
}

// places returns what is behind the exports of the process, by name.
func (p *processStatus) places() map[string]behindExport {
	all := make(map[string]behindExport)
	for _, d := range p.Disks {
		all[d.Name] = behindExport{backend: d.Backend}
	}
	for i := range p.Initiators {
		all[p.nameOf(i)] = behindExport{backend: "via+" + p.Initiators[i].Provider, remote: true}
	}
	for _, l := range p.Limits {
		x := all[l.Export]
		x.limited, x.throttled = true, l.Waited
		all[l.Export] = x
	}
	return all
}

// peers returns the addresses of the clients of each export by its way in.
func (p *processStatus) peers() map[faceKey]map[netip.Addr]bool {
	all := make(map[faceKey]map[netip.Addr]bool)
	for i := range p.Sessions {
		x := &p.Sessions[i]
		a, ok := addressOf(x.Peer)
		if !ok {
			continue
		}
		for _, e := range x.Exports {
			k := faceKey{e, x.Face}
			if all[k] == nil {
				all[k] = make(map[netip.Addr]bool)
			}
			all[k][a] = true
		}
	}
	return all
}

// addressOf returns the IP address of a peer, if it has one.
func addressOf(peer string) (netip.Addr, bool) {
	peer, _, _ = strings.Cut(peer, "#")
	a, err := netip.ParseAddrPort(peer)
	return a.Addr().Unmap(), err == nil
}

// linkCounts are the packets of the process, by peer.
type linkCounts struct {
	all *activity.Network // nil without a link
	by  map[netip.Addr]*activity.Network
}

// links sums the packets of links that are open.
func (p *processStatus) links() linkCounts {
	n := linkCounts{by: make(map[netip.Addr]*activity.Network)}
	for i := range p.Network {
		for k := range p.Network[i].Links {
			l := &p.Network[i].Links[k]
			a, ok := addressOf(l.Peer)
			if !ok || l.Closed {
				continue
			}
			if n.by[a] == nil {
				n.by[a] = new(activity.Network)
			}
			if n.all == nil {
				n.all = new(activity.Network)
			}
			addLink(n.by[a], l)
			addLink(n.all, l)
		}
	}
	return n
}

// of sums the packets to some peers; it returns nil if there are none.
func (n *linkCounts) of(peers map[netip.Addr]bool) *activity.Network {
	var sum *activity.Network
	for a := range peers {
		if x := n.by[a]; x != nil {
			if sum == nil {
				sum = new(activity.Network)
			}
			sum.Sent, sum.Retransmitted = sum.Sent+x.Sent, sum.Retransmitted+x.Retransmitted
			sum.RoundTrip = max(sum.RoundTrip, x.RoundTrip)
		}
	}
	return sum
}

// addLink adds the packets of a link.
func addLink(n *activity.Network, l *linkReport) {
	n.Sent += l.Sent
	n.Retransmitted += l.Retransmitted
	n.RoundTrip = max(n.RoundTrip, time.Duration(l.RTT*float64(time.Microsecond)))
}
