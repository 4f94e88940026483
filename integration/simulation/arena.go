package simulation

import "github.com/viablk/viablk/via"

// arena is memory of a process.
type arena struct {
	adapter *adapter
	bytes   []byte
	index   int // in the adapter's, -1: it is not mapped any more
}

const page = 4096

// MapArena maps memory. Slices of whole pages begin at a page.
func (a *adapter) MapArena(size int) (via.ArenaMemory, error) {
	n := a.network
	size = (size + page - 1) &^ (page - 1)
	m := &arena{adapter: a, bytes: n.scheduler.runner.memory.get(size), index: len(a.arenas)}
	a.arenas = append(a.arenas, m)
	n.arenas++
	return m, nil
}

// Bytes returns the memory.
func (m *arena) Bytes() []byte { return m.bytes }

// Discard clears a range.
func (m *arena) Discard(off, n int) error {
	clear(m.bytes[off : off+n])
	return nil
}

// Close unmaps the memory.
func (m *arena) Close() error {
	switch a := m.adapter; {
	case a.process.dead:
	case m.index < 0:
		a.network.scheduler.fail("%s: an arena is unmapped twice", a.process.name)
	default:
		m.unmap()
	}
	return nil
}

// unmap takes the memory from its process. A peer inside a copy has it mapped
// still.
func (m *arena) unmap() {
	a, last := m.adapter, len(m.adapter.arenas)-1
	moved := a.arenas[last]
	a.arenas[m.index], moved.index = moved, m.index
	a.arenas[last] = nil
	a.arenas, m.index = a.arenas[:last], -1
	a.network.arenas--
	a.network.retire(m.bytes)
}

// retire gives memory back to the runner when no copy is in progress.
func (n *network) retire(b []byte) {
	n.retired = append(n.retired, b)
	n.passRetired()
}

func (n *network) passRetired() {
	if n.copies > 0 {
		return
	}
	for _, b := range n.retired {
		n.scheduler.runner.memory.put(b)
	}
	clear(n.retired)
	n.retired = n.retired[:0]
}
