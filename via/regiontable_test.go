package via

import (
	"sync"
	"testing"

	"pgregory.net/rapid"
)

func TestRegionTableLimit(t *testing.T) {
	var table regionTable
	table.init(3)
	var all []*Memory
	for range 3 {
		m := &Memory{}
		if !table.insert(m) {
			t.Fatal("no room below the limit")
		}
		all = append(all, m)
	}
	if table.insert(&Memory{}) {
		t.Error("room above the limit")
	}
	table.remove(all[1])
	table.remove(all[1]) // harmless
	if table.live() != 2 {
		t.Errorf("%d live, want 2", table.live())
	}
	if m := (&Memory{}); !table.insert(m) || m.handle&0xffff != all[1].handle&0xffff {
		t.Error("the free place is not used")
	}
	var none regionTable
	none.init(0)
	if none.insert(&Memory{}) {
		t.Error("room in a table of none")
	}
	var big regionTable
	big.init(1 << 20)
	if big.limit != 1<<16 {
		t.Errorf("limit is %d, want what an index holds", big.limit)
	}
}

// With one place every registration reuses it: the generation makes the handle, and
// one does not tell the next.
func TestRegionTableGenerations(t *testing.T) {
	const draws = 1 << 16
	var table regionTable
	table.init(1)
	seen, steps := make(map[uint32]bool), make(map[uint32]int)
	last := uint32(0)
	for range draws {
		m := &Memory{}
		if !table.insert(m) {
			t.Fatal("no room")
		}
		if m.handle == 0 || m.handle == last {
			t.Fatalf("handle %#x after %#x", m.handle, last)
		}
		seen[m.handle] = true
		steps[m.handle-last]++
		if table.lookup(m.handle) != m {
			t.Fatal("not found by its handle")
		}
		if table.lookup(m.handle+1<<16) != nil || table.lookup(m.handle+1) != nil || table.lookup(m.handle-1<<16) != nil || table.lookup(last) != nil {
			t.Fatal("found by another handle")
		}
		table.remove(m)
		if table.lookup(m.handle) != nil {
			t.Fatal("found after its removal")
		}
		last = m.handle
	}
	// Of so many values as there are draws 63 % come; no step is likelier than others.
	if len(seen) < draws/2 || len(seen) > draws*3/4 {
		t.Errorf("%d of %d handles are different", len(seen), draws)
	}
	for step, n := range steps {
		if n > 20 {
			t.Errorf("a handle follows another by %#x, %d times", step, n)
		}
	}
}

func TestRegionTableStartsAtRandom(t *testing.T) {
	handles := make(map[uint32]bool)
	for range 64 {
		var table regionTable
		table.init(1)
		m := &Memory{}
		table.insert(m)
		handles[m.handle] = true
	}
	if len(handles) < 32 {
		t.Errorf("64 tables gave %d first handles", len(handles))
	}
}

func TestRegionTableModel(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		var table regionTable
		limit := rapid.IntRange(1, 600).Draw(rt, "limit")
		table.init(limit)
		live := make(map[uint32]*Memory)
		var dead []uint32
		for range rapid.IntRange(1, 800).Draw(rt, "steps") {
			if rapid.Bool().Draw(rt, "insert") {
				m := &Memory{}
				if ok := table.insert(m); ok != (len(live) < limit) {
					rt.Fatalf("insert with %d of %d live: %v", len(live), limit, ok)
				} else if ok {
					if live[m.handle] != nil {
						rt.Fatalf("handle %#x twice", m.handle)
					}
					live[m.handle] = m
				}
				continue
			}
			for h, m := range live {
				table.remove(m)
				delete(live, h)
				dead = append(dead, h)
				break
			}
		}
		for h, m := range live {
			if table.lookup(h) != m {
				rt.Fatalf("live handle %#x not found", h)
			}
		}
		for _, h := range dead {
			if live[h] == nil && table.lookup(h) != nil {
				rt.Fatalf("dead handle %#x found", h)
			}
		}
		if table.live() != len(live) {
			rt.Fatalf("%d live, want %d", table.live(), len(live))
		}
	})
}

func TestRegionTableLookupWhileItChanges(t *testing.T) {
	var table regionTable
	table.init(300)
	fixed := &Memory{}
	table.insert(fixed)
	var wg sync.WaitGroup
	for range 2 {
		wg.Add(1)
		go func() {
			defer wg.Done()
			for range 2000 {
				m := &Memory{}
				if table.insert(m) {
					if table.lookup(m.handle) != m {
						t.Error("a registration is not found by who made it")
					}
					table.remove(m)
				}
			}
		}()
	}
	for range 20000 {
		if table.lookup(fixed.handle) != fixed {
			t.Fatal("a region is lost while others change")
		}
	}
	wg.Wait()
}
