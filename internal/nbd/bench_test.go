package nbd

import (
	"fmt"
	"io"
	"net"
	"testing"
	"time"
)

// load keeps depth requests in flight on one connection, without allocating.
type load struct {
	conn     net.Conn
	requests []byte // depth of them
	replies  []byte // as many
}

func newLoad(conn net.Conn, command uint16, length uint32, depth int) *load {
	l := &load{conn: conn}
	reply := simpleReplySize
	if command == cmdRead {
		reply += int(length)
	}
	for i := range depth {
		l.requests = append(l.requests, request(0, command, uint64(i), uint64(i)*uint64(length), length)...)
		if command == cmdWrite {
			l.requests = append(l.requests, make([]byte, length)...)
		}
	}
	l.replies = make([]byte, depth*reply)
	return l
}

// round sends all requests and receives all replies.
func (l *load) round() error {
	if _, err := l.conn.Write(l.requests); err != nil {
		return err
	}
	_, err := io.ReadFull(l.conn, l.replies)
	return err
}

// start serves a device over a socket pair.
func start(t testing.TB, m *memory) net.Conn {
	server, client := pair(t)
	ended := make(chan error, 1)
	s := &Server{}
	go func() { ended <- s.ServeConn(t.Context(), server, &Export{Device: m}, nil) }()
	t.Cleanup(func() {
		client.Close()
		<-ended
	})
	return client
}

// A queue with nothing in flight is reaped when it asks for it.
func TestIdleQueueIsReaped(t *testing.T) {
	m := newMemory(1 << 20)
	m.interval = time.Millisecond
	start(t, m)
	for m.idle.Load() < 10 {
		time.Sleep(time.Millisecond)
	}
}

// In steady state the server allocates nothing.
func TestNoAllocation(t *testing.T) {
	for _, command := range []uint16{cmdRead, cmdWrite, cmdFlush} {
		for _, depth := range []int{1, 32} {
			t.Run(fmt.Sprintf("command %d depth %d", command, depth), func(t *testing.T) {
				length := uint32(4096)
				if command == cmdFlush {
					length = 0
				}
				l := newLoad(start(t, newMemory(1<<20)), command, length, depth)
				round := func() {
					if err := l.round(); err != nil {
						t.Fatal(err)
					}
				}
				for range 100 {
					round()
				}
				// AllocsPerRun counts the whole process: the server too.
				if n := testing.AllocsPerRun(1000, round); n >= 1 {
					t.Errorf("%v allocations per %d requests", n, depth)
				}
			})
		}
	}
}

func BenchmarkTransmission(b *testing.B) {
	for _, row := range []struct {
		name    string
		command uint16
		length  uint32
		depth   int
	}{
		{"read/4KiB/1", cmdRead, 4 << 10, 1},
		{"read/4KiB/32", cmdRead, 4 << 10, 32},
		{"read/128KiB/16", cmdRead, 128 << 10, 16},
		{"write/4KiB/1", cmdWrite, 4 << 10, 1},
		{"write/4KiB/32", cmdWrite, 4 << 10, 32},
	} {
		b.Run(row.name, func(b *testing.B) {
			l := newLoad(start(b, newMemory(8<<20)), row.command, row.length, row.depth)
			b.SetBytes(int64(row.length))
			b.ReportAllocs()
			b.ResetTimer()
			for i := 0; i < b.N; i += row.depth {
				if err := l.round(); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
