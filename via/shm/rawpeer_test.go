package shm

import (
	"context"
	"encoding/binary"
	"errors"
	"net"
	"os"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/viablk/viablk/internal/memfd"
	"github.com/viablk/viablk/via"
)

// rawPeer speaks the control protocol and owns a forged segment: it can write
// every word that a peer can write, in any order, against every rule.
type rawPeer struct {
	tb     testing.TB
	conn   *net.UnixConn
	local  *offer
	out    writer   // of the forged ring
	victim *segment // as a peer maps it
	data   int      // the victim's bells
	space  int
	arenas map[uint64][]byte // of the victim, by number
	passed uint64            // arenas passed to the victim
	epoch  uint64            // forged sleeps
}

// rawConfig has two queues: its offers have two bells.
var rawConfig = via.LinkConfig{SendCQ: &cq{}, RecvCQ: &cq{}}

// dialRaw connects to a listener and sends nothing.
func dialRaw(tb testing.TB, path string) *net.UnixConn {
	tb.Helper()
	c, err := net.DialUnix("unixpacket", nil, &net.UnixAddr{Name: path, Net: "unixpacket"})
	check(tb, err)
	tb.Cleanup(func() { _ = c.Close() })
	return c
}

// rawHello is the connect message that the listeners of stations accept.
func rawHello() []byte { return rawHelloAt(via.ReliableDelivery) }

func rawHelloAt(level via.ReliabilityLevel) []byte {
	b := make([]byte, 17)
	binary.LittleEndian.PutUint16(b, 0x4156)
	b[2], b[3], b[4], b[6] = 1, 3, byte(level), 1
	binary.LittleEndian.PutUint32(b[8:], limits.MaxTransferSize)
	b[16] = 'd'
	return b
}

func newRawOffer(tb testing.TB) *offer {
	tb.Helper()
	o, err := newOffer(rawConfig)
	check(tb, err)
	tb.Cleanup(func() { closeRaw(o) })
	return o
}

func closeRaw(o *offer) {
	if o.segment.mem != nil {
		o.close()
	}
}

// attach connects a raw peer to a VI of the station.
func attach(tb testing.TB, s *station, l *via.Listener, vi *via.VI) *rawPeer {
	tb.Helper()
	p := &rawPeer{tb: tb, conn: dialRaw(tb, l.Addr().Host), local: newRawOffer(tb), arenas: make(map[uint64][]byte)}
	p.out = writer{ring: p.local.segment.ring()}
	hello := rawHelloAt(vi.Attributes().Reliability)
	check(tb, sendControl(p.conn, control{kind: controlHello, body: hello, fds: p.local.fds()}))
	check(tb, sendControl(p.conn, control{kind: controlReady}))
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	r, err := l.Wait(ctx)
	check(tb, err)
	check(tb, r.Accept(ctx, vi))
	m, err := receiveControl(p.conn)
	check(tb, err)
	if m.kind != controlAccept {
		tb.Fatalf("answer of kind %d", m.kind)
	}
	p.victim, err = attachSegment(m.fds[0])
	check(tb, err)
	p.data, p.space = m.fds[1], m.fds[2]
	tb.Cleanup(p.close)
	return p
}

func (p *rawPeer) close() {
	if p.victim == nil {
		return
	}
	_ = p.conn.Close()
	p.victim.close()
	p.victim = nil
	closeAll(p.data, p.space)
	for _, mem := range p.arenas {
		_ = unix.Munmap(mem)
	}
	closeRaw(p.local)
}

// word writes a word of the forged segment.
func (p *rawPeer) word(off int, v uint64) { storeWord(p.local.segment.mem, off, v) }

// entry forges an entry of the table of regions.
func (p *rawPeer) entry(handle uint32, bits, addr, length, arena, at uint64) {
	off := entryOffset(handle)
	p.word(off+offEntryAddr, addr)
	p.word(off+offEntryLength, length)
	p.word(off+offEntryArena, arena)
	p.word(off+offEntryAt, at)
	p.word(off, uint64(handle)<<32|bits)
}

