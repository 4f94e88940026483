package shm

import (
	"testing"

	"golang.org/x/sys/unix"

	"github.com/viablk/viablk/internal/memfd"
	"github.com/viablk/viablk/via"
)

// TestHostileArena passes arenas that cannot be mapped safely.
func TestHostileArena(t *testing.T) {
	const size = 1 << 16
	rawMemfd := func(t *testing.T, size int64, flags, seals int) int {
		fd, err := unix.MemfdCreate("hostile", unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING|flags)
		check(t, err)
		check(t, unix.Ftruncate(fd, size))
		_, err = unix.FcntlInt(uintptr(fd), unix.F_ADD_SEALS, seals)
		check(t, err)
		return fd
	}
	sealed := func(t *testing.T) int { return rawMemfd(t, size, 0, memfd.SizeSeals) }
	for name, m := range map[string]struct {
		size uint64
		fd   func(t *testing.T) int
	}{
		"size 0":        {0, sealed},
		"another size":  {size / 2, sealed},
		"longer":        {size * 2, sealed},
		"size all ones": {^uint64(0), sealed},
		"size 1<<63":    {1 << 63, sealed},
		"unsealed":      {size, func(t *testing.T) int { return rawMemfd(t, size, 0, 0) }},
		"not writable":  {size, func(t *testing.T) int { return rawMemfd(t, size, 0, memfd.SizeSeals|unix.F_SEAL_WRITE) }},
		"huge pages":    {2 << 20, func(t *testing.T) int { return rawMemfd(t, 2<<20, unix.MFD_HUGETLB, memfd.SizeSeals) }},
		"/dev/zero": {size, func(t *testing.T) int {
			fd, err := unix.Open("/dev/zero", unix.O_RDWR|unix.O_CLOEXEC, 0)
			check(t, err)
			return fd
		}},
	} {
		t.Run(name, func(t *testing.T) {
			b := attack(t)
			fd := m.fd(t)
			check(t, sendControl(b.peer.conn, control{kind: controlArena, value: 1, size: m.size, fds: []int{fd}}))
			check(t, unix.Close(fd))
			b.loses()
		})
	}
	// A few sparse arenas could fill the address space and stop the process.
	t.Run("more than an address space holds", func(t *testing.T) {
		b := attack(t)
		for i := range uint64(2) {
			fd := rawMemfd(t, 3<<40, 0, memfd.SizeSeals)
			check(t, sendControl(b.peer.conn, control{kind: controlArena, value: i + 1, size: 3 << 40, fds: []int{fd}}))
			check(t, unix.Close(fd))
		}
		b.loses()
	})
	for name, messages := range map[string][]control{
		"the same number": {{kind: controlArena, value: 1, size: size}, {kind: controlArena, value: 1, size: size}},
		"drop unknown":    {{kind: controlDrop, value: 9}},
		"drop twice":      {{kind: controlArena, value: 1, size: size}, {kind: controlDrop, value: 1}, {kind: controlDrop, value: 1}},
		"hello again":     {{kind: controlHello, body: rawHello()}},
		"ready again":     {{kind: controlReady}},
	} {
		t.Run(name, func(t *testing.T) {
			b := attack(t)
			for _, m := range messages {
				fd := sealed(t)
				for range controlFDs(m.kind) {
					m.fds = append(m.fds, fd)
				}
				check(t, sendControl(b.peer.conn, m))
				check(t, unix.Close(fd))
			}
			b.loses()
		})
	}
}

// TestArenaFlood passes arenas without end; then it passes and drops.
func TestArenaFlood(t *testing.T) {
	for _, drop := range []bool{false, true} {
		b := attack(t)
		fd, err := unix.MemfdCreate("flood", unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING)
		check(t, err)
		check(t, unix.Ftruncate(fd, 4096))
		_, err = unix.FcntlInt(uintptr(fd), unix.F_ADD_SEALS, memfd.SizeSeals)
		check(t, err)
		flooded := make(chan int)
		go func() {
			n := 0
			for ; n < 10000; n++ {
				if sendControl(b.peer.conn, control{kind: controlArena, value: uint64(n), size: 4096, fds: []int{fd}}) != nil {
					break
				}
				if drop && sendControl(b.peer.conn, control{kind: controlDrop, value: uint64(n)}) != nil {
					break
				}
			}
			flooded <- n
		}()
		if !drop {
			b.loses()
			<-flooded
		} else {
			for done := false; !done; {
				select {
				case <-flooded:
					done = true
				default:
					b.healthy.check()
				}
			}
			if b.vi.State() == via.StateConnected {
				b.keeps()
			}
			b.disconnect(b.vi)
		}
		check(t, unix.Close(fd))
		b.peer.close()
	}
}

// TestDroppedArena: the victim unmaps a dropped arena and discards its
// translations, even if the hostile table still names it.
func TestDroppedArena(t *testing.T) {
	b := attack(t)
	before := mapped.Load()
	b.peer.arena(1 << 16)
	both(0x1000, 4096, 1, 0)(b.peer)
	d := b.remote(0, via.OpRdmaWrite, 1<<20, 64, 0x1000, rawHandle)
	check(t, b.vi.PostSend(d))
	if c := b.await(d); c.Status.Failed() {
		t.Fatalf("completed with %v", c.Status)
	}
	check(t, sendControl(b.peer.conn, control{kind: controlDrop, value: 1}))
	until(t, "the arena to be unmapped", func() bool { return mapped.Load() == before }, b.station)
	d = b.remote(0, via.OpRdmaWrite, 1<<20, 64, 0x1000, rawHandle)
	check(t, b.vi.PostSend(d))
	b.keeps() // it waits for an arena of that number
	b.peer.passed = 0
	b.peer.arena(1 << 16)
	if c := b.await(d); c.Status.Failed() {
		t.Fatalf("completed with %v", c.Status)
	}
}
