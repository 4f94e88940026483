package rights

import (
	"bytes"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"time"

	"golang.org/x/sys/unix"

	"github.com/viablk/viablk/internal/carrier"
	"github.com/viablk/viablk/internal/wire"
	"github.com/viablk/viablk/target"
	"github.com/viablk/viablk/via"
)

// viaClient is the control connection of a session, by raw messages.
type viaClient struct {
	c   *carrier.Carrier
	raw []byte // the last answer
}

// dialVIA connects and logs in.
func dialVIA(nic *via.NIC, host string) (*viaClient, error) {
	attrs := via.ViAttributes{Reliability: via.ReliableDelivery, EnableRdmaWrite: true, EnableRdmaRead: true}
	c, err := carrier.New(nic, carrier.Config{Attributes: attrs, SendDepth: 8, RecvDepth: 8})
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(context.Background(), testTimeout)
	defer cancel()
	err = errors.Join(c.AddReceives(8, wire.MaxControlSize), c.AddSends(8, wire.MaxControlSize))
	if err == nil {
		err = c.Connect(ctx, via.Address{Host: host, Discriminator: target.Discriminator})
	}
	v := &viaClient{c: c}
	var a wire.LoginResponse
	if err == nil {
		err = v.ask(&wire.LoginRequest{
			ID: 1, PathEpoch: 1, MinVersion: wire.Version, MaxVersion: wire.Version, Role: wire.RoleControl,
			SessionID: newID(), SessionGen: 1, Nonce: 7, DataModes: wire.ModesInline,
		}, &a)
	}
	if err == nil && a.Status != wire.StatusOK {
		err = fmt.Errorf("log in: %v: %s", a.Status, a.Text)
	}
	if err != nil {
		return nil, errors.Join(err, v.Close())
	}
	return v, nil
}

// newID returns a random session ID.
func newID() (id [16]byte) {
	_, _ = rand.Read(id[:]) // never fails
	return id
}

// Close logs out, so that the target has forgotten the session, and
// disconnects.
func (v *viaClient) Close() error {
	var a wire.LogoutResponse
	_ = v.ask(&wire.Logout{ID: 9, PathEpoch: 1}, &a)
	_ = v.c.Disconnect() // the target may have done so
	return v.c.Close()
}

// ask sends a message and waits for the answer.
func (v *viaClient) ask(q, answer wire.Message) error {
	b := make([]byte, wire.MaxControlSize)
	n, err := q.Encode(b)
	if err != nil {
		return err
	}
	s := v.c.AcquireLargeSend(n)
	if s == nil {
		return errors.New("no send is free")
	}
	copy(s.Head, b[:n])
	if err := v.c.StageMessage(s, n, carrier.Span{}); err != nil {
		return err
	}
	v.c.Doorbell()
	v.raw = nil
	for deadline := time.Now().Add(testTimeout); v.raw == nil; {
		if !v.c.Connected() || time.Now().After(deadline) {
			return errors.New("no answer")
		}
		if !v.poll() {
			if v.c.Arm() {
				_, _ = unix.Poll([]unix.PollFd{{Fd: int32(v.c.FD()), Events: unix.POLLIN}}, 1000)
			}
		}
	}
	return answer.Decode(v.raw)
}

// poll takes what has arrived, and reports whether anything has.
func (v *viaClient) poll() bool {
	var done [8]via.Completion
	n := v.c.Poll(done[:])
	for i := range done[:n] {
		e := &done[i]
		switch {
		case e.Status.Failed():
		case !e.Recv:
			v.c.FreeSend(v.c.Sent(e))
		default:
			r := v.c.Arrived(e)
			v.raw = append(bytes.Clone(r.Head[:min(int(e.Length), len(r.Head))]), r.Data[:max(0, int(e.Length)-len(r.Head))]...)
			_ = v.c.Post(r)
		}
	}
	return n > 0
}

// list implements [client].
func (v *viaClient) list() (names []string, err error) {
	var a wire.DiscoverResponse
	err = v.ask(&wire.DiscoverRequest{ID: 2, PathEpoch: 1, MaxMessage: wire.MaxControlSize}, &a)
	for _, e := range a.Entries {
		names = append(names, e.Name)
	}
	return names, err
}

// open implements [client].
func (v *viaClient) open(name string, m mode) (outcome, error) {
	q := wire.OpenRequest{ID: 3, PathEpoch: 1, OpenID: 1, Name: name, Mode: m.mode}
	var a wire.OpenResponse
	if err := v.ask(&q, &a); err != nil {
		return 0, err
	}
	switch a.Status {
	case wire.StatusOK:
		return granted, nil
	case wire.StatusPermission:
		return refused, nil
	case wire.StatusNotFound:
		return hidden, nil
	}
	return 0, fmt.Errorf("export %q is answered by %v: %s", name, a.Status, a.Reason)
}

// refusal implements [client].
func (v *viaClient) refusal(name string) ([]byte, error) {
	var a wire.OpenResponse
	err := v.ask(&wire.OpenRequest{ID: 3, PathEpoch: 1, OpenID: 1, Name: name, Mode: wire.OpenReadOnly}, &a)
	return v.raw, err
}
