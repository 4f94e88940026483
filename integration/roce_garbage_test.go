package integration

import (
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/viablk/viablk/integration/netbed"
	"github.com/viablk/viablk/via/roce/wire"
)

// handshake is a connection that a stranger asks for and leaves half open.
type handshake struct {
	strangers *strangers
	socket    *roceSocket
	request   wire.REQ
	reply     wire.REP
}

// ask sends a request and waits for the reply of the connection manager.
func (s *strangers) ask(socket *roceSocket) *handshake {
	s.t.Helper()
	h := &handshake{strangers: s, socket: socket}
	mad := s.request()
	h.request.Decode(mad)
	must(s.t, socket.SetReadDeadline(time.Now().Add(answerLimit)))
	for b := make([]byte, wire.MaxPacket); ; {
		_, err := socket.WriteToUDPAddrPort(s.management(socket, nil, 0, mad), socket.to)
		must(s.t, err)
		n, _, err := socket.ReadFromUDPAddrPort(b)
		if err != nil {
			s.t.Fatalf("no reply to a request: %v", err)
		}
		var p wire.Packet
		if p.Decode(b[:n], wire.DefaultPKey) == wire.Accepted && h.reply.Decode(p.Payload) == wire.Accepted && h.reply.TID == h.request.TID {
			return h
		}
	}
}

// confirm says that the reply has arrived: the connection stands, for the target.
func (h *handshake) confirm() {
	s := h.strangers
	s.t.Helper()
	b := make([]byte, wire.MADSize)
	(&wire.RTU{TID: h.request.TID, LocalID: h.request.LocalID, RemoteID: h.reply.LocalID}).Encode(b)
	_, err := h.socket.WriteToUDPAddrPort(s.management(h.socket, nil, 0, b), h.socket.to)
	must(s.t, err)
}

// babble sends messages over the connection that no login is.
func (h *handshake) babble(messages int) {
	s := h.strangers
	s.t.Helper()
	for i := range messages {
		p := wire.Packet{BTH: wire.BTH{
			Opcode: wire.RCSendOnly, PKey: wire.DefaultPKey, DestQP: h.reply.LocalQP,
			PSN: h.reply.StartingPSN.Add(i), AckRequest: true,
		}, Payload: noise(s.rng, 4*(1+s.rng.IntN(64)))}
		_, err := h.socket.WriteToUDPAddrPort(p.Append(nil, &h.socket.icrc, h.socket.identification(0)), h.socket.to)
		must(s.t, err)
	}
}

// filesButSockets counts the open file descriptors of the process that are no
// sockets: those of an address stay until it is closed.
func (p *process) filesButSockets() (n int) {
	p.t.Helper()
	folder := fmt.Sprintf("/proc/%d/fd/", p.pid())
	entries, err := os.ReadDir(folder)
	must(p.t, err)
	for _, e := range entries {
		if to, err := os.Readlink(folder + e.Name()); err == nil && !strings.HasPrefix(to, "socket:") {
			n++
		}
	}
	return n
}

// TestGarbageAtRoceAddress has strangers ask for connections and never use them, or
// use them for something else, while a client works on the disk. Once the target
// has given up on them nothing is left of them.
func TestGarbageAtRoceAddress(t *testing.T) {
	for _, family := range []int{4, 6} {
		t.Run(fmt.Sprintf("IPv%d", family), func(t *testing.T) {
			b := netbed.New(t, netbed.Options{})
			r, known := overhear(t, program(t), b, family, disk{"disk", "memory:16MiB"})
			files := r.target.filesButSockets()
			const each = 8
			s := newStrangers(t, b, family, 3*each, known)
			healthy := startFio(t, r.uri, withVerify("--rw=randrw", "--bs=4k", "--iodepth=8", "--size=8m", "--rate_iops=500,500")...)
			for i, socket := range s.sockets {
				s.sendRun(socket, func(s *strangers, from *roceSocket, b []byte, i int) []byte {
					return s.management(from, b, i, noise(s.rng, wire.MADSize))
				})
				switch i % 3 {
				case 0: // the reply is not confirmed
					s.ask(socket)
				case 1: // nobody logs in
					s.ask(socket).confirm()
				case 2:
					h := s.ask(socket)
					h.confirm()
					h.babble(1 + i%4)
				}
			}
			seen := r.target.status().Targets[0]
			if seen.Connections < each || seen.Sessions != 1 {
				t.Errorf("the target has %d connections and %d sessions while %d connections are half open", seen.Connections, seen.Sessions, each)
			}
			// Nobody else waits for them.
			out := succeed(t, startPathAt(t, b.A.StartGroup, nil, program(t), "info", r.target.uri("disk", "via+roce")))
			if out == "" {
				t.Error("info says nothing")
			}
			succeed(t, healthy)
			eventually(t, "the end of half-open connections", func() (any, bool) {
				st, n := r.target.status(), r.target.filesButSockets()
				d := st.Targets[0]
				return fmt.Sprintf("%+v, %d files, at first %d", d, n, files), d.Connections < each && st.Network[0].Manager.Pending == 0 && n <= files
			})
			r.unharmed(t)
		})
	}
}
