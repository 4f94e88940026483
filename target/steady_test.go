package target_test

import (
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/viablk/viablk/internal/carrier"
	"github.com/viablk/viablk/internal/wire"
	"github.com/viablk/viablk/target"
	"github.com/viablk/viablk/via"
)

// nap sleeps until something arrives, for a second at most.
func (p *peer) nap() {
	if p.c.Arm() {
		timeout := unix.Timespec{Sec: 1}
		p.polls[0] = unix.PollFd{Fd: int32(p.c.FD()), Events: unix.POLLIN}
		_, _ = unix.Ppoll(p.polls[:], &timeout, nil)
	}
}

// exchange runs one command without an allocation of its own.
func (s *session) exchange(t testing.TB, cmd *wire.Command, payload []byte) {
	p := s.io
	p.seq[cmd.Slot]++
	cmd.Seq, cmd.PathEpoch, cmd.Export = p.seq[cmd.Slot], p.epoch, s.export.Export
	send := p.c.AcquireSend()
	n := cmd.Encode(send.Head)
	n += copy(send.Head[n:], payload)
	must(t, p.c.StageMessage(send, n, carrier.Span{}))
	p.c.Doorbell()
	var done [1]via.Completion
	for answered := false; !answered; {
		if p.c.Poll(done[:]) == 0 {
			p.nap()
			continue
		}
		switch e := &done[0]; {
		case e.Status.Failed():
			t.Fatal(e.Status)
		case e.Recv:
			answered = true
			must(t, p.c.Post(p.c.Arrived(e)))
		default:
			p.c.FreeSend(p.c.Sent(e))
		}
	}
}

// TestNoAllocations: in steady state a request costs no allocation and no
// registration.
func TestNoAllocations(t *testing.T) {
	mapped, _, _ := mappedDisk(t, "mapped")
	r := newRig(t, target.Config{KeepAlive: time.Hour}, disk(t, "memory"), fileDisk(t, "file"), mapped)
	for _, name := range []string{"memory", "file", "mapped"} {
		s := r.attach(t, name)
		m, err := s.io.expose(64<<10, readWrite)
		must(t, err)
		payload := make([]byte, 4096)
		commands := map[string]*struct {
			cmd     wire.Command
			payload []byte
		}{
			"small read":  {cmd: inlineRead(0, 4096)},
			"small write": {cmd: inlineWrite(0, payload), payload: payload},
			"large read":  {cmd: transfer(wire.OpRead, 0, m.segment(0, 64<<10))},
			"large write": {cmd: transfer(wire.OpWrite, 0, m.segment(0, 64<<10))},
			"flush":       {cmd: wire.Command{Opcode: wire.OpFlush}},
			"zeroes":      {cmd: wire.Command{Opcode: wire.OpWriteZeroes, Length: 4096}},
		}
		for what, c := range commands {
			// A mapped file is registered once the copies have cost as much, and
			// both are measured: when is not known.
			for range 300 {
				s.exchange(t, &c.cmd, c.payload)
			}
			first := r.server.Status().Registrations
			for registrations := first; ; {
				allocations := testing.AllocsPerRun(200, func() { s.exchange(t, &c.cmd, c.payload) })
				before := registrations
				registrations = r.server.Status().Registrations
				if n := registrations - first; n > 1 || n > 0 && name != "mapped" {
					t.Fatalf("%s, %s: %d registrations", name, what, n)
				}
				if registrations != before {
					continue
				}
				if allocations != 0 {
					t.Errorf("%s, %s: %v allocations a request", name, what, allocations)
				}
				break
			}
		}
	}
}

// BenchmarkExchange is one command at a time, without the initiator's queue.
func BenchmarkExchange(b *testing.B) {
	r := newRig(b, target.Config{}, disk(b, "memory"), fileDisk(b, "file"))
	for _, name := range []string{"memory", "file"} {
		s := r.attach(b, name)
		m, err := s.io.expose(64<<10, readWrite)
		must(b, err)
		payload := make([]byte, 4096)
		for _, c := range []struct {
			what    string
			cmd     wire.Command
			payload []byte
		}{
			{"small read", inlineRead(0, 4096), nil},
			{"small write", inlineWrite(0, payload), payload},
			{"large read", transfer(wire.OpRead, 0, m.segment(0, 64<<10)), nil},
			{"large write", transfer(wire.OpWrite, 0, m.segment(0, 64<<10)), nil},
		} {
			b.Run(name+"/"+c.what, func(b *testing.B) {
				b.ReportAllocs()
				for b.Loop() {
					s.exchange(b, &c.cmd, c.payload)
				}
			})
		}
	}
}
