package nbdclient

import (
	"runtime"
	"sync/atomic"

	"github.com/viablk/viablk/internal/eventfd"
)

// bell wakes the owner of a queue from other goroutines.
type bell struct {
	fd       int
	users    atomic.Int64 // goroutines in ring; far below 0 once closed
	rings    atomic.Uint64
	received uint64 // of rings; the owner's
}

// bellClosed is added to the users of a bell that is closed.
const bellClosed = -1 << 40

func newBell() (*bell, error) {
	fd, err := eventfd.New()
	if err != nil {
		return nil, err
	}
	return &bell{fd: fd}, nil
}

// ring makes the descriptor readable.
func (b *bell) ring() {
	if b.users.Add(1) > 0 {
		eventfd.Ring(b.fd)
		b.rings.Add(1)
	}
	b.users.Add(-1)
}

// receiveRings makes the descriptor unreadable, and reports whether the bell
// rang.
func (b *bell) receiveRings() bool {
	rings := b.rings.Load()
	if rings == b.received {
		return false
	}
	b.received = rings
	eventfd.Drain(b.fd)
	return true
}

// rang reports whether receiveRings would be true.
func (b *bell) rang() bool { return b.rings.Load() != b.received }

// close closes the descriptor. A ring that is late does nothing.
func (b *bell) close() error {
	b.users.Add(bellClosed)
	for b.users.Load() != bellClosed {
		runtime.Gosched() // a ring is two instructions and a system call that does not block
	}
	return eventfd.Close(b.fd)
}
