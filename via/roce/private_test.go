package roce_test

import (
	"context"
	"errors"
	"math/rand/v2"
	"net/netip"
	"sync"
	"testing"
	"time"

	"github.com/viablk/viablk/via"
	"github.com/viablk/viablk/via/roce"
	"github.com/viablk/viablk/via/roce/port"
	"github.com/viablk/viablk/via/roce/wire"
)

// privateAt is the offset of the private data in a packet, after the headers of
// packet and MAD. For a REQ it is the part left to the consumer.
var privateAt = map[wire.Attribute]int{
	wire.AttributeREQ:  wire.BTHSize + wire.DETHSize + 24 + 140 + wire.CMASize,
	wire.AttributeREP:  wire.BTHSize + wire.DETHSize + 24 + 36,
	wire.AttributeREJ:  wire.BTHSize + wire.DETHSize + 24 + 84,
	wire.AttributeRTU:  wire.BTHSize + wire.DETHSize + 24 + 8,
	wire.AttributeDREQ: wire.BTHSize + wire.DETHSize + 24 + 12,
	wire.AttributeDREP: wire.BTHSize + wire.DETHSize + 24 + 8,
}

// mitm modifies the private data of one kind of message between two ends.
type mitm struct {
	network   *port.Network
	x, y      *party
	attribute wire.Attribute

	mu      sync.Mutex
	change  func(private []byte)
	changed int // messages
}

func (m *mitm) modify(from, to netip.AddrPort, b []byte) bool {
	var p wire.Packet
	if p.Decode(b, wire.DefaultPKey) != wire.Accepted || p.DestQP != wire.GSI {
		return false
	}
	end := len(b) - wire.ICRCSize
	if a, _, r := wire.PeekMAD(p.Payload); r == wire.Accepted && a == m.attribute {
		m.mu.Lock()
		defer m.mu.Unlock()
		m.change(b[privateAt[a]:end])
		var c wire.ICRC
		c.Set(from, to)
		c.Seal(b[end:], wire.Identification{}, b[:end])
		m.changed++
	}
	return false
}

// For any content and length of a peer's private data, a handshake succeeds or
// fails, a connection ends, and the next connection works.
func TestPrivateDataOfInvalidLength(t *testing.T) {
	for name, attribute := range map[string]wire.Attribute{
		"REQ": wire.AttributeREQ, "REP": wire.AttributeREP, "REJ": wire.AttributeREJ,
		"RTU": wire.AttributeRTU, "DREQ": wire.AttributeDREQ, "DREP": wire.AttributeDREP,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := rand.New(rand.NewPCG(7, uint64(attribute)))
			m := newMITM(t, attribute)
			for at := range 21 { // mark, length and connect message
				for _, value := range []byte{0, 1, 9, 192, 217, 255} {
					m.modifies(t, func(private []byte) {
						private[at] = value
						for i := at + 1; i < len(private) && value&1 != 0; i++ {
							private[i] = byte(r.Uint32())
						}
					})
					if t.Failed() {
						t.Fatalf("byte %d is %d", at, value)
					}
				}
			}
			m.x.close()
			m.y.close()
		})
	}
}

// newMITM returns two ends and a mitm between them.
func newMITM(t *testing.T, attribute wire.Attribute) *mitm {
	t.Helper()
	m := &mitm{attribute: attribute, network: port.NewNetwork(1, 9000)}
	p := roce.New(roce.Options{Open: m.network.Open, Timeout: 20 * time.Millisecond, Retries: 3})
	m.x, m.y = newParty(t, p, "10.0.0.1"), newParty(t, p, "10.0.0.2")
	return m
}

// modifies connects and disconnects the ends with modified messages, and once
// more without.
func (m *mitm) modifies(t *testing.T, change func(private []byte)) {
	t.Helper()
	x, y := m.x, m.y
	m.mu.Lock()
	m.change, m.changed = change, 0
	m.mu.Unlock()
	m.network.SetFaults(port.Faults{Lose: m.modify})
	a, b := x.newVI(via.ReliableDelivery, x.cq), y.newVI(via.ReliableDelivery, y.cq)
	x.used, y.used = 0, 0
	if m.attempt(a, b) == nil {
		check(t, b.PostSend(y.build(via.OpSend, 0, 64, nil))) // without a receive
		y.cq.Poll(y.batch[:])
		check(t, a.Disconnect())
		within(t, "the end of the connection", func() bool {
			x.cq.Poll(x.batch[:])
			y.cq.Poll(y.batch[:])
			return b.State() != via.StateConnected
		})
	}
	within(t, "a changed message", func() bool {
		m.mu.Lock()
		defer m.mu.Unlock()
		return m.changed > 0
	})
	m.network.SetFaults(port.Faults{})
	c, d := x.newVI(via.ReliableDelivery, x.cq), y.newVI(via.ReliableDelivery, y.cq)
	link(t, "10.0.0.2", c, d, y.nic)
	for _, vi := range []*via.VI{a, b, c, d} {
		check(t, vi.Disconnect())
	}
	for x.cq.Poll(x.batch[:])+y.cq.Poll(y.batch[:]) != 0 {
	}
	for _, vi := range []*via.VI{a, b, c, d} {
		check(t, vi.Destroy())
	}
}

// attempt connects two VIs, or one end refuses the other.
func (m *mitm) attempt(a, b *via.VI) error {
	addr := via.Address{Host: "10.0.0.2", Discriminator: "hostile"}
	l, err := m.y.nic.Listen(addr)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	accepted := make(chan error, 1)
	go func() {
		r, err := l.Wait(ctx)
		switch {
		case err != nil:
		case m.attribute == wire.AttributeREJ:
			err = r.Reject()
		default:
			if err = r.Accept(ctx, b); err != nil {
				_ = r.Reject() // the requester may be gone
			}
		}
		accepted <- err
	}()
	if _, err = a.Connect(ctx, addr); err != nil {
		cancel() // the request may not have arrived
	}
	return errors.Join(err, <-accepted, l.Close())
}
