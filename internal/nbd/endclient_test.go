package nbd

import (
	"context"
	"errors"
	"testing"
	"time"
)

// withWrites waits for a client that has made a number of writes.
func (f *fixture) withWrites(writes uint64) ConnectionStatus {
	f.t.Helper()
	for deadline := time.Now().Add(time.Minute); time.Now().Before(deadline); time.Sleep(time.Millisecond) {
		for _, c := range f.server.Status().Connections {
			if c.InExport && c.Writes == writes {
				return c
			}
		}
	}
	f.t.Fatalf("no client has made %d writes", writes)
	return ConnectionStatus{}
}

// TestEndClient: the client gets the answers to what has arrived, and the end
// of its connection; other clients stay, and so does the server. Ending is
// idempotent.
func TestEndClient(t *testing.T) {
	m := newMemory(1 << 20)
	m.later, m.hold = true, make(chan struct{})
	f := serve(t, Limits{}, Export{Device: m})
	start := time.Now()
	ended, stays, idle := f.connectExport("", structured), f.connectExport("", structured), f.connectExport("", structured)
	ended.put(ended.request(0, cmdWrite, 7, 0, 4096), pattern(4096, 3))
	one := f.withWrites(1)
	stays.put(stays.request(0, cmdWrite, 8, 4096, 4096), pattern(4096, 4), stays.request(0, cmdWrite, 9, 8192, 4096), pattern(4096, 5))
	two := f.withWrites(2)
	if one.ID == two.ID || len(one.ID) != 16 || one.Identity == "" || one.Kernel || one.LastActive.Before(start) || one.LastActive.After(time.Now()) {
		t.Errorf("%+v and %+v", one, two)
	}
	for _, unknown := range []string{"", "0", one.ID[:15], one.ID + "0"} {
		if err := f.server.EndClient(unknown); !errors.Is(err, ErrNoClient) {
			t.Errorf("client %q: %v", unknown, err)
		}
	}
	for range 2 {
		if err := f.server.EndClient(one.ID); err != nil {
			t.Error(err)
		}
	}
	if err := f.server.EndClient(f.withWrites(0).ID); err != nil {
		t.Error(err)
	}
	idle.wantEnd()
	close(m.hold)
	if a := ended.answer(func(uint64) int { return 0 }); a.cookie != 7 || a.errno != 0 {
		t.Errorf("the write in flight: %+v", a)
	}
	ended.wantEnd()
	for range 2 {
		if a := stays.answer(func(uint64) int { return 0 }); a.errno != 0 {
			t.Errorf("the client that stays: %+v", a)
		}
	}
	if !m.holds(0, pattern(4096, 3)) {
		t.Error("the write is not on the disk")
	}
	stays.wantAlive()
	f.connectExport("", structured).wantAlive()
	if err := f.server.EndClient(one.ID); err != nil {
		t.Errorf("after its end: %v", err)
	}
}

// TestEndKernel: a connection of the kernel's is its device's.
func TestEndKernel(t *testing.T) {
	server, client := pair(t)
	s := &Server{}
	ready, served := make(chan struct{}), make(chan error, 1)
	export := Export{Name: "x", Device: newMemory(1 << 20)}
	go func() { served <- s.ServeConn(context.Background(), server, &export, func() { close(ready) }) }()
	<-ready
	c := s.Status().Connections[0]
	if err := s.EndClient(c.ID); !errors.Is(err, ErrKernel) || !c.Kernel {
		t.Errorf("%v: %+v", err, c)
	}
	client.Close()
	<-served
}
