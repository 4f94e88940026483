package roce_test

import (
	"context"
	"fmt"
	"net/netip"
	"os"
	"strconv"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/viablk/viablk/via"
	"github.com/viablk/viablk/via/roce"
)

// waitReadable waits until packets wait in a socket.
func waitReadable(t *testing.T, fd int) {
	t.Helper()
	fds := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}
	for {
		n, err := unix.Poll(fds, int(time.Minute/time.Millisecond))
		if err == unix.EINTR {
			continue
		}
		if n != 1 || err != nil {
			t.Fatalf("no packet waits: %v", err)
		}
		return
	}
}

// TestListenerMoves: a requester whose request arrives while the address moves
// waits for the provider that gets it.
func TestListenerMoves(t *testing.T) {
	host := freePort(t, "127.0.0.1")
	at := via.Address{Host: host, Discriminator: "d"}
	first := roce.New(loaded)
	y := newParty(t, first, "")
	l, err := y.nic.Listen(at)
	check(t, err)
	moved, err := first.HandOver()
	check(t, err)
	if len(moved) != 1 || moved[0].Local.String() != host || !first.InUse(moved[0].Local) {
		t.Fatalf("%v moves, not %s", moved, host)
	}
	check(t, l.Close())
	y.close()
	if first.InUse(moved[0].Local) {
		t.Error("the address is in use by a provider without devices")
	}

	x := newParty(t, roce.New(loaded), "")
	connected := make(chan error, 1)
	ctx, refused := context.WithCancelCause(t.Context())
	go func() {
		_, err := x.vi.Connect(t.Context(), at)
		if err != nil {
			refused(err)
		}
		connected <- err
	}()
	waitReadable(t, moved[0].FD)
	next := roce.New(loaded)
	next.AdoptSockets(roce.NewSockets(moved))
	y = newParty(t, next, "")
	l, err = y.nic.Listen(at)
	check(t, err)
	r, err := l.Wait(ctx)
	if err != nil {
		t.Fatalf("the requester does not wait: %v", context.Cause(ctx))
	}
	check(t, r.Accept(t.Context(), y.vi))
	check(t, <-connected)
	check(t, l.Close())
	x.close()
	y.close()
}

// TestUnclaimedSocketCloses: what no endpoint uses is closed, and the address
// is free.
func TestUnclaimedSocketCloses(t *testing.T) {
	host := freePort(t, "127.0.0.1")
	at := via.Address{Host: host, Discriminator: "d"}
	first := roce.New(loaded)
	y := newParty(t, first, "")
	l, err := y.nic.Listen(at)
	check(t, err)
	moved, err := first.HandOver()
	check(t, err)
	check(t, l.Close())
	y.close()
	s := roce.NewSockets(moved)
	z := newParty(t, roce.New(loaded), "")
	if l, err := z.nic.Listen(at); err == nil {
		t.Error("another provider listens at an address that moves")
		check(t, l.Close())
	}
	s.Close()
	l, err = z.nic.Listen(at)
	check(t, err)
	check(t, l.Close())
	z.close()
}

// socketOf returns a descriptor of another process's socket at an address.
func socketOf(t *testing.T, pid int, local netip.AddrPort) int {
	t.Helper()
	process, err := unix.PidfdOpen(pid, 0)
	check(t, err)
	defer unix.Close(process)
	all, err := os.ReadDir(fmt.Sprintf("/proc/%d/fd", pid))
	check(t, err)
	for _, x := range all {
		n, err := strconv.Atoi(x.Name())
		check(t, err)
		fd, err := unix.PidfdGetfd(process, n, 0)
		check(t, err)
		if name, err := unix.Getsockname(fd); err == nil {
			s, ok := name.(*unix.SockaddrInet4)
			if ok && netip.AddrPortFrom(netip.AddrFrom4(s.Addr), uint16(s.Port)) == local {
				return fd
			}
		}
		check(t, unix.Close(fd))
	}
	t.Fatalf("process %d has no socket at %v", pid, local)
	return -1
}

// TestPacketsOfBeforeAreUnknown: a packet for a queue pair of the process
// before, which waited while the address moved, reaches no connection of the
// next one, and its sender learns that the connection is gone.
func TestPacketsOfBeforeAreUnknown(t *testing.T) {
	host := freePort(t, "127.0.0.1")
	local := netip.MustParseAddrPort(host)
	x, cmd := spawnAt(t, host, unhurried)
	fd := socketOf(t, cmd.Process.Pid, local)
	check(t, cmd.Process.Kill())
	_ = cmd.Wait() // it was killed
	check(t, x.vi.PostSend(x.build(via.OpSend, 0, 64, nil)))
	waitReadable(t, fd)
	next := roce.New(roce.Options{})
	next.AdoptSockets(roce.NewSockets([]roce.Socket{{Local: local, FD: fd}}))
	y := newParty(t, next, "")
	l, err := y.nic.Listen(via.Address{Host: host, Discriminator: "other"})
	check(t, err)
	within(t, "the loss", func() bool {
		x.cq.Poll(x.batch[:])
		return x.vi.State() == via.StateError
	})
	var unknown uint64
	for _, e := range next.Statistics() {
		unknown += e.CM.Unknown
	}
	if unknown == 0 {
		t.Error("the packet was not one for an unknown queue pair")
	}
	x.close()
	check(t, l.Close())
	y.close()
}
