package roce

import (
	"fmt"
	"testing"
	"time"

	"github.com/viablk/viablk/integration/netbed"
	"github.com/viablk/viablk/integration/testbed"
	"github.com/viablk/viablk/via/roce/wire"
)

// handshake is a connection that an unknown peer requests and leaves half open.
type handshake struct {
	flooder *flooder
	socket  *roceSocket
	request wire.REQ
	reply   wire.REP
}

// ask sends a request and waits for the reply of the connection manager.
func (s *flooder) ask(socket *roceSocket) *handshake {
	s.t.Helper()
	h := &handshake{flooder: s, socket: socket}
	mad := s.request()
	h.request.Decode(mad)
	testbed.Must(s.t, socket.SetReadDeadline(time.Now().Add(testbed.AnswerLimit)))
	for b := make([]byte, wire.MaxPacket); ; {
		_, err := socket.WriteToUDPAddrPort(s.management(socket, nil, 0, mad), socket.to)
		testbed.Must(s.t, err)
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

// confirm says that the reply has arrived: the connection stands, for the
// target.
func (h *handshake) confirm() {
	s := h.flooder
	s.t.Helper()
	b := make([]byte, wire.MADSize)
	(&wire.RTU{TID: h.request.TID, LocalID: h.request.LocalID, RemoteID: h.reply.LocalID}).Encode(b)
	_, err := h.socket.WriteToUDPAddrPort(s.management(h.socket, nil, 0, b), h.socket.to)
	testbed.Must(s.t, err)
}

// babble sends messages over the connection that no login is.
func (h *handshake) babble(messages int) {
	s := h.flooder
	s.t.Helper()
	for i := range messages {
		p := wire.Packet{BTH: wire.BTH{
			Opcode: wire.RCSendOnly, PKey: wire.DefaultPKey, DestQP: h.reply.LocalQP,
			PSN: h.reply.StartingPSN.Add(i), AckRequest: true,
		}, Payload: testbed.Noise(s.rng, 4*(1+s.rng.IntN(64)))}
		_, err := h.socket.WriteToUDPAddrPort(p.Append(nil, &h.socket.icrc, h.socket.identification(0)), h.socket.to)
		testbed.Must(s.t, err)
	}
}

// TestGarbageAtRoceAddress has unknown peers request connections and never use
// them, or use them for something else, while a client works on the disk. Once
// the target has timed them out nothing is left of them.
func TestGarbageAtRoceAddress(t *testing.T) {
	for _, family := range []int{4, 6} {
		t.Run(fmt.Sprintf("IPv%d", family), func(t *testing.T) {
			b := netbed.New(t, netbed.Options{})
			r, known := overhear(t, testbed.Program(t), b, family, testbed.Disk{Name: "disk", Spec: "memory:16MiB"})
			r.FirstClient(t)
			files := r.Target.FilesButSockets()
			const each = 8
			s := newFlooder(t, b, family, 3*each, known)
			healthy := testbed.StartFio(t, r.URI, testbed.WithVerify("--rw=randrw", "--bs=4k", "--iodepth=8", "--size=8m", "--rate_iops=500,500")...)
			for i, socket := range s.sockets {
				s.sendRun(socket, func(s *flooder, from *roceSocket, b []byte, i int) []byte {
					return s.management(from, b, i, testbed.Noise(s.rng, wire.MADSize))
				})
				switch i % 3 {
				case 0: // the reply is not confirmed
					s.ask(socket)
				case 1: // no login follows
					s.ask(socket).confirm()
				case 2:
					h := s.ask(socket)
					h.confirm()
					h.babble(1 + i%4)
				}
			}
			testbed.Eventually(t, "half-open connections beside one session", func() (any, bool) {
				seen := r.Target.Status().Targets[0]
				return seen, seen.Connections >= each && seen.Sessions == 1
			})
			// Other clients do not wait for them.
			out := testbed.Succeed(t, testbed.StartPathAt(t, b.A.StartGroup, nil, testbed.Program(t), "info", r.Target.URI("disk", "via+roce")))
			if out == "" {
				t.Error("info says nothing")
			}
			testbed.Succeed(t, healthy)
			testbed.Eventually(t, "the end of half-open connections", func() (any, bool) {
				st, n := r.Target.Status(), r.Target.FilesButSockets()
				d := st.Targets[0]
				return fmt.Sprintf("%+v, %d files, at first %d", d, n, files), d.Connections < each && st.Network[0].Manager.Pending == 0 && n <= files
			})
			r.Unharmed(t)
		})
	}
}
