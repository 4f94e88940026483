package session

import (
	"errors"
	"fmt"
	"net"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/viablk/viablk/integration/testbed"
)

// bindCall tries to bind a UDP address, which is in use.
func bindCall(address string) func() error {
	return func() error {
		c, err := net.ListenPacket("udp", address)
		if err == nil {
			return fmt.Errorf("another program binds %s: %w", address, c.Close())
		}
		if !errors.Is(err, syscall.EADDRINUSE) {
			return err
		}
		return nil
	}
}

// datagramCall sends datagrams to a UDP address, which no host refuses.
func datagramCall(t *testing.T, address string) func() error {
	c, err := net.Dial("udp", address)
	testbed.Must(t, err)
	t.Cleanup(func() { c.Close() })
	return func() error {
		time.Sleep(200 * time.Microsecond)
		if _, err := c.Write([]byte{0}); errors.Is(err, syscall.ECONNREFUSED) {
			return fmt.Errorf("a datagram to %s is refused", address)
		}
		return nil
	}
}

// TestUDPAddressMoves: the UDP address of a listener for VIA over RoCE is in
// use all the time, and refuses nothing, while targets take over and successors
// die. An initiator notices pauses.
func TestUDPAddressMoves(t *testing.T) {
	t.Parallel()
	address := testbed.FreeAddress(t)
	s := newSuccession(t, "--listen", "via+roce://"+address+"/", "--export", "disk=file:"+testbed.SparseFile(t, 1<<20))
	a := testbed.AttachURIAt(t, testbed.StartCommand, testbed.Program(t), s.target.URI("disk", "via+roce"), "disk")
	k := testbed.Connect(t, a.URI("disk", "nbd+unix"))
	x := startCallers(t, bindCall(address), datagramCall(t, address))
	for i := range 3 {
		s.next()
		k.Ask(fmt.Sprintf("fill 0 4096 %d", i+1), "ok")
	}
	for i, phase := range successorPhases[:len(successorPhases)-1] {
		dieAsSuccessor(t, phase, s.admin)
		testbed.Eventually(t, phase+": the target serving on", func() (any, bool) {
			text := s.target.Stderr.String()
			return text, strings.Count(text, "event=takeover_failed") == i+1
		})
		k.Ask(fmt.Sprintf("fill 0 4096 %d", i+10), "ok")
	}
	x.stop()
	k.Disconnect()
	a.Stop()
	s.target.Stop()
	testbed.Must(t, bindIsFree(address))
}

// bindIsFree checks that an address is free.
func bindIsFree(address string) error {
	c, err := net.ListenPacket("udp", address)
	if err != nil {
		return err
	}
	return c.Close()
}
