//go:build vm

package vm

import (
	"net"
	"sync"
	"testing"
)

// line is a network between a machine that stays and one that comes and goes.
// Frames to a machine that is off are lost.
type line struct {
	stays net.Conn

	mu    sync.Mutex
	comes net.Conn // nil while the machine is off

	relays sync.WaitGroup
}

// frameLimit is more than a frame has, bytes.
const frameLimit = 16 << 10

// newLine returns a line, and the end of it for the machine that stays.
func newLine(t *testing.T) (*line, *End) {
	t.Helper()
	here, there := Cable(t)
	l := &line{stays: here.Conn(t)}
	l.relays.Go(func() {
		relay(l.stays, func() net.Conn {
			l.mu.Lock()
			defer l.mu.Unlock()
			return l.comes
		})
	})
	t.Cleanup(func() {
		l.unplug()
		_ = l.stays.Close()
		l.relays.Wait()
	})
	return l, there
}

// plug returns the end for a machine that comes. The one before is gone, or its
// test failed.
func (l *line) plug(t *testing.T) *End {
	t.Helper()
	l.unplug()
	here, there := Cable(t)
	conn := here.Conn(t)
	l.mu.Lock()
	defer l.mu.Unlock()
	l.comes = conn
	l.relays.Go(func() { relay(conn, func() net.Conn { return l.stays }) })
	return there
}

// unplug is what happens when the machine is gone.
func (l *line) unplug() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.comes != nil {
		_ = l.comes.Close()
		l.comes = nil
	}
}

// relay passes frames on until from is closed.
func relay(from net.Conn, to func() net.Conn) {
	frame := make([]byte, frameLimit)
	for {
		n, err := from.Read(frame)
		if err != nil {
			return
		}
		if conn := to(); conn != nil {
			_, _ = conn.Write(frame[:n]) // the machine may be off by now
		}
	}
}
