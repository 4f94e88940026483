package roce

// table finds links by queue pair number: a hash table with open addressing. A
// link moves no further than what is taken makes it; removing one moves back what
// follows it.
type table struct {
	slots []*link // a power of two, or none
	count int
}

// home is where a queue pair's search begins. The numbers are random above the
// bits of the lane.
func (t *table) home(qpn uint32) int { return int(qpn>>laneBits) & (len(t.slots) - 1) }

// find returns the link of a queue pair, or nil.
func (t *table) find(qpn uint32) *link {
	if t.count == 0 {
		return nil
	}
	for i := t.home(qpn); ; i = (i + 1) & (len(t.slots) - 1) {
		if l := t.slots[i]; l == nil || l.qpn == qpn {
			return l
		}
	}
}

// add enters a link whose queue pair is not there.
func (t *table) add(l *link) {
	if 2*(t.count+1) > len(t.slots) {
		old := t.slots
		t.slots = make([]*link, max(8, 2*len(old)))
		for _, k := range old {
			if k != nil {
				t.put(k)
			}
		}
	}
	t.put(l)
	t.count++
}

func (t *table) put(l *link) {
	i := t.home(l.qpn)
	for t.slots[i] != nil {
		i = (i + 1) & (len(t.slots) - 1)
	}
	t.slots[i] = l
}

// remove takes a link out, if it is there.
func (t *table) remove(l *link) {
	if t.find(l.qpn) != l {
		return
	}
	i := t.home(l.qpn)
	for t.slots[i] != l {
		i = (i + 1) & (len(t.slots) - 1)
	}
	t.slots[i] = nil
	t.count--
	for i = (i + 1) & (len(t.slots) - 1); t.slots[i] != nil; i = (i + 1) & (len(t.slots) - 1) {
		k := t.slots[i]
		t.slots[i] = nil
		t.put(k)
	}
}
