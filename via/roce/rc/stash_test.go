package rc

import (
	"testing"

	"github.com/viablk/viablk/via/roce/wire"
)

// A queue pair that stashes all that it can leaves room for others, and has
// half of the room if it is alone.
func TestStashIsShared(t *testing.T) {
	const packets = 64
	stash := NewStash(packets)
	fill := func() *stashRing {
		a := &stashRing{stash: stash, size: packets}
		for s := seq(1); s < packets; s++ {
			a.put(&wire.Packet{Payload: []byte{byte(s)}}, wire.Accepted, s, 0)
		}
		return a
	}
	greedy := fill()
	if greedy.count != packets/2 {
		t.Errorf("one queue pair has %d of %d packets", greedy.count, packets)
	}
	second, third := fill(), fill()
	if second.count != packets/4 || third.count != packets/8 {
		t.Errorf("the next queue pairs have %d and %d packets", second.count, third.count)
	}
	for _, a := range []*stashRing{greedy, second, third} {
		a.release(0, packets)
	}
	if stash.Room() != packets {
		t.Errorf("room for %d packets is left of %d", stash.Room(), packets)
	}
}
