package roce_test

import (
	"fmt"
	"net/netip"
	"sync"
	"testing"
	"time"

	"github.com/viablk/viablk/via"
	"github.com/viablk/viablk/via/roce"
	"github.com/viablk/viablk/via/roce/port"
)

// More completion queues than an endpoint has shards share the shards. A
// goroutine drives each queue, and sleeps and wakes.
func TestMoreQueuesThanShards(t *testing.T) {
	const queues, messages = 70, 20
	p := roce.New(roce.Options{})
	x, y := newParty(t, p, ""), newParty(t, p, "")
	host := freePort(t, "127.0.0.1")
	var cqs [queues][2]*via.CQ
	var vis [queues][2]*via.VI
	for i := range queues {
		for j, z := range []*party{x, y} {
			cq, err := z.nic.CreateCQ(2 * depth)
			check(t, err)
			cqs[i][j], vis[i][j] = cq, z.newVI(via.ReliableDelivery, cq)
		}
		link(t, host, vis[i][0], vis[i][1], y.nic)
	}
	var wait sync.WaitGroup
	failed := make(chan error, 2*queues)
	descs := make([][2][]*via.Descriptor, queues)
	for i := range queues {
		for j, z := range []*party{x, y} {
			descs[i][j] = []*via.Descriptor{z.build(via.OpSend, 64*i, 64, nil), z.build(via.OpRecv, 64*i, 64, nil)}
			check(t, vis[i][j].PostRecv(descs[i][j][1]))
		}
	}
	for i := range queues {
		for j := range 2 {
			wait.Add(1)
			go func() {
				defer wait.Done()
				if err := exchange(vis[i][j], cqs[i][j], descs[i][j], j == 0, messages); err != nil {
					failed <- fmt.Errorf("queue %d, end %d: %w", i, j, err)
				}
			}()
		}
	}
	wait.Wait()
	close(failed)
	for err := range failed {
		t.Error(err)
	}
	for i := range queues {
		for j := range 2 {
			check(t, vis[i][j].Disconnect())
			for cqs[i][j].Poll(x.batch[:]) != 0 {
			}
			check(t, vis[i][j].Destroy())
			check(t, cqs[i][j].Destroy())
		}
	}
	x.close()
	y.close()
}

// exchange exchanges messages with the other end, and sleeps in between. The
// caller posts the first receive.
func exchange(vi *via.VI, cq *via.CQ, d []*via.Descriptor, begins bool, messages int) error {
	send, recv := d[0], d[1]
	var batch [4]via.Completion
	post := func() error { return vi.PostRecv(recv) }
	sent, got := !begins, false
	if begins {
		if err := vi.PostSend(send); err != nil {
			return err
		}
	}
	deadline := time.Now().Add(time.Minute)
	for round := 0; round < messages; {
		n := cq.Poll(batch[:])
		for _, c := range batch[:n] {
			if c.Status.Failed() {
				return fmt.Errorf("round %d: %v", round, c.Status)
			}
			sent, got = sent || !c.Recv, got || c.Recv
		}
		if !sent || !got {
			if time.Now().After(deadline) {
				return fmt.Errorf("stuck in round %d: sent %v, received %v", round, sent, got)
			}
			sleep(cq, time.Second)
			continue
		}
		sent, got = false, false
		if round++; round < messages {
			if err := post(); err != nil {
				return err
			}
		} else if begins {
			return nil
		}
		if err := vi.PostSend(send); err != nil {
			return err
		}
	}
	for !sent { // the last answer
		n := cq.Poll(batch[:])
		for _, c := range batch[:n] {
			if c.Status.Failed() && c.Status&via.StatusErrorMask != via.StatusFlushed {
				return fmt.Errorf("the last send: %v", c.Status)
			}
			sent = sent || !c.Recv
		}
		if time.Now().After(deadline) {
			return fmt.Errorf("the last send is not done")
		}
		if n == 0 {
			sleep(cq, time.Second)
		}
	}
	return nil
}

// crossed is a port whose first two shards receive each other's packets.
type crossed struct {
	port.Port
	in [2]port.Shard
}

func (p *crossed) Shard(i int) (port.Shard, error) {
	if p.in[0] == nil {
		for j := range p.in {
			l, err := p.Port.Shard(j)
			if err != nil {
				return nil, err
			}
			p.in[j] = l
		}
	}
	l, err := p.Port.Shard(i)
	if err != nil || i >= len(p.in) {
		return l, err
	}
	return &crossedShard{l, p.in[1-i]}, nil
}

type crossedShard struct {
	port.Shard
	in port.Shard
}

func (s *crossedShard) FD() int                                 { return s.in.FD() }
func (s *crossedShard) Receive(dst []port.Arrival) (int, error) { return s.in.Receive(dst) }
func (s *crossedShard) Intact(a *port.Arrival) bool             { return s.in.Intact(a) }

// Packets that arrive at the wrong shard, by steering or coalescing, reach
// their link.
func TestMisroutedPackets(t *testing.T) {
	network := port.NewNetwork(1, 9000)
	open := func(local netip.AddrPort) (port.Port, error) {
		p, err := network.Open(local)
		if local.Addr().As4()[3] == 1 {
			p = &crossed{Port: p}
		}
		return p, err
	}
	p := roce.New(roce.Options{Open: open})
	x, y := newParty(t, p, "10.0.0.1"), newParty(t, p, "10.0.0.2")
	link(t, "10.0.0.2", x.vi, y.vi, y.nic)
	const size = 300_000
	for i := range size {
		x.payload(0, size)[i] = byte(i % 251)
	}
	check(t, y.vi.PostRecv(y.build(via.OpRecv, size, size, nil)))
	check(t, x.vi.PostSend(x.build(via.OpSend, 0, size, nil)))
	check(t, x.vi.PostSend(x.build(via.OpRdmaWrite, 0, size, y)))
	done := 0
	within(t, "a send, a write and a receive", func() bool { done += x.poll() + y.poll(); return done == 3 })
	misrouted := uint64(0)
	for _, e := range p.Statistics() {
		misrouted += e.CM.Misrouted
		for i := range e.Shards {
			misrouted += e.Shards[i].Misrouted
		}
	}
	if misrouted == 0 {
		t.Error("no packet arrived at the wrong shard")
	}
	for _, at := range []int{0, size} {
		for i, b := range y.payload(at, size) {
			if b != byte(i%251) {
				t.Fatalf("byte %d is %d", i, b)
			}
		}
	}
	x.close()
	y.close()
}
