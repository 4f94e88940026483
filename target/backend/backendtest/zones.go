package backendtest

import (
	"bytes"
	"cmp"
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/viablk/viablk/internal/block"
)

// Zones check that requests which overlap are atomic, block by block of
// [block.AtomicUnit].
//
// Each client of the disk writes and reads a few parts of it, the zones, at the
// same time as others. Every write has a number, and all of its bytes say so.
// It covers a whole zone, or whole blocks in one; so what a read returns of a
// block has one number, or the block is torn. And the numbers of a block must
// have come in some order in which every read returns the write before it: a
// read that began after another write had ended does not return what was there
// earlier.
//
// All methods are safe for concurrent use.
type Zones struct {
	grain  int64 // bytes that offsets and lengths are multiples of
	zones  []span
	clock  atomic.Int64 // counts beginnings and ends
	number atomic.Uint64

	mu sync.Mutex
	// +checklocks:mu
	history map[int64][]event // of some blocks, by the offset of the part in a zone
}

// span is a part of a disk, in bytes.
type span struct{ off, n int64 }

// end returns where the span ends.
func (s span) end() int64 { return s.off + s.n }

// Access is a request for a part of a zone.
type Access struct {
	Write          bool
	Offset, Length int64 // bytes

	zone   int
	number uint64 // of a write
	began  int64
}

// event is what a request did to a block, or saw of it.
type event struct {
	number     uint64
	write      bool
	began, end int64
}

// watched is of how many blocks of a zone the order is checked.
const watched = 6

// NewZones lays zones out on a disk of 8 MiB or more. Some begin in the middle
// of a block, if the disk allows it, and some are longer than most peers move
// at a time.
func NewZones(info block.Info) *Zones {
	least := int64(info.MinimumBlock)
	unit, odd := max(least, block.AtomicUnit), int64(0)
	if least < block.AtomicUnit {
		odd = max(least, 8) + 512
	}
	z := &Zones{
		grain: max(least, 8),
		zones: []span{
			{0, unit},
			{4 * unit, 4 * unit},
			{16*unit + odd, 3 * unit},
			{2<<20 + odd, 192 << 10},
			{4 << 20, 256 << 10},
			{5<<20 + odd, 1<<20 + 128<<10},
		},
		history: make(map[int64][]event),
	}
	for _, s := range z.zones {
		parts := slices.Collect(blocksOf(s))
		for i := range watched {
			z.history[parts[i*(len(parts)-1)/(watched-1)].off] = nil
		}
	}
	return z
}

// blocksOf returns the parts of a span that are in different blocks.
func blocksOf(s span) func(yield func(span) bool) {
	return func(yield func(span) bool) {
		for off := s.off; off < s.end(); {
			next := min(off&^(block.AtomicUnit-1)+block.AtomicUnit, s.end())
			if !yield(span{off, next - off}) {
				return
			}
			off = next
		}
	}
}

// First returns the writes that come before all others, one for each zone.
func (z *Zones) First() (writes []Access) {
	for i, s := range z.zones {
		writes = append(writes, Access{Write: true, Offset: s.off, Length: s.n, zone: i, number: z.number.Add(1)})
	}
	return writes
}

// Next returns a request, small ones more often than large ones.
func (z *Zones) Next(random *rand.Rand, mayWrite bool) Access {
	i := min(random.IntN(len(z.zones)), random.IntN(len(z.zones)))
	s := z.zones[i]
	a := Access{Write: mayWrite && random.IntN(2) == 0, zone: i}
	if a.Write {
		a.number = z.number.Add(1)
	}
	if random.IntN(2) == 0 {
		step := z.grain
		if a.Write {
			step = max(z.grain, block.AtomicUnit)
		}
		// Of a read any part will do, of a write whole blocks.
		low, high := (s.off+step-1)/step, s.end()/step
		from := low + random.Int64N(high-low)
		s = span{from * step, (1 + random.Int64N(high-from)) * step}
	}
	a.Offset, a.Length = s.off, s.n
	return a
}

// Begin is called before the request is sent, with its memory.
func (z *Zones) Begin(a *Access, p []byte) {
	if a.Write {
		word := a.number<<8 | uint64(a.zone)
		for ; len(p) > 0; p = p[8:] {
			binary.LittleEndian.PutUint64(p, word)
		}
	}
	a.began = z.clock.Add(1)
}

// End is called when the request is answered, with its memory. It returns an
// error if a block is torn.
func (z *Zones) End(a *Access, p []byte) error {
	ended := z.clock.Add(1)
	for part := range blocksOf(span{a.Offset, a.Length}) {
		number := a.number
		if !a.Write {
			var err error
			if number, err = z.tag(a.zone, part, p[part.off-a.Offset:][:part.n]); err != nil {
				return err
			}
		}
		// A part is known by where it begins in its zone.
		at := max(part.off&^(block.AtomicUnit-1), z.zones[a.zone].off)
		z.note(at, event{number, a.Write, a.began, ended})
	}
	return nil
}

func (z *Zones) note(at int64, e event) {
	z.mu.Lock()
	defer z.mu.Unlock()
	if events, ok := z.history[at]; ok {
		z.history[at] = append(events, e)
	}
}

