package netbed

import (
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/viablk/viablk/internal/netns"
)

// Middle is a man in the middle of the cable: UDP packets over IPv4 reach a
// host through it alone.
//
//	A ── cable ── receiver of B ─▶ decide ─▶ sender of A ── cable ──▶ B
//	                   └ drop, unless the frame is of the middle
//
// It tells its own frames by an Ethernet address that no host has.
type Middle struct {
	bed    *Bed
	decide Decide
	ways   []*way
	stop   atomic.Bool
	ended  chan error
	done   bool
}

// Decide returns the frames that a host is to receive in place of one, in
// their order. One goroutine for each host calls it, after a few milliseconds
// without a frame with nil. It may change the frame, which is valid until it
// returns.
type Decide func(to *Host, frame []byte) [][]byte

// way is the packets to one host.
type way struct {
	to     *Host
	fd     int // receives what arrives at the host
	sender *Sender
	rule   table // drops it behind that
}

// middleAddress is the Ethernet address of the middle. It is local.
var middleAddress = [6]byte{0x02, 'm', 'i', 'd', 'd', 'l'}

// Interpose puts a man in the middle, until Stop.
func (b *Bed) Interpose(decide Decide) *Middle {
	b.A.t.Helper()
	m := &Middle{bed: b, decide: decide, ended: make(chan error, 2)}
	for _, to := range []*Host{b.A, b.B} {
		w := &way{to: to, sender: to.peer.Sender()}
		if err := w.open(); err != nil {
			to.t.Fatalf("receive frames in the middle: %v", err)
		}
		mine := fmt.Sprintf("ether saddr != %02x:%02x:%02x:%02x:%02x:%02x ", middleAddress[0], middleAddress[1],
			middleAddress[2], middleAddress[3], middleAddress[4], middleAddress[5])
		w.rule = to.rule("netdev", fmt.Sprintf("hook ingress device %q priority 0", netns.Device),
			Packets("ip version 4 "+mine)+Datagrams, Always, "drop")
		m.ways = append(m.ways, w)
	}
	for _, w := range m.ways {
		go func() { m.ended <- m.routineForward(w) }()
	}
	b.A.t.Cleanup(m.Stop)
	return m
}

// open opens the receiver (packet(7)), of all protocols: one of a single
// protocol would be behind the rule.
func (w *way) open() error {
	err := w.to.Do(func() (err error) {
		w.fd, err = unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
		return err
	})
	index, indexErr := w.to.index()
	if err = errors.Join(err, indexErr); err != nil {
		return err
	}
	err = unix.SetsockoptInt(w.fd, unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, captureBuffer)
	if err == nil {
		err = unix.SetsockoptInt(w.fd, unix.SOL_PACKET, unix.PACKET_IGNORE_OUTGOING, 1)
	}
	if err == nil {
		err = unix.Bind(w.fd, &unix.SockaddrLinklayer{Protocol: everything(), Ifindex: index})
	}
	return err
}

// routineForward forwards packets to a host until the middle is to stop.
func (m *Middle) routineForward(w *way) error {
	frame := make([]byte, longestFrame)
	for !m.stop.Load() {
		n, err := unix.Poll([]unix.PollFd{{Fd: int32(w.fd), Events: unix.POLLIN}}, int(nap/time.Millisecond))
		if err != nil && !errors.Is(err, unix.EINTR) {
			return err
		}
		if n <= 0 {
			if err := m.forward(w, nil); err != nil {
				return err
			}
			continue
		}
		n, _, err = unix.Recvfrom(w.fd, frame, 0)
		switch {
		case errors.Is(err, unix.EAGAIN), errors.Is(err, unix.ENETDOWN):
		case err != nil:
			return err
		case n > 12 && [6]byte(frame[6:12]) != middleAddress:
			if err := m.forward(w, frame[:n]); err != nil {
				return err
			}
		}
	}
	return nil
}

// forward sends what the host is to receive.
func (m *Middle) forward(w *way, frame []byte) error {
	if frame != nil && !isDatagram(frame) {
		return nil // no rule drops it
	}
	for _, f := range m.decide(w.to, frame) {
		copy(f[6:12], middleAddress[:])
		if err := w.sender.Send(f); err != nil {
			return err
		}
	}
	return nil
}

// isDatagram reports whether a frame is UDP over IPv4, and then removes the UDP
// checksum: that of a frame between virtual devices is not complete.
func isDatagram(frame []byte) bool {
	const version4 = 0x45 // and a header of five words
	if len(frame) < FramePayload || frame[frameAtIP] != version4 || frame[frameAtProtocol] != unix.IPPROTO_UDP {
		return false
	}
	frame[frameAtChecksum], frame[frameAtChecksum+1] = 0, 0
	return true
}

// Send has a host receive a frame of the middle's own.
func (m *Middle) Send(to *Host, frame []byte) error {
	for _, w := range m.ways {
		if w.to == to {
			copy(frame[6:12], middleAddress[:])
			return w.sender.Send(frame)
		}
	}
	return errors.New("no host of this cable")
}

// Stop takes the middle away. It may be called again.
func (m *Middle) Stop() {
	t := m.bed.A.t
	t.Helper()
	if m.done {
		return
	}
	m.done = true
	m.stop.Store(true)
	err := errors.Join(<-m.ended, <-m.ended)
	for _, w := range m.ways {
		w.rule.remove()
		err = errors.Join(err, unix.Close(w.fd))
	}
	if err != nil {
		t.Errorf("the man in the middle: %v", err)
	}
}
