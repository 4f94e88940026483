package roce

// table finds queue pairs by number: a hash table with open addressing. Entries
// probe linearly; removing one reinserts those that follow it.
type table struct {
	buckets []bucket // length is a power of two, or 0
	count   int
}

// bucket has the number beside the queue pair, which probing thus does not
// touch. It is empty if transport is nil.
type bucket struct {
	qpn       uint32
	transport *transport
}

// home is the first bucket of a queue pair number. The bits above the shard
// bits are random.
func (t *table) home(qpn uint32) int { return int(qpn>>shardBits) & (len(t.buckets) - 1) }

// find returns the queue pair with a number, or nil.
func (t *table) find(qpn uint32) *transport {
	if t.count == 0 {
		return nil
	}
	return t.buckets[t.seek(qpn)].transport
}

// seek returns the index of a number's bucket or, if the number is not in the
// table, of the empty one that ends its probe.
func (t *table) seek(qpn uint32) int {
	for i := t.home(qpn); ; i = t.next(i) {
		if b := &t.buckets[i]; b.transport == nil || b.qpn == qpn {
			return i
		}
	}
}

func (t *table) next(i int) int { return (i + 1) & (len(t.buckets) - 1) }

// add inserts a queue pair whose number is not in the table.
func (t *table) add(qpn uint32, x *transport) {
	if 2*(t.count+1) > len(t.buckets) {
		old := t.buckets
		t.buckets = make([]bucket, max(8, 2*len(old)))
		for _, b := range old {
			if b.transport != nil {
				t.buckets[t.seek(b.qpn)] = b
			}
		}
	}
	t.buckets[t.seek(qpn)] = bucket{qpn, x}
	t.count++
}

// remove removes a number, if it is in the table.
func (t *table) remove(qpn uint32) {
	if t.find(qpn) == nil {
		return
	}
	i := t.seek(qpn)
	t.buckets[i] = bucket{}
	t.count--
	for i = t.next(i); t.buckets[i].transport != nil; i = t.next(i) {
		b := t.buckets[i]
		t.buckets[i] = bucket{}
		t.buckets[t.seek(b.qpn)] = b
	}
}
