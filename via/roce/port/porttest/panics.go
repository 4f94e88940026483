package porttest

import (
	"net/netip"
	"sync/atomic"

	"github.com/viablk/viablk/via/roce/port"
)

// Panics plants panics in the shards of the ports that it opens.
type Panics struct{ planted atomic.Pointer[Panic] }

// Panic is where one is planted.
type Panic struct {
	Address string // of the port; empty: any
	Manager bool   // in shard 0, which is the connection manager's; else in any other
	Call    string // Receive, when it returns packets, Send or FD
}

// Plant has the next such call panic, once.
func (p *Panics) Plant(x Panic) { p.planted.Store(&x) }

// Wrap returns a function that opens ports as open does.
func (p *Panics) Wrap(open func(netip.AddrPort) (port.Port, error)) func(netip.AddrPort) (port.Port, error) {
	return func(local netip.AddrPort) (port.Port, error) {
		opened, err := open(local)
		return &panickyPort{opened, p}, err
	}
}

type panickyPort struct {
	port.Port
	panics *Panics
}

func (p *panickyPort) Shard(i int) (port.Shard, error) {
	s, err := p.Port.Shard(i)
	return &panickyShard{s, p, i}, err
}

type panickyShard struct {
	port.Shard
	port  *panickyPort
	index int
}

// pass panics if that is planted in a call of this shard.
func (s *panickyShard) pass(call string) {
	at := &s.port.panics.planted
	x := at.Load()
	if x == nil || x.Call != call || x.Manager != (s.index == 0) || x.Address != "" && x.Address != s.port.Local().Addr().String() {
		return
	}
	if at.CompareAndSwap(x, nil) {
		panic("planted in " + call)
	}
}

func (s *panickyShard) Receive(dst []port.Arrival) (int, error) {
	n, err := s.Shard.Receive(dst)
	if n > 0 {
		s.pass("Receive")
	}
	return n, err
}

func (s *panickyShard) Send(spans []port.Span) error {
	s.pass("Send")
	return s.Shard.Send(spans)
}

func (s *panickyShard) FD() int {
	s.pass("FD")
	return s.Shard.FD()
}
