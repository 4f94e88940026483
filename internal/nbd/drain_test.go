package nbd

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"sync"
	"testing"
	"time"

	"github.com/viablk/viablk/internal/nbd/nbdtest"
)

// T-22 draining executes what has arrived, answers no request with an error,
// and closes, however much a client goes on to send.
func TestDrain(t *testing.T) {
	for _, d := range replyModes {
		t.Run(fmt.Sprint(d), func(t *testing.T) {
			m := newMemory(1 << 20)
			m.later, m.hold = true, make(chan struct{})
			f := serve(t, Limits{}, Export{Device: m})
			p, idle := f.connectExport("", d), f.connectExport("", d)
			p.put(p.request(0, cmdWrite, 1, 0, 4096), pattern(4096, 1))
			for f.server.Status().Total.IdleReleases < 2 || f.server.Status().Total.Writes == 0 {
				time.Sleep(time.Millisecond)
			}
			drained := make(chan error, 1)
			go func() { drained <- f.server.Drain(context.Background()) }()
			idle.wantEnd()
			var sender sync.WaitGroup
			sender.Go(func() {
				for err := error(nil); err == nil; {
					_, err = p.Write(p.request(0, cmdFlush, 2, 0, 0))
				}
			})
			close(m.hold)
			stream, _ := io.ReadAll(p) // ECONNRESET for what was not read
			sender.Wait()
			answers := map[uint64]int{}
			for p.Conn = (&recorded{p.Conn, bytes.NewReader(stream)}); p.Conn.(*recorded).Len() > 0; {
				a := p.answer(func(uint64) int { return 0 })
				if answers[a.cookie]++; a.errno != 0 {
					t.Fatalf("answer %+v", a)
				}
			}
			if most := f.server.Limits.withDefaults().Depth * 2; answers[1] != 1 || answers[2] > most {
				t.Errorf("%d answers to the request in flight, %d to later ones", answers[1], answers[2])
			}
			if err := <-drained; err != nil {
				t.Fatal(err)
			}
			if err := <-f.served; err != nil {
				t.Fatal(err)
			}
			f.served <- nil
			if !m.holds(0, pattern(4096, 1)) {
				t.Error("the write is not on the disk")
			}
			if _, err := net.Dial("unix", f.path); err == nil {
				t.Error("the socket is still there")
			}
		})
	}
}

// recorded is a connection from which a client has read everything.
type recorded struct {
	net.Conn
	*bytes.Reader
}

func (r *recorded) Read(p []byte) (int, error) { return r.Reader.Read(p) }

// The replies to what has begun arrive over TCP too, where a socket that is
// closed with unread requests discards what the client has not acknowledged.
func TestDrainDeliversOverTCP(t *testing.T) {
	f := serve(t, Limits{}, Export{Device: newMemory(1 << 20)})
	l, err := Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	served := make(chan error, 1)
	go func() { served <- f.server.Serve(t.Context(), l) }()
	p := dial(t, l.Addr())
	if err := p.Conn.(*net.TCPConn).SetReadBuffer(16 << 10); err != nil {
		t.Fatal(err)
	}
	p.greet(bothFlags)
	p.option(optGo, nbdtest.GoData("", infoBlockSize))
	p.infos(optGo)
	const length = 64 << 10
	var sender sync.WaitGroup
	sender.Go(func() {
		for err := error(nil); err == nil; {
			_, err = p.Write(p.request(0, cmdRead, 1, 0, length))
		}
	})
	for f.server.Status().Total.Reads < 32 {
		time.Sleep(time.Millisecond)
	}
	drained := make(chan error, 1)
	go func() { drained <- f.server.Drain(context.Background()) }()
	for !f.server.Status().Draining {
		time.Sleep(time.Millisecond)
	}
	n := 0
	for b := make([]byte, 16<<10); err == nil; time.Sleep(time.Millisecond) { // slower than the server
		var got int
		got, err = p.Read(b)
		n += got
	}
	sender.Wait()
	const reply = simpleReplySize + length
	if n%reply != 0 || n < 32*reply {
		t.Errorf("the client got %d replies and %d bytes more: %v", n/reply, n%reply, err)
	}
	if err := errors.Join(<-drained, <-served); err != nil {
		t.Error(err)
	}
}

// A drain that takes too long ends with its context.
func TestDrainDeadline(t *testing.T) {
	m := newMemory(1 << 20)
	m.later, m.hold = true, make(chan struct{})
	f := serve(t, Limits{}, Export{Device: m})
	p := f.connectExport("", simple)
	p.put(p.request(0, cmdRead, 1, 0, 512))
	for f.server.Status().Total.Reads == 0 {
		time.Sleep(time.Millisecond)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
	defer cancel()
	if err := f.server.Drain(ctx); !errors.Is(err, context.DeadlineExceeded) {
		t.Fatalf("drain: %v", err)
	}
	p.wantEnd()
	close(m.hold)
	<-f.served
	f.served <- nil
}
