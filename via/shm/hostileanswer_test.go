package shm

import (
	"context"
	"net"
	"testing"
	"time"

	"github.com/viablk/viablk/via"
)

// TestAnswererMisbehaves connects an honest requester to a hostile listener.
func TestAnswererMisbehaves(t *testing.T) {
	for name, answer := range map[string]func(t *testing.T, c *net.UnixConn){
		"closes":       func(*testing.T, *net.UnixConn) {},
		"says nothing": func(t *testing.T, c *net.UnixConn) { ended(t, c) },
		"garbage":      func(t *testing.T, c *net.UnixConn) { sendRaw(t, c, []byte("garbage"), 2) },
		"empty":        func(t *testing.T, c *net.UnixConn) { sendRaw(t, c, nil, 3) },
		"hello": func(t *testing.T, c *net.UnixConn) {
			sendRaw(t, c, encoded(control{kind: controlHello}), 3)
		},
		"accepts without files": func(t *testing.T, c *net.UnixConn) {
			sendRaw(t, c, encoded(control{kind: controlAccept}), 0)
		},
		"accepts with wrong files": func(t *testing.T, c *net.UnixConn) {
			sendRaw(t, c, encoded(control{kind: controlAccept}), 3)
		},
		"accepts with a wrong reply": func(t *testing.T, c *net.UnixConn) {
			o := newRawOffer(t)
			check(t, sendControl(c, control{kind: controlAccept, body: []byte("no"), fds: o.fds()}))
			closeRaw(o)
			ended(t, c)
		},
		"refuses without a reason": func(t *testing.T, c *net.UnixConn) {
			check(t, sendControl(c, control{kind: controlRefuse}))
		},
	} {
		t.Run(name, func(t *testing.T) {
			b := attack(t)
			path := t.TempDir() + "/l"
			l, err := net.ListenUnix("unixpacket", &net.UnixAddr{Name: path, Net: "unixpacket"})
			check(t, err)
			served := make(chan struct{})
			go func() {
				defer close(served)
				c, err := l.AcceptUnix()
				if err != nil {
					t.Error(err)
					return
				}
				m, err := receiveControl(c)
				if err != nil {
					t.Error(err)
				}
				closeAll(m.fds...)
				answer(t, c)
				_ = c.Close()
			}()
			wait := time.Minute
			if name == "says nothing" {
				wait = 50 * time.Millisecond
			}
			ctx, cancel := context.WithTimeout(context.Background(), wait)
			defer cancel()
			vi := b.newVI()
			if _, err := vi.Connect(ctx, via.Address{Host: path, Discriminator: "d"}); err == nil {
				t.Error("connected")
			}
			<-served
			check(t, l.Close())
			if vi.State() != via.StateIdle {
				t.Errorf("the vi is %v", vi.State())
			}
			b.keeps()
		})
	}
}
