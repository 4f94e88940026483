package attack

import (
	"bytes"
	"flag"
	"math/rand/v2"
	"sync"
	"testing"

	"github.com/viablk/viablk/integration/testbed"
	"github.com/viablk/viablk/internal/seal"
	"github.com/viablk/viablk/via"
)

var changes = flag.Int("attack.changes", 30, "messages and transfers that a fabric changes, of each kind of change")

// change is one thing that a fabric does to what travels. It reports whether it
// did.
type change func(r *rand.Rand, b []byte, recorded map[int][][]byte, w *via.Work) bool

var kinds = map[string]change{
	"flip": func(r *rand.Rand, b []byte, _ map[int][][]byte, _ *via.Work) bool {
		b[r.IntN(len(b))] ^= 1 << r.IntN(8)
		return true
	},
	"flip in the prefix": func(r *rand.Rand, b []byte, _ map[int][][]byte, _ *via.Work) bool {
		b[r.IntN(min(8, len(b)))] ^= 1 << r.IntN(8)
		return true
	},
	// Of the same length: earlier, in the other direction, of another
	// connection or session, another record, another place on the disk.
	"another in its place": func(r *rand.Rand, b []byte, recorded map[int][][]byte, _ *via.Work) bool {
		list := recorded[len(b)]
		if len(list) == 0 {
			return false
		}
		other := list[r.IntN(len(list))]
		return !bytes.Equal(b, other) && copy(b, other) > 0
	},
	"the one before": func(_ *rand.Rand, b []byte, recorded map[int][][]byte, _ *via.Work) bool {
		list := recorded[len(b)]
		return len(list) > 0 && !bytes.Equal(b, list[len(list)-1]) && copy(b, list[len(list)-1]) > 0
	},
	"zeroes": func(_ *rand.Rand, b []byte, _ map[int][][]byte, _ *via.Work) bool {
		clear(b)
		return true
	},
	"immediate": func(r *rand.Rand, _ []byte, _ map[int][][]byte, w *via.Work) bool {
		if w.Op == via.OpRdmaRead || w.HasImmediate {
			return false
		}
		w.HasImmediate, w.Immediate = true, r.Uint32()
		return true
	},
}

// meddler changes one of so many messages and transfers, while it is on.
type meddler struct {
	mu       sync.Mutex
	r        *rand.Rand
	kind     change
	one      int
	on       bool
	done     [channels]int
	recorded map[int][][]byte // by length
}

// meddle is what an attacker does to a work.
func (m *meddler) meddle(c channel, w *via.Work) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for i := range w.Segments {
		b := w.Segments[i].Bytes
		if len(b) == 0 {
			continue
		}
		original := bytes.Clone(b)
		if m.on && m.r.IntN(m.one) == 0 && m.kind(m.r, b, m.recorded, w) {
			m.done[c]++
		}
		list := append(m.recorded[len(b)], original)
		if len(list) > 16 {
			list = list[1:]
		}
		m.recorded[len(b)] = list
	}
}

func (m *meddler) total() (n int) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, k := range m.done {
		n += k
	}
	return n
}

// A fabric that flips bits, puts recorded capsules and payload in the place of
// others, or says something of its own, has nothing accepted: each change ends
// its connection, the device goes on by a reconnect, and every read is what was
// written.
func TestChangesOnTheWay(t *testing.T) {
	for name, f := range testbed.Fabrics {
		for what, kind := range kinds {
			t.Run(name+"/"+what, func(t *testing.T) {
				m := &meddler{r: rand.New(rand.NewPCG(5, 6)), kind: kind, one: 40, recorded: map[int][][]byte{}}
				a := newAttacker(func(channel, []byte) {})
				a.change = m.meddle
				s := newScene(t, f, a, true, seal.Limits{Capsules: 50})
				d := &disk{s.dial(t), make([]byte, diskSize)}
				m.mu.Lock()
				m.on = true
				m.mu.Unlock()
				found := func() uint64 { return d.Status().Stats.Forged + s.server.Status().Stats.Forged }
				rounds := 0
				for ; m.total() < *changes; rounds++ {
					n := sizes[rounds%(len(sizes)-1)] // longer ones seldom succeed
					off := m.random(diskSize-n) &^ 511
					d.write(t, testbed.RandomBytes(n), off)
					d.verify(t, n, off)
				}
				m.mu.Lock()
				m.on = false
				m.mu.Unlock()
				for off := 0; off < diskSize; off += 1 << 20 {
					d.verify(t, 1<<20, off)
				}
				t.Logf("%d rounds, changed %v of %v, %d found forged", rounds, m.done, channelNames, found())
				if found() == 0 && what != "immediate" { // which is refused as it is
					t.Error("nothing was found forged")
				}
				testbed.Must(t, d.Close())
			})
		}
	}
}

// random returns a number below n.
func (m *meddler) random(n int) int {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.r.IntN(n)
}
