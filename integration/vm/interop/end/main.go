// Command end is one end of a connection to a foreign RDMA program, to run in a
// virtual machine beside the kernel's own RDMA device: it speaks as rping or
// ibv_rc_pingpong do, over package roce and UDP sockets, and exits with 0 if
// everything was as it should be.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"net/netip"
	"os"
	"time"

	"github.com/viablk/viablk/via"
	"github.com/viablk/viablk/via/roce"
	"github.com/viablk/viablk/via/roce/interop"
	"github.com/viablk/viablk/via/roce/interop/oob"
)

// role is what the end does.
type role struct {
	name         string
	local, peer  netip.Addr
	exchange     netip.Addr // where ping-pongs tell each other of themselves
	port         int        // of rping: the service; of the exchange: TCP
	rounds, size int
	mtu          int
	psn          int
}

func main() {
	r, local, peer, exchange := role{}, "", "", ""
	flag.StringVar(&r.name, "role", "", "rping-server, rping-client, pingpong-server, pingpong-client or hold")
	flag.StringVar(&local, "local", "", "our `ADDRESS`")
	flag.StringVar(&peer, "peer", "", "the other `ADDRESS`")
	flag.StringVar(&exchange, "exchange", "", "TCP `ADDRESS` at which the server of a ping-pong listens")
	flag.IntVar(&r.port, "port", 7174, "the service of rping or hold, the TCP port of ping-pongs")
	flag.IntVar(&r.rounds, "rounds", 10, "how many; of hold: requests")
	flag.IntVar(&r.size, "size", 64, "bytes of a message")
	flag.IntVar(&r.mtu, "mtu", 0, "path MTU of ping-pongs")
	flag.IntVar(&r.psn, "psn", -1, "first PSN of ping-pongs; random unless given")
	flag.Parse()
	var err error
	if r.local, err = netip.ParseAddr(local); err == nil {
		r.peer, err = netip.ParseAddr(peer)
	}
	if err == nil && exchange != "" {
		r.exchange, err = netip.ParseAddr(exchange)
	}
	if err == nil {
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		err = r.run(ctx)
		cancel()
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func (r *role) run(ctx context.Context) error {
	if r.name == "hold" {
		return r.hold(ctx)
	}
	isRping := r.name == "rping-server" || r.name == "rping-client"
	bytes := interop.PingPongMemory(r.size)
	if isRping {
		bytes = interop.RpingMemory(r.size)
	}
	// The UDP port at which foreign peers answer.
	device := netip.AddrPortFrom(r.local, 4791).String()
	e, err := interop.Open(roce.New(roce.Options{}), device, max(bytes, 1<<16))
	if err != nil {
		return err
	}
	if isRping {
		err = r.rping(ctx, e)
	} else {
		err = r.pingPong(ctx, e)
	}
	return errors.Join(err, e.Close())
}

// rping is either end of rping.
func (r *role) rping(ctx context.Context, e *interop.End) error {
	receive := e.OfferReceive()
	if r.name == "rping-client" {
		to := fmt.Sprintf("%s/%d", netip.AddrPortFrom(r.peer, 4791), r.port)
		if err := e.Connect(ctx, to, receive); err != nil {
			return err
		}
		return e.RpingAsk(ctx, receive, r.rounds, r.size)
	}
	at := fmt.Sprintf("%s/%d", netip.AddrPortFrom(r.local, 4791), r.port)
	if err := e.Accept(ctx, at, func() { fmt.Println("listening") }, receive); err != nil {
		return err
	}
	return e.RpingServe(ctx, receive, r.rounds, r.size)
}

// pingPong is either end of ibv_rc_pingpong.
func (r *role) pingPong(ctx context.Context, e *interop.End) error {
	half, err := e.Prepare(r.peer, r.mtu)
	if err != nil {
		return err
	}
	if r.psn >= 0 {
		half.Local.PSN = uint32(r.psn)
	}
	receives := e.PingPongReceives(r.size)
	first := r.name == "pingpong-client"
	if first {
		err = r.ask(ctx, e, half, receives)
	} else {
		err = r.answer(ctx, e, half, receives)
	}
	if err != nil {
		return err
	}
	return e.PingPong(ctx, receives, r.rounds, r.size, first)
}

func (r *role) ask(ctx context.Context, e *interop.End, half *interop.Half, receives []*via.Work) error {
	x, err := oob.Dial(ctx, netip.AddrPortFrom(r.exchange, uint16(r.port)).String(), half.Local)
	if err != nil {
		return errors.Join(err, half.Close())
	}
	if err := r.join(e, half, x.Peer, receives); err != nil {
		return errors.Join(err, x.Close())
	}
	return x.Done(ctx)
}

func (r *role) answer(ctx context.Context, e *interop.End, half *interop.Half, receives []*via.Work) error {
	l, err := oob.Listen(netip.AddrPortFrom(r.exchange, uint16(r.port)).String(), 0)
	if err != nil {
		return errors.Join(err, half.Close())
	}
	defer func() { _ = l.Close() }()
	fmt.Println("listening")
	x, err := l.Accept(ctx)
	if err != nil {
		return errors.Join(err, half.Close())
	}
	if err := r.join(e, half, x.Peer, receives); err != nil {
		return errors.Join(err, x.Close())
	}
	return x.Answer(ctx, half.Local)
}

func (r *role) join(e *interop.End, half *interop.Half, peer oob.End, receives []*via.Work) error {
	link, err := half.Connect(peer)
	if err != nil {
		return err
	}
	return e.Start(link, receives...)
}
