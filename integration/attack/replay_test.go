package attack

import (
	"bytes"
	"errors"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/viablk/viablk/integration/netbed"
	"github.com/viablk/viablk/integration/testbed"
	"github.com/viablk/viablk/via/roce/wire"
)

// recording is what an initiator sent to its target from the first packet to
// the last.
type recording struct {
	frames [][]byte
	from   netip.AddrPort
	conns  []*recorded
}

// recorded is a connection of a recording: the request for it, and its
// messages.
type recorded struct {
	request wire.REQ
	sends   []*packet
}

// readRecording reads a capture of the initiator's host.
func readRecording(t *testing.T, c *cable, path string) *recording {
	t.Helper()
	frames, err := netbed.Frames(path)
	testbed.Must(t, err)
	r := &recording{}
	asked, byQP := map[uint64]*recorded{}, map[uint32]*recorded{}
	for _, f := range frames {
		p, ok := parsePacket(f)
		if !ok {
			continue
		}
		d, err := netbed.ParseDatagram(f)
		testbed.Must(t, err)
		var reply wire.REP
		if d.From.Addr() != c.bed.A.IPv4 {
			if reply.Decode(p.content()) == wire.Accepted && asked[reply.TID] != nil {
				byQP[reply.LocalQP] = asked[reply.TID]
			}
			continue
		}
		r.frames, r.from = append(r.frames, f), d.From
		x := &recorded{}
		switch {
		case p.bth.DestQP == wire.GSI:
			if x.request.Decode(p.content()) == wire.Accepted && asked[x.request.TID] == nil {
				asked[x.request.TID] = x
				r.conns = append(r.conns, x)
			}
		case p.bth.Opcode.Operation() == wire.OpSend && byQP[p.bth.DestQP] != nil:
			x = byQP[p.bth.DestQP]
			if n := len(x.sends); n == 0 || x.sends[n-1].psn.Before(p.psn) {
				x.sends = append(x.sends, p)
			}
		}
	}
	return r
}

// replayer resends a recording from the address and port that it came from.
type replayer struct {
	t      *testing.T
	c      *cable
	socket *net.UDPConn
	to     netip.AddrPort
	icrc   wire.ICRC
	next   uint32 // makes requests differ
}

// newReplayer has the place of an initiator that is gone.
func newReplayer(t *testing.T, c *cable, from netip.AddrPort) *replayer {
	t.Helper()
	r := &replayer{t: t, c: c, socket: c.bed.A.ListenUDP(from.Addr(), from.Port()), to: netip.AddrPortFrom(c.bed.B.IPv4, wire.Port)}
	r.icrc.Set(from, r.to)
	raw, err := r.socket.SyscallConn()
	testbed.Must(t, err)
	testbed.Must(t, raw.Control(func(fd uintptr) {
		err = unix.SetsockoptInt(int(fd), unix.IPPROTO_IP, unix.IP_MTU_DISCOVER, unix.IP_PMTUDISC_DO)
	}))
	testbed.Must(t, err)
	return r
}

// send sends a packet.
func (r *replayer) send(p *wire.Packet) {
	r.t.Helper()
	p.PKey = wire.DefaultPKey
	_, err := r.socket.WriteToUDPAddrPort(p.Append(nil, &r.icrc, wire.Identification{}), r.to)
	testbed.Must(r.t, err)
}

// management sends a message of the connection manager.
func (r *replayer) management(m wire.Message) {
	r.t.Helper()
	b := make([]byte, wire.MADSize)
	m.Encode(b)
	r.send(&wire.Packet{BTH: wire.BTH{Opcode: wire.UDSendOnly, DestQP: wire.GSI}, DETH: wire.DETH{QKey: wire.GSIQKey, SourceQP: wire.GSI}, Payload: b})
}

// repeatAfter is when a packet without an answer is resent.
const repeatAfter = 100 * time.Millisecond

// exchange sends something until an answer is what is waited for. It returns
// false if the target has no connection any more.
func (r *replayer) exchange(send func(), answered func(p *wire.Packet) bool) bool {
	r.t.Helper()
	b := make([]byte, wire.MaxPacket)
	for end := time.Now().Add(testbed.WaitLimit); time.Now().Before(end); {
		send()
		testbed.Must(r.t, r.socket.SetReadDeadline(time.Now().Add(repeatAfter)))
		for {
			n, _, err := r.socket.ReadFromUDPAddrPort(b)
			if errors.Is(err, os.ErrDeadlineExceeded) {
				break
			}
			testbed.Must(r.t, err)
			var p wire.Packet
			refusal := p.Decode(b[:n], wire.DefaultPKey)
			if refusal != wire.Accepted && n >= wire.MinPacket+wire.TagSize {
				refusal = p.Decode(wire.Untag(b[:n]), wire.DefaultPKey)
			}
			if refusal == wire.Accepted && answered(&p) {
				return true
			}
		}
		if r.c.target.Status().Targets[0].Connections == 0 {
			return false
		}
	}
	r.t.Fatal("the target does not answer")
	return false
}