// publish publishes the written records to the victim, and rings its bell.
func (p *rawPeer) publish() {
	p.word(offTail, p.out.tail)
	ringBell(p.data)
}

// record writes a record with a payload.
func (p *rawPeer) record(r record, payload []byte) {
	p.out.begin(r)
	p.out.put(payload)
	p.out.end()
}

// message sends a message in one record.
func (p *rawPeer) message(payload []byte) {
	n := uint32(len(payload))
	p.record(record{length: n, tag: tag{kind: recordMessage, flags: flagFirst | flagLast}, total: n}, payload)
	p.publish()
}

// arena passes memory to the victim and returns it.
func (p *rawPeer) arena(size int) (id uint64, mem []byte) {
	p.tb.Helper()
	mem, fd, err := memfd.Create("raw", size, 0)
	check(p.tb, err)
	p.tb.Cleanup(func() { _ = unix.Munmap(mem) })
	p.passed++
	check(p.tb, sendControl(p.conn, control{kind: controlArena, value: p.passed, size: uint64(size), fds: []int{fd}}))
	check(p.tb, unix.Close(fd))
	return p.passed, mem
}

// closed waits until the victim has closed the connection.
func (p *rawPeer) closed() {
	p.tb.Helper()
	_ = p.conn.SetReadDeadline(time.Now().Add(time.Minute)) // it may be closed here
	for {
		m, err := receiveControl(p.conn)
		switch {
		case errors.Is(err, os.ErrDeadlineExceeded):
			p.tb.Fatal("the victim kept the connection")
		case err != nil:
			return
		}
		closeAll(m.fds...)
	}
}

// dead polls the victim until a VI is in the error state, asleep in between,
// and checks that the peer learned of it.
func (s *station) dead(vi *via.VI, p *rawPeer) {
	s.tb.Helper()
	for vi.State() != via.StateError {
		if s.poll() == 0 && vi.State() != via.StateError && !s.sleep() {
			s.tb.Fatalf("the vi is %v and nothing wakes its owner", vi.State())
		}
	}
	p.closed()
}

// attacked is a victim with a healthy connection and a hostile one on the same
// completion queue.
type attacked struct {
	*station
	listener *via.Listener
	healthy  *healthy
	vi       *via.VI
	peer     *rawPeer
}

func attack(t *testing.T) *attacked {
	t.Helper()
	return attackFor(t, testTimeouts)
}

func attackFor(t *testing.T, p timeouts) *attacked {
	t.Helper()
	return attackAt(t, p, via.ReliableDelivery)
}

// attackAt attacks a connection of a level; the healthy one is reliable.
func attackAt(t *testing.T, p timeouts, level via.ReliabilityLevel) *attacked {
	t.Helper()
	watchLeaks(t)
	b := &attacked{station: newStation(t, p)}
	b.listener = b.listen()
	b.healthy = newHealthy(t, b.station, b.listener)
	b.level = level
	b.vi = b.newVI()
	b.peer = attach(t, b.station, b.listener, b.vi)
	b.healthy.check()
	return b
}

// loses checks that the hostile connection, and nothing else, is lost.
func (b *attacked) loses() {
	b.tb.Helper()
	b.dead(b.vi, b.peer)
	b.healthy.check()
}

// keeps checks that both connections still work.
func (b *attacked) keeps() {
	b.tb.Helper()
	d := b.descriptor(90, via.OpRecv, 1<<20, 64)
	check(b.tb, b.vi.PostRecv(d))
	b.peer.message(make([]byte, 64))
	if c := b.await(d); c.Status.Failed() || c.Length != 64 {
		b.tb.Fatalf("receive from the raw peer: %+v", c)
	}
	b.healthy.check()
}
