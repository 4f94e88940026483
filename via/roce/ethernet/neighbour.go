package ethernet

import (
	"net/netip"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"time"
	"weak"

	"golang.org/x/sys/unix"
)

// Parameters of address resolution.
const (
	askAgain   = 200 * time.Millisecond // interval of requests without an answer
	askAnew    = time.Minute            // age at which an address is requested again; it stays in use
	giveUp     = 3 * time.Second        // held frames are dropped without an answer
	mostFrames = 64                     // held frames
)

// neighbour is a station of the link that packets are sent to: a peer or a
// router. The owner of a [Peer] keeps it alive. It is safe for concurrent use.
type neighbour struct {
	addr  netip.Addr
	mac   atomic.Uint64 // hardwareAddr and known
	heard atomic.Int64  // time.Duration of the last answer
	asked atomic.Int64  // time.Duration of the last request

	mu sync.Mutex
	// +checklocks:mu
	waiting [][]byte // frames, until the address is known
	// +checklocks:mu
	since time.Duration // time of the first waiting frame
}

// known is set in a neighbour's mac.
const known = 1 << 63

// resolve returns the Ethernet address.
func (n *neighbour) resolve() (hardwareAddr, bool) {
	v := n.mac.Load()
	var b [8]byte
	be.PutUint64(b[:], v)
	return hardwareAddr(b[2:]), v&known != 0
}

// isDue reports whether a request is due, to one caller only.
func (n *neighbour) isDue(now time.Duration) bool {
	asked := n.asked.Load()
	due := asked == 0 || now-time.Duration(asked) >= askAgain
	if n.mac.Load()&known != 0 {
		due = due && now-time.Duration(n.heard.Load()) >= askAnew
	}
	return due && n.asked.CompareAndSwap(asked, int64(now))
}

// holding is the result of neighbour.hold.
type holding int

const (
	heldFirst holding = iota // the first: the caller starts the requests
	held
	heldNot  // dropped: too many wait
	resolved // the address has become known
)

// hold keeps a copy of a frame until the address is known.
func (n *neighbour) hold(frame []byte, now time.Duration) holding {
	n.mu.Lock()
	defer n.mu.Unlock()
	switch _, ok := n.resolve(); {
	case ok:
		return resolved
	case len(n.waiting) == mostFrames:
		return heldNot
	}
	n.waiting = append(n.waiting, slices.Clone(frame))
	if len(n.waiting) > 1 {
		return held
	}
	n.since = now
	return heldFirst
}

// isAwaited reports whether frames wait, and drops them after giveUp.
func (n *neighbour) isAwaited(now time.Duration) bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	if len(n.waiting) > 0 && now-n.since >= giveUp {
		n.waiting = nil
	}
	return len(n.waiting) > 0
}

// learn sets the address. It calls emit for the waiting frames under the lock,
// so that they precede the frames of other senders.
func (n *neighbour) learn(mac hardwareAddr, now time.Duration, emit func([]byte) error) {
	var b [8]byte
	copy(b[2:], mac[:])
	n.mu.Lock()
	defer n.mu.Unlock()
	for _, frame := range n.waiting {
		copy(frame[frameOffset+etherAtDst:], mac[:])
		_ = emit(frame)
	}
	n.waiting = nil
	n.mac.Store(be.Uint64(b[:]) | known)
	n.heard.Store(int64(now))
}

// neighbourhood holds the live neighbours. Messages of unauthenticated stations
// create no entries. It is safe for concurrent use.
type neighbourhood struct {
	mu sync.Mutex
	// +checklocks:mu
	all map[netip.Addr]weakNeighbour
	// Neighbours with waiting frames, which stay alive when the owners of their
	// peers do not: a sender may forget a peer after one packet.
	// +checklocks:mu
	asked map[netip.Addr]*neighbour
}

// mostAsked bounds the neighbours that waiting frames keep alive.
const mostAsked = 256

type weakNeighbour = weak.Pointer[neighbour]

// find returns the neighbour at an address, or nil.
func (t *neighbourhood) find(a netip.Addr) *neighbour {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.all[a].Value()
}

// get returns the neighbour at an address.
func (t *neighbourhood) get(a netip.Addr) *neighbour {
	t.mu.Lock()
	defer t.mu.Unlock()
	if n := t.all[a].Value(); n != nil {
		return n
	}
	n := &neighbour{addr: a}
	t.all[a] = weak.Make(n)
	runtime.AddCleanup(n, t.forget, a)
	return n
}