// replay makes a connection like a recorded one and sends its first messages,
// each after the answer to the one before. It returns how many the target
// answered before it ended the connection.
func (r *replayer) replay(x *recorded, messages int) (answered int) {
	r.t.Helper()
	r.next++
	request, reply := x.request, wire.REP{}
	request.TID, request.LocalID, request.LocalQP = request.TID+uint64(r.next)<<32, request.LocalID+r.next<<16, 0x1000+r.next
	for stands := false; !stands; {
		stands = r.exchange(func() { r.management(&request) }, func(p *wire.Packet) bool {
			return reply.Decode(p.Payload) == wire.Accepted && reply.TID == request.TID
		})
	}
	r.management(&wire.RTU{TID: request.TID, LocalID: request.LocalID, RemoteID: reply.LocalID})
	psn, tag := reply.StartingPSN, reply.Private[len(reply.Private)-wire.TagSize:]
	ended, newest := false, wire.PSN(0)
	receive := func(p *wire.Packet, until func() bool) bool {
		var end wire.DREQ
		switch {
		case p.DestQP == wire.GSI:
			ended = ended || end.Decode(p.Payload) == wire.Accepted && end.RemoteID == request.LocalID
		case p.DestQP == request.LocalQP && p.Opcode.Flags()&wire.Response == 0:
			r.send(&wire.Packet{BTH: wire.BTH{Opcode: wire.RCAcknowledge, DestQP: reply.LocalQP, PSN: p.PSN}, AETH: wire.AETH{Syndrome: wire.ACK}, Payload: tag})
			if p.Opcode.Flags()&wire.End != 0 && (newest == 0 || p.PSN.Sub(newest) > 0) {
				newest = p.PSN
			}
		}
		return ended || until()
	}
	for i := 0; i < len(x.sends) && answered < messages; i++ {
		s := x.sends[i]
		q := wire.Packet{BTH: s.bth, Payload: append(bytes.Clone(s.content()), tag...)}
		q.DestQP, q.PSN, q.AckRequest = reply.LocalQP, psn.Add(i), true
		before, last := newest, q.Opcode.Flags()&wire.End != 0
		alive := r.exchange(func() { r.send(&q) }, func(p *wire.Packet) bool {
			return receive(p, func() bool {
				if last {
					return newest != before
				}
				return p.DestQP == request.LocalQP && p.Opcode == wire.RCAcknowledge && p.PSN.Sub(q.PSN) >= 0
			})
		})
		if ended || !alive {
			return answered
		}
		if last {
			answered++
		}
	}
	return answered
}

// record has an initiator write and read a disk, and stop.
func record(t *testing.T, c *cable) *recording {
	t.Helper()
	path := filepath.Join(t.TempDir(), "recording.pcap")
	capture := c.bed.A.Capture(path)
	c.startInitiator()
	k := testbed.Connect(t, c.uri())
	k.Ask("fill 0 4096 7", "ok") // inside a message
	k.Ask("fill 0 1048576 8", "ok")
	k.Ask("check 0 1048576 8", "ok")
	k.Disconnect()
	c.attach.Stop()
	capture.Stop()
	testbed.Eventually(t, "the end of the session", func() (any, bool) {
		d := c.target.Status().Targets[0]
		return d, d.Connections == 0 && d.Sessions == 0
	})
	r := readRecording(t, c, path)
	if len(r.conns) < 2 || len(r.conns[0].sends) < 3 || len(r.conns[1].sends) < 3 {
		t.Fatalf("%d connections were recorded", len(r.conns))
	}
	return r
}

// TestReplayedSession: all packets of a session that ended, resent from the
// same address and port, and its messages over new connections that answer the
// target, log in to no session and change nothing. In clear the messages write
// to the disk a second time.
func TestReplayedSession(t *testing.T) {
	for _, sealed := range []bool{true, false} {
		t.Run(map[bool]string{true: "sealed", false: "in clear"}[sealed], func(t *testing.T) {
			t.Parallel()
			c := newCable(t, sealed)
			c.startTarget()
			r := record(t, c)
			disk, err := os.ReadFile(c.file)
			testbed.Must(t, err)
			logins := strings.Count(c.target.Stderr.String(), "logged in")
			before := c.target.Status().Targets[0].Exports[0].Stats

			s := c.bed.A.Sender()
			for i, f := range r.frames {
				d, err := netbed.ParseDatagram(f)
				testbed.Must(t, err)
				testbed.Must(t, s.Send(netbed.Forge(f, d.Payload)))
				if i%64 == 0 {
					time.Sleep(time.Millisecond) // a receiver that is overrun loses them
				}
			}
			replayer := newReplayer(t, c, r.from)
			again := func() []int {
				var received []int
				for i, x := range r.conns {
					// The control connection opens the disk after its login, and its last
					// message is a logout; on another one, payload that moves by RDMA
					// follows a login and a write.
					messages := 2
					if i == 0 && sealed {
						messages = len(x.sends) - 1
					}
					received = append(received, replayer.replay(x, messages))
				}
				return received
			}
			if !sealed {
				// A target that waits too long for the next message ends the session.
				testbed.Eventually(t, "a write again", func() (any, bool) {
					received, n := again(), c.target.Status().Targets[0].Exports[0].Stats
					return received, n.Writes > before.Writes
				})
				return
			}
			t.Logf("%d packets again; messages answered on connections: %v", len(r.frames), again())
			after := c.target.Status().Targets[0]
			loggedIn := strings.Count(c.target.Stderr.String(), "logged in") - logins
			if loggedIn != 0 || after.Sessions != 0 || after.Exports[0].Opens != 0 || after.Exports[0].Stats != before {
				t.Errorf("%d logins, %d sessions, and %+v after %+v", loggedIn, after.Sessions, after.Exports[0].Stats, before)
			}
			if !strings.Contains(c.target.Stderr.String(), "authentication refused") {
				t.Error("the target does not say that it refused an authentication")
			}
			testbed.CheckFile(t, c.file, disk)
			c.startInitiator()
			testbed.Connect(t, c.uri()).Ask("check 0 1048576 8", "ok")
		})
	}
}
