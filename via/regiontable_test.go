package via

import (
	"sync"
	"testing"

	"pgregory.net/rapid"
)

func TestRegionTableLimit(t *testing.T) {
	var table regionTable
	table.init(3, false)
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
	if m := (&Memory{}); !table.insert(m) || m.Handle()&0xffff != all[1].Handle()&0xffff {
		t.Error("the free place is not used")
	}
	var none regionTable
	none.init(0, false)
	if none.insert(&Memory{}) {
		t.Error("room in a table of none")
	}
	var big regionTable
	big.init(1<<20, false)
	if big.limit != 1<<16 {
		t.Errorf("limit is %d, want what an index holds", big.limit)
	}
}

// With one place every registration reuses it: the generation makes the handle,
// and one does not tell the next.
func TestRegionTableGenerations(t *testing.T) {
	const draws = 1 << 16
	var table regionTable
	table.init(1, false)
	seen, steps := make(map[uint32]bool), make(map[uint32]int)
	last := uint32(0)
	for range draws {
		m := &Memory{}
		if !table.insert(m) {
			t.Fatal("no room")
		}
		if m.Handle() == 0 || m.Handle() == last {
			t.Fatalf("handle %#x after %#x", m.Handle(), last)
		}
		seen[m.Handle()] = true
		steps[m.Handle()-last]++
		if table.lookup(m.Handle()) != m {
			t.Fatal("not found by its handle")
		}
		if table.lookup(m.Handle()+1<<16) != nil || table.lookup(m.Handle()+1) != nil || table.lookup(m.Handle()-1<<16) != nil || table.lookup(last) != nil {
			t.Fatal("found by another handle")
		}
		table.remove(m)
		if table.lookup(m.Handle()) != nil {
			t.Fatal("found after its removal")
		}
		last = m.Handle()
	}
	// Of so many values as there are draws 63 % come; no step is likelier than
	// others.
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
		table.init(1, false)
		m := &Memory{}
		table.insert(m)
		handles[m.Handle()] = true
	}
	if len(handles) < 32 {
		t.Errorf("64 tables gave %d first handles", len(handles))
	}
}

func TestRegionTableModel(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		var table regionTable
		limit := rapid.IntRange(1, 600).Draw(rt, "limit")
		table.init(limit, false)
		live := make(map[uint32]*Memory)
		var dead []uint32
		for range rapid.IntRange(1, 800).Draw(rt, "steps") {
			if rapid.Bool().Draw(rt, "insert") {
				m := &Memory{}
				if ok := table.insert(m); ok != (len(live) < limit) {
					rt.Fatalf("insert with %d of %d live: %v", len(live), limit, ok)
				} else if ok {
					if live[m.Handle()] != nil {
						rt.Fatalf("handle %#x twice", m.Handle())
					}
					live[m.Handle()] = m
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
	table.init(300, false)
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
					if table.lookup(m.Handle()) != m {
						t.Error("a registration is not found by who made it")
					}
					table.remove(m)
				}
			}
		}()
	}
	for range 20000 {
		if table.lookup(fixed.Handle()) != fixed {
			t.Fatal("a region is lost while others change")
		}
	}
	wg.Wait()
}

// A device names regions as it likes, and again when their attributes change.
func TestRegionTableOfNamedRegions(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		var table regionTable
		const limit = 40
		table.init(limit, true)
		// Few places, so that regions share them.
		handles := rapid.Custom(func(rt *rapid.T) uint32 {
			return rapid.Uint32Range(1, 3).Draw(rt, "index")<<8 | rapid.Uint32Range(0, 9).Draw(rt, "key") |
				rapid.Uint32Range(0, 1).Draw(rt, "high")<<31
		})
		live, used := make(map[uint32]*Memory), 0
		for range rapid.IntRange(1, 200).Draw(rt, "steps") {
			h := handles.Draw(rt, "handle")
			m := live[h]
			switch again := handles.Draw(rt, "another handle"); {
			case m == nil && used == limit:
				if table.insert(&Memory{}) {
					rt.Fatalf("%d regions of %d", used+1, limit)
				}
			case m == nil:
				m = &Memory{}
				table.insert(m)
				table.rename(m, h)
				live[h] = m
				used++
			case live[again] == nil && rapid.Bool().Draw(rt, "rename"):
				table.rename(m, again)
				delete(live, h)
				live[again] = m
			default:
				table.remove(m)
				delete(live, h)
				used--
			}
			for index := range uint32(4) {
				for key := range uint32(10) {
					for _, h := range []uint32{index<<8 | key, 1<<31 | index<<8 | key} {
						if table.lookup(h) != live[h] {
							rt.Fatalf("handle %#x names %p, want %p", h, table.lookup(h), live[h])
						}
					}
				}
			}
			if table.live() != used {
				rt.Fatalf("%d live, want %d", table.live(), used)
			}
		}
	})
}