// keep keeps a neighbour alive while frames wait for its address.
func (t *neighbourhood) keep(n *neighbour) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.asked == nil {
		t.asked = make(map[netip.Addr]*neighbour)
	}
	if len(t.asked) < mostAsked {
		t.asked[n.addr] = n
	}
}

// awaited returns the neighbours with waiting frames.
func (t *neighbourhood) awaited(now time.Duration) []*neighbour {
	t.mu.Lock()
	defer t.mu.Unlock()
	var all []*neighbour
	for a, p := range t.all {
		if n := p.Value(); n != nil && n.isAwaited(now) {
			all = append(all, n)
		} else {
			delete(t.asked, a)
		}
	}
	return all
}

// forget removes a neighbour that is no longer alive.
func (t *neighbourhood) forget(a netip.Addr) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.all[a].Value() == nil {
		delete(t.all, a)
	}
}

// An ARP packet for IPv4 over Ethernet, RFC 826.
const (
	arpAtFormat    = 0 // hardware, protocol and the lengths of their addresses
	arpAtOperation = 6
	arpAtSrcMAC    = 8
	arpAtSrc       = 14
	arpAtDstMAC    = 18
	arpAtDst       = 24
	arpSize        = 28

	arpFormat  = 0x0001_0800_06_04
	arpRequest = 1
	arpReply   = 2
)

// putARP writes an ARP packet.
func putARP(b []byte, operation uint16, srcMAC hardwareAddr, src netip.Addr, dstMAC hardwareAddr, dst netip.Addr) {
	be.PutUint64(b[arpAtFormat:], arpFormat<<16|uint64(operation))
	from, to := src.As4(), dst.As4()
	copy(b[arpAtSrcMAC:], srcMAC[:])
	copy(b[arpAtSrc:], from[:])
	copy(b[arpAtDstMAC:], dstMAC[:])
	copy(b[arpAtDst:], to[:])
}

// A message of neighbour discovery, RFC 4861: the ICMPv6 header, flags, the
// target address, and options. An option is a kind, a length in units of 8
// bytes, and an Ethernet address.
const (
	icmpAtKind   = 0
	icmpAtCode   = 1
	icmpAtSum    = 2
	ndAtFlags    = 4
	ndAtTarget   = 8
	ndAtOptions  = 24
	ndOptionSize = 8
	ndSize       = ndAtOptions + ndOptionSize

	ndSolicitation  = 135
	ndAdvertisement = 136
	ndSolicited     = 0x40 // flag: an answer
	ndOverride      = 0x20 // flag: the newest address
	ndSourceMAC     = 1    // option
	ndTargetMAC     = 2    // option
	ndHopLimit      = 255  // which no router lets pass
)

// putND writes a message of neighbour discovery.
func putND(b []byte, kind, flags byte, src, dst, target netip.Addr, option byte, mac hardwareAddr) {
	b = b[:ndSize]
	clear(b)
	b[icmpAtKind] = kind
	b[ndAtFlags] = flags
	t := target.As16()
	copy(b[ndAtTarget:], t[:])
	b[ndAtOptions], b[ndAtOptions+1] = option, ndOptionSize/8
	copy(b[ndAtOptions+2:], mac[:])
	be.PutUint16(b[icmpAtSum:], checksum(sum(pseudoSum(src, dst, unix.IPPROTO_ICMPV6, len(b)), b)))
}

// ndOption returns the Ethernet address in an option of a kind.
func ndOption(b []byte, kind byte) (hardwareAddr, bool) {
	for len(b) >= ndOptionSize {
		n := int(b[1]) * 8
		if n == 0 || n > len(b) {
			break
		}
		if b[0] == kind && n == ndOptionSize {
			mac := hardwareAddr(b[2:])
			return mac, !mac.isGroup()
		}
		b = b[n:]
	}
	return hardwareAddr{}, false
}

// solicitedGroup returns the group, and its Ethernet address, that a station
// with an IPv6 address belongs to.
func solicitedGroup(a netip.Addr) (netip.Addr, hardwareAddr) {
	b := a.As16()
	group := [16]byte{0: 0xff, 1: 0x02, 11: 0x01, 12: 0xff, 13: b[13], 14: b[14], 15: b[15]}
	return netip.AddrFrom16(group), hardwareAddr{0x33, 0x33, 0xff, b[13], b[14], b[15]}
}
