package shm

import (
	"errors"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/viablk/viablk/internal/contain"
	"github.com/viablk/viablk/internal/memfd"
	"github.com/viablk/viablk/via"
)

// A panic of a control agent ends its connection. The other connections of the
// completion queue go on, and the memory stays exposed to the peer until it has
// left it: it is not taken for gone.
func TestPanicInControlAgent(t *testing.T) {
	for name, send := range map[string]func(p *rawPeer){
		"asked for a ready log": func(p *rawPeer) {
			check(t, sendControl(p.conn, control{kind: controlRequestLog, value: 1, size: 1}))
		},
		"passed a ready log": func(p *rawPeer) {
			mem, fd, err := memfd.Create("raw", logSize, 0)
			check(t, err)
			t.Cleanup(func() { closeAll(fd); check(t, unix.Munmap(mem)) })
			check(t, sendControl(p.conn, control{kind: controlPassLog, fds: []int{fd}}))
		},
	} {
		t.Run(name, func(t *testing.T) {
			s, far := newStation(t, testTimeouts), newStation(t, testTimeouts)
			l := s.listen()
			beside, other := s.newVI(), far.newVI()
			join(t, other, l, beside)
			q := s.queue()
			vi := s.newVI()
			p := attach(t, s, l, vi)
			q.binding.Lock() // nothing can be added to these
			q.localLogs, q.peerLogs = nil, nil
			q.binding.Unlock()
			before := contain.Count()
			send(p)
			until(t, "the panic", func() bool { return contain.Count() > before })
			check(t, sendControl(p.conn, control{kind: controlDrop, value: 99})) // not looked at
			s.dead(vi, p)
			if n := contain.Count() - before; n != 1 {
				t.Errorf("%d panics", n)
			}
			if e := s.async; len(e) != 1 || e[0].VI != vi || !strings.Contains(e[0].Cause.Error(), "panic: assignment to entry in nil map") {
				t.Errorf("callbacks %v", e)
			}
			d, r := far.descriptor(0, via.OpSend, 4096, 64), s.descriptor(0, via.OpRecv, 4096, 64)
			check(t, beside.PostRecv(r))
			check(t, other.PostSend(d))
			if c := s.await(r, far); c.Status.Failed() {
				t.Errorf("a message beside it: %v", c.Status)
			}
			q.binding.Lock()
			q.localLogs, q.peerLogs = make(map[uint64]*readyLog), make(map[logID]*peerLog)
			q.binding.Unlock()
		})
	}
}

// A peer that is inside a region when the agent panics keeps the region from
// being reused until it has left it.
func TestPanicOfAgentAmidCopy(t *testing.T) {
	s := newStation(t, timeouts{handshake: time.Minute, access: 10 * time.Millisecond})
	l := s.listen()
	vi := s.newVI()
	p := attach(t, s, l, vi)
	q := s.queue()
	q.binding.Lock()
	logs := q.localLogs
	q.localLogs = nil
	q.binding.Unlock()
	p.word(offHazard, hazardOf(s.mem.Handle()))
	before := contain.Count()
	check(t, sendControl(p.conn, control{kind: controlRequestLog, value: 1, size: 1}))
	until(t, "the panic", func() bool { return contain.Count() > before })
	until(t, "the end of the connection", func() bool { return vi.State() == via.StateError }, s)
	if err := vi.Disconnect(); !errors.Is(err, via.ErrStillAccessed) || !s.mem.Accessed() {
		t.Errorf("disconnect: %v, accessed %v", err, s.mem.Accessed())
	}
	p.word(offHazard, 0)
	until(t, "the peer to leave", func() bool { return !s.mem.Accessed() })
	q.binding.Lock()
	q.localLogs = logs
	q.binding.Unlock()
}

// A panic while a listener accepts or answers a connection costs that
// connection.
func TestPanicInListener(t *testing.T) {
	watchLeaks(t)
	path := filepath.Join(t.TempDir(), "s")
	var panics atomic.Bool
	panics.Store(true)
	l, err := (&adapter{timeouts: timeouts{handshake: time.Minute}}).Listen(path, func(in via.Incoming) {
		if panics.Load() {
			panic("planted in incoming")
		}
		_ = in.Refuse(nil)
	})
	check(t, err)
	before := contain.Count()
	refuses(t, path)
	panics.Store(false)
	refuses(t, path)
	s := l.(*listening)
	s.mu.Lock()
	a := s.adapter
	s.adapter = nil
	s.mu.Unlock()
	c := dialRaw(t, path)
	if _, err := receiveControl(c); err == nil {
		t.Error("a connection is open after a panic")
	}
	s.mu.Lock()
	s.adapter = a
	s.mu.Unlock()
	refuses(t, path)
	check(t, c.Close())
	check(t, l.Close())
	if n := contain.Count() - before; n != 2 {
		t.Errorf("%d panics", n)
	}
}