// tag returns the number of the write that a part of a block is from.
func (z *Zones) tag(zone int, part span, p []byte) (uint64, error) {
	first := binary.LittleEndian.Uint64(p)
	if !bytes.Equal(p[8:], p[:len(p)-8]) { // not all words are one
		return 0, fmt.Errorf("the block at %d is torn: %s", part.off, content(p))
	}
	if first&0xff != uint64(zone) || first>>8 == 0 || first>>8 > z.number.Load() {
		return 0, fmt.Errorf("the block at %d holds %#x, which was never written there", part.off, first)
	}
	return first >> 8, nil
}

// content describes a torn block: how much of which write, in order.
func content(p []byte) string {
	var runs []string
	for from := 0; from < len(p); {
		word, to := binary.LittleEndian.Uint64(p[from:]), from
		for to < len(p) && binary.LittleEndian.Uint64(p[to:]) == word {
			to += 8
		}
		if len(runs) == 8 {
			runs = append(runs, "…")
			break
		}
		runs = append(runs, fmt.Sprintf("%d bytes of write %d", to-from, word>>8))
		from = to
	}
	return strings.Join(runs, ", ")
}

// Check returns an error if the requests of a block cannot have come one after
// another. It is called when all have ended.
func (z *Zones) Check() error {
	z.mu.Lock()
	defer z.mu.Unlock()
	for at, events := range z.history {
		if err := ordered(events); err != nil {
			return fmt.Errorf("the block at %d: %w", at, err)
		}
	}
	return nil
}

// life is how long a number was in a block, as far as is known: from is the
// first end of a request that wrote or saw it, to the last beginning of one. If
// from is before to, the number was there in between, and no other. If not, one
// moment between to and from is enough.
type life struct {
	number   uint64
	from, to int64
}

// ordered finds out whether a history is one of a register: Gibbons and Korach,
// "Testing Shared Memories", for writes that all differ.
func ordered(events []event) error {
	lives := make(map[uint64]*life)
	writes := make(map[uint64]event)
	for _, e := range events {
		if e.write {
			writes[e.number] = e
		}
		l := lives[e.number]
		if l == nil {
			l = &life{e.number, e.end, e.began}
			lives[e.number] = l
		}
		l.from, l.to = min(l.from, e.end), max(l.to, e.began)
	}
	var known, moments []*life
	for number, l := range lives {
		switch w, ok := writes[number]; {
		case !ok || l.from < w.began:
			return fmt.Errorf("write %d was read before it was written", number)
		case l.from < l.to:
			known = append(known, l)
		default:
			moments = append(moments, l)
		}
	}
	slices.SortFunc(known, func(a, b *life) int { return cmp.Compare(a.from, b.from) })
	for i := 1; i < len(known); i++ {
		if a, b := known[i-1], known[i]; b.from < a.to {
			return fmt.Errorf("write %d was read after write %d had taken its place, and the other way round", a.number, b.number)
		}
	}
	for _, m := range moments {
		i, _ := slices.BinarySearchFunc(known, m.to, func(l *life, at int64) int { return cmp.Compare(l.from, at) })
		if i > 0 && known[i-1].from < m.to && m.from < known[i-1].to {
			return fmt.Errorf("write %d came and went while write %d was there", m.number, known[i-1].number)
		}
	}
	return nil
}

// atomic has queues write and read the same zones.
func (k *kit) atomic() {
	if k.options.Forgets {
		k.Skip("the disk forgets what is written")
	}
	d := k.device()
	z := NewZones(d.Info())
	const queues, depth, rounds = 4, 4, 60
	setup := k.owner(d, 1)
	for _, a := range z.First() {
		r := a.request()
		r.Data = make([]byte, a.Length)
		z.Begin(&a, r.Data)
		k.must(setup, r)
		if err := z.End(&a, r.Data); err != nil {
			k.Fatal(err)
		}
	}
	k.parallel(queues, func(i int, o *owner) error {
		random := rand.New(rand.NewPCG(uint64(i), 11))
		var accesses [depth]Access
		done := func(r *block.Request) error {
			defer o.queue.Release(r)
			if r.Err != nil {
				return fmt.Errorf("%v of %d bytes at %d: %w", r.Op, r.Length, r.Offset, r.Err)
			}
			return z.End(&accesses[r.User], r.Data)
		}
		for range rounds {
			for s := range accesses {
				a := z.Next(random, true)
				r := a.request()
				r.User = uint64(s)
				if err := o.reserve(r, done); err != nil {
					return err
				}
				accesses[s] = a
				z.Begin(&accesses[s], r.Data)
				if err := o.submit(r); err != nil {
					return err
				}
			}
			if err := o.drain(done); err != nil {
				return err
			}
		}
		return nil
	}, d, depth)
	if err := z.Check(); err != nil {
		k.Error(err)
	}
}

// request returns the request of an access.
func (a *Access) request() *block.Request {
	r := &block.Request{Op: block.Read, Offset: a.Offset, Length: a.Length}
	if a.Write {
		r.Op = block.Write
	}
	return r
}
