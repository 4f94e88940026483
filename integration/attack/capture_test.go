package attack

import (
	"bytes"
	"crypto/rand"
	"encoding/hex"
	"fmt"
	"maps"
	"path/filepath"
	"testing"

	"github.com/viablk/viablk/integration/netbed"
	"github.com/viablk/viablk/integration/testbed"
	"github.com/viablk/viablk/via/roce/wire"
)

// eavesdropper reads the cable of a disk that is used.
type eavesdropper struct {
	*cable
	marker  []byte            // all payload consists of it
	secrets map[string][]byte // by what they are
	// sessions is how often a session was noted, some of them twice.
	sessions int
	sent     map[*testbed.Process]uint64
	queues   map[uint32]bool // queue pairs of connections
}

// note remembers what the capture must have: queue pairs, and how many packets
// each process has sent so far.
func (e *eavesdropper) note() {
	e.t.Helper()
	for _, p := range []*testbed.Process{e.attach, e.target} {
		e.sent[p] = 0
		for _, n := range p.Status().Network {
			e.sent[p] += n.Sent
			for _, l := range n.Links {
				e.queues[l.QueuePair] = true
			}
		}
	}
	session := e.attach.Status().Initiators[0].Session
	id, err := hex.DecodeString(session)
	testbed.Must(e.t, err)
	e.sessions++
	e.secrets[fmt.Sprint("session ", e.sessions)] = id
}

// start starts to write the marker and to read it back in every way: inside
// messages, and by RDMA of one and of several records, over three queues.
func (e *eavesdropper) start(more ...string) *testbed.Tool {
	e.t.Helper()
	pattern := "--verify_pattern=0x" + hex.EncodeToString(e.marker)
	return testbed.StartFio(e.t, e.uri(), append(more, "--rw=randwrite", "--bssplit=512/25:4k/25:64k/25:1m/25", "--size=2m", "--iodepth=4",
		"--numjobs=3", "--offset_increment=4m", "--verify=pattern", pattern, "--verify_fatal=1", "--verify_state_save=0")...)
}

// finish waits for what start has started.
func (e *eavesdropper) finish(p *testbed.Tool) {
	e.t.Helper()
	testbed.Succeed(e.t, p)
	e.flawless()
	e.note()
}

// eavesdrop uses a disk by every kind of connection, and returns in how many
// packets of each kind a secret is.
func eavesdrop(t *testing.T, sealed bool) map[string]int {
	t.Helper()
	e := &eavesdropper{
		cable: newCable(t, sealed), marker: make([]byte, 16), secrets: map[string][]byte{},
		sent: map[*testbed.Process]uint64{}, queues: map[uint32]bool{},
	}
	_, _ = rand.Read(e.marker) // it never fails
	e.secrets["payload"], e.secrets["name"] = e.marker, []byte(exportName)
	maps.Copy(e.secrets, loginHeads(t))
	path := filepath.Join(t.TempDir(), "cable.pcap")
	c := e.bed.B.Capture(path)
	e.startTarget()
	e.startInitiator()
	e.finish(e.start())
	st := e.target.Status().Targets[0]
	if st.Stats.BytesPulled == 0 || st.Stats.BytesPlaced == 0 || st.Accepted < 4 {
		t.Errorf("%d bytes were pulled and %d placed, over %d connections", st.Stats.BytesPulled, st.Stats.BytesPlaced, st.Accepted)
	}
	load := e.start("--rate=,2m")
	testbed.Eventually(t, "load", func() (any, bool) {
		n := e.target.Status().Targets[0].Exports[0].Stats
		return n, n.Writes > st.Exports[0].Stats.Writes+10
	})
	e.note()
	e.target.Crash()
	e.startTarget()
	e.finish(load)
	if i := e.attach.Status().Initiators[0]; i.SessionLosses == 0 || i.Stats.Reconnects == 0 {
		t.Errorf("the initiator lost %d sessions, and %d queues returned", i.SessionLosses, i.Stats.Reconnects)
	}
	e.attach.Crash()
	e.startInitiator("--preempt")
	e.finish(e.start())
	if st := e.target.Status().Targets[0]; sealed != (st.Security != nil) || st.Stats.Forged != 0 {
		t.Errorf("sealed is %v: %+v", sealed, st.Security)
	}
	e.attach.Stop()
	e.target.Stop()
	c.Stop() // and nothing was dropped
	return e.search(path)
}

// search looks for the secrets in a capture, which must be complete.
func (e *eavesdropper) search(path string) map[string]int {
	e.t.Helper()
	frames, err := netbed.Frames(path)
	testbed.Must(e.t, err)
	found, kinds, packets := map[string]int{}, map[wire.Operation]int{}, uint64(0)
	for _, frame := range frames {
		d, err := netbed.ParseDatagram(frame)
		if err != nil {
			continue // the hosts look for each other
		}
		var h wire.BTH
		if len(d.Payload) < wire.MinPacket {
			e.t.Fatalf("a packet of %d bytes", len(d.Payload))
		}
		h.Decode(d.Payload)
		packets++
		delete(e.queues, h.DestQP)
		operation := h.Opcode.Operation()
		kinds[operation] += len(d.Payload)
		for what, secret := range e.secrets {
			if bytes.Contains(d.Payload, secret) {
				found[what+" in "+operations[operation]]++
			}
		}
	}
	sent := uint64(0)
	for _, n := range e.sent {
		sent += n
	}
	if packets < sent {
		e.t.Errorf("the capture has %d packets, and %d were sent", packets, sent)
	}
	if len(e.queues) != 0 {
		e.t.Errorf("the capture has no packet to the queue pairs %v", e.queues)
	}
	for o, name := range operations {
		if kinds[o] == 0 {
			e.t.Errorf("the capture has no packet of a %s", name)
		}
	}
	e.t.Logf("%d packets, %d of which were counted; bytes of sends, writes, read responses: %d, %d, %d; found %v",
		packets, sent, kinds[wire.OpSend], kinds[wire.OpWrite], kinds[wire.OpReadResponse], found)
	return found
}

// operations are those whose packets have payload.
var operations = map[wire.Operation]string{
	wire.OpSend: "send", wire.OpWrite: "write", wire.OpReadResponse: "read response",
}

// TestSecrecyOnCable: no payload, name of a disk, identity of a session or
// login is in a packet between a target and an initiator, however the payload
// moves, over any connection: also after the target was killed, and where
// another initiator takes the disk over. The same search finds them all if
// sessions are in clear.
func TestSecrecyOnCable(t *testing.T) {
	t.Run("sealed", func(t *testing.T) {
		t.Parallel()
		if found := eavesdrop(t, true); len(found) != 0 {
			t.Errorf("sealed, and found %v", found)
		}
	})
	t.Run("in clear", func(t *testing.T) {
		t.Parallel()
		found := eavesdrop(t, false)
		for _, want := range []string{
			"payload in send", "payload in write", "payload in read response", "name in send",
			"session 1 in send", "session 2 in send", "session 3 in send", "session 4 in send",
			"login in send", "answer to a login in send",
		} {
			if found[want] == 0 {
				t.Errorf("no %s: %v", want, found)
			}
		}
	})
}
