package roce

import (
	"errors"
	"net"
	"net/netip"
	"sync"
	"syscall"
	"time"
)

// portChecks find out whether the hosts of peers that do not answer refuse
// packets to their UDP ports, as the kernel of a host does once the process of
// the peer is dead. The links of a refused port end at once, not after their
// timeouts.
//
// An ICMP message can be forged. So a check sends from two sockets of its own,
// one after the other, whose ports the kernel chooses, and believes the error
// that the kernel reports for both: who does not see the packets has to guess
// 15 bits twice, each time before a round trip is over. And a link ends only if
// it stood still from its second time-out in a row until then.
type portChecks struct {
	mu sync.Mutex
	// +checklocks:mu
	running map[netip.AddrPort]*portCheck // also those that are over, until pause
	// +checklocks:mu
	ended bool // no check begins any more
	all   sync.WaitGroup
}

// portCheck is the check of one address.
type portCheck struct {
	links []stillLink
	until time.Duration // no other check begins before; 0 while it runs
	conn  *net.UDPConn  // that it reads, or nil
}

// stillLink is a link that waits for a check, and its life when it began to.
type stillLink struct {
	link *link
	life uint64
}

const (
	stillTimeouts    = 2 // of a link in a row, until it is checked
	portCheckSockets = 2
	portCheckWait    = 200 * time.Millisecond // for an ICMP message; no answer is one, too
	portCheckRest    = 100 * time.Millisecond // after a check without a result
)

// add has a check of its peer decide about a link, from its own goroutine. It
// does not block.
func (p *portChecks) add(l *link, to netip.AddrPort, life uint64, now time.Duration) {
	p.mu.Lock()
	defer p.mu.Unlock()
	c := p.running[to]
	switch {
	case p.ended || c != nil && c.until > now:
		return
	case c == nil || c.until != 0:
		c = &portCheck{}
		if p.running == nil {
			p.running = make(map[netip.AddrPort]*portCheck)
		}
		p.running[to] = c
		p.all.Add(1)
		go p.routineCheck(c, l.endpoint.local.Addr(), to)
	}
	for i := range c.links {
		if c.links[i].link == l {
			return
		}
	}
	c.links = append(c.links, stillLink{l, life})
}

// routineCheck checks an address and ends the links that stand still.
func (p *portChecks) routineCheck(c *portCheck, from netip.Addr, to netip.AddrPort) {
	defer p.all.Done()
	refused := true
	for range portCheckSockets {
		refused = refused && p.isRefused(c, from, to)
	}
	p.mu.Lock()
	links := c.links
	c.links = nil
	if c.until = clock(); !refused {
		c.until += portCheckRest
	}
	for at, x := range p.running {
		if x != c && x.until != 0 && x.until < c.until {
			delete(p.running, at)
		}
	}
	p.mu.Unlock()
	if !refused {
		return
	}
	for _, s := range links {
		if s.link.Life() == s.life {
			s.link.peerGone()
		}
	}
}

// isRefused sends a packet that peers drop first, see probe, from a new socket,
// and reports whether the kernel says that the port is closed.
func (p *portChecks) isRefused(c *portCheck, from netip.Addr, to netip.AddrPort) bool {
	probe, err := newProbe(from, to)
	if err != nil {
		return false
	}
	defer probe.conn.Close()
	p.mu.Lock()
	c.conn = probe.conn
	ended := p.ended
	p.mu.Unlock()
	if ended {
		return false
	}
	_ = probe.conn.SetReadDeadline(time.Now().Add(portCheckWait)) // else Read fails
	if err = probe.send(0); err == nil {
		var b [1]byte
		_, err = probe.conn.Read(b[:])
	}
	return errors.Is(err, syscall.ECONNREFUSED)
}

// end ends the checks, and waits for them.
func (p *portChecks) end() {
	p.mu.Lock()
	p.ended = true
	for _, c := range p.running {
		if c.conn != nil {
			_ = c.conn.Close() // once more does no harm
		}
	}
	p.mu.Unlock()
	p.all.Wait()
}
