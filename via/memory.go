package via

import (
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
)

// Memory is a registered region (a VIP_MEM_HANDLE with what it stands for). A
// region is named at a peer by its address and handle. Its methods are safe for
// concurrent use.
type Memory struct {
	nic    *NIC
	arena  *Arena // nil for memory that is no arena's
	handle atomic.Uint32
	next   atomic.Pointer[Memory] // with the same place in the table
	addr   uint64
	bytes  []byte
	attrs  atomic.Uint64 // tag | write<<32 | read<<33, read by the data path
	live   atomic.Bool

	// Provider is the provider's to use between Register and Deregister.
	Provider any
}

const (
	attrWrite = 1 << 32
	attrRead  = 1 << 33
)

// RegisterMem registers memory (VipRegisterMem). buf must keep its address: it
// is mapped memory, not Go heap. Remote access needs memory of an arena. The
// same memory may be registered several times. Any alignment and length will
// do. It returns ErrInvalidPtag, or ErrInvalidRdmaRead where the NIC has none.
func (n *NIC) RegisterMem(buf []byte, attrs MemAttributes) (*Memory, error) {
	if !n.made() {
		return nil, noObject("register memory")
	}
	if len(buf) == 0 || uint64(len(buf)) > n.limits.MaxRegisterBlockBytes {
		return nil, fmt.Errorf("register %d bytes: %w", len(buf), ErrInvalidParameter)
	}
	m := &Memory{nic: n, addr: addressOf(buf), bytes: buf}
	if err := n.agent.admit(m, attrs); err != nil {
		return nil, err
	}
	m.attrs.Store(packAttributes(attrs))
	m.live.Store(true)
	n.agent.stats.Registrations.Add(1)
	if err := n.agent.adapter.Register(m); err != nil {
		m.live.Store(false)
		n.agent.forget(m)
		n.agent.noteFailure(err)
		return nil, fmt.Errorf("register %d bytes: %w", len(buf), withCode(err, ErrResource))
	}
	return m, nil
}

// Name gives the region the handle by which the device knows it, which is
// neither 0 nor that of another region. It is for adapters whose Limits say
// NamesRegions, in Register and Update; without that it does nothing.
func (m *Memory) Name(handle uint32) {
	if m.Live() && m.nic.limits.NamesRegions {
		m.nic.regions.rename(m, handle)
	}
}

// admit checks a registration and counts it at its tag and arena; it assigns
// the handle.
func (g *agent) admit(m *Memory, attrs MemAttributes) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	if err := g.usableLocked(); err != nil {
		return fmt.Errorf("register memory: %w", err)
	}
	use := g.ptagUseLocked(attrs.Ptag)
	if use == nil {
		return fmt.Errorf("register memory: %w", ErrInvalidPtag)
	}
	if attrs.EnableRdmaRead && g.limits.RdmaReadLevels == 0 {
		return fmt.Errorf("register memory: %w", ErrInvalidRdmaRead)
	}
	m.arena = g.arenaOfLocked(m.addr, uint64(len(m.bytes)))
	if m.arena == nil && (attrs.EnableRdmaRead || attrs.EnableRdmaWrite) {
		return fmt.Errorf("register memory for remote access: not in an arena of this nic: %w", ErrInvalidParameter)
	}
	if size := uint64(len(m.bytes)); size > g.limits.MaxRegisterBytes-g.registered {
		return fmt.Errorf("register %d bytes: %d are registered: %w", size, g.registered, ErrResource)
	}
	if !g.regions.insert(m) {
		return fmt.Errorf("register memory: %d regions are registered: %w", g.regions.live(), ErrResource)
	}
	use.count++
	g.registered += uint64(len(m.bytes))
	if m.arena != nil {
		m.arena.regions.Add(1)
	}
	return nil
}

// forget undoes admit.
func (g *agent) forget(list ...*Memory) {
	g.mu.Lock()
	defer g.mu.Unlock()
	for _, m := range list {
		g.regions.remove(m)
		g.registered -= uint64(len(m.bytes))
		if use := g.ptags[uint32(m.attrs.Load())]; use != nil {
			use.count--
		}
		if m.arena != nil {
			m.arena.regions.Add(-1)
		}
	}
}

// Deregister withdraws the region (VipDeregisterMem). When it returns, no peer
// accesses the memory by this registration; otherwise the error wraps
// ErrStillAccessed. Descriptors still posted that name it complete with a
// protection error.
func (m *Memory) Deregister() error {
	if m == nil || !m.live.CompareAndSwap(true, false) {
		return fmt.Errorf("deregister memory: not registered: %w", ErrInvalidParameter)
	}
	g := m.nic.agent
	g.stats.Deregistrations.Add(1)
	err := g.adapter.Deregister(m)
	g.forget(m)
	if err != nil {
		return fmt.Errorf("deregister memory: %w", withCode(err, ErrResource))
	}
	return nil
}

// DeregisterAll withdraws regions as Deregister does each of them, in one call
// of the device where that can. The error joins theirs; whatever it is, none of
// them stays registered.
func (n *NIC) DeregisterAll(list []*Memory) error {
	if n == nil || n.agent == nil {
		return fmt.Errorf("deregister %d regions: no nic: %w", len(list), ErrInvalidParameter)
	}
	g := n.agent
	var err error
	live := make([]*Memory, 0, len(list))
	for _, m := range list {
		if m == nil || m.nic != n || !m.live.CompareAndSwap(true, false) {
			err = errors.Join(err, ErrInvalidParameter)
			continue
		}
		live = append(live, m)
	}
	g.stats.Deregistrations.Add(uint64(len(live)))
	if b, ok := g.adapter.(BatchDeregisterer); ok && len(live) != 0 {
		err = errors.Join(err, withCode(b.DeregisterAll(live), ErrResource))
	} else {
		for _, m := range live {
			err = errors.Join(err, withCode(g.adapter.Deregister(m), ErrResource))
		}
	}
	g.forget(live...)
	if err != nil {
		return fmt.Errorf("deregister %d regions: %w", len(list), err)
	}
	return nil
}

// Handle returns the region's handle. Handles carry a generation: a handle is
// not reused soon after Deregister.
func (m *Memory) Handle() uint32 {
	if m == nil {
		return 0
	}
	return m.handle.Load()
}

// Addr returns the address of the region's first byte.
func (m *Memory) Addr() uint64 {
	if m == nil {
		return 0
	}
	return m.addr
}

// Bytes returns the region's memory. It must not be used once that is unmapped.
func (m *Memory) Bytes() []byte {
	if m == nil {
		return nil
	}
	return m.bytes
}

// Live reports whether the region is registered.
func (m *Memory) Live() bool { return m != nil && m.live.Load() }

// Accessed reports whether a peer may still be inside an access to the region
// after a Disconnect or Deregister that returned ErrStillAccessed. The region
// may be deregistered. It is false once the peer has come out or has died: then
// the memory is the consumer's alone.
func (m *Memory) Accessed() bool {
	return m != nil && m.nic != nil && m.nic.agent.adapter.Accessed(m)
}

// Arena returns the arena that the region lies in, or nil.
func (m *Memory) Arena() *Arena {
	if m == nil {
		return nil
	}
	return m.arena
}

// Tag returns the ID of the region's protection tag.
func (m *Memory) Tag() uint32 {
	if m == nil {
		return 0
	}
	return uint32(m.attrs.Load())
}

// RemoteWrite and RemoteRead report what peers may do.
func (m *Memory) RemoteWrite() bool { return m != nil && m.attrs.Load()&attrWrite != 0 }

// RemoteRead reports whether peers may read the region.
func (m *Memory) RemoteRead() bool { return m != nil && m.attrs.Load()&attrRead != 0 }

// Attributes returns the region's attributes (VipQueryMem).
func (m *Memory) Attributes() MemAttributes {
	if m == nil {
		return MemAttributes{}
	}
	a := m.attrs.Load()
	return MemAttributes{
		Ptag:            Ptag{nic: m.nic, id: uint32(a)},
		EnableRdmaWrite: a&attrWrite != 0, EnableRdmaRead: a&attrRead != 0,
	}
}

// SetAttributes changes the region's tag and access without registering it
// again (VipSetMemAttributes). When it returns no peer has the former access.
// On a NIC whose Limits say NamesRegions the region has another handle then. It
// returns ErrInvalidPtag or ErrInvalidRdmaRead.
func (m *Memory) SetAttributes(attrs MemAttributes) error {
	if !m.Live() {
		return fmt.Errorf("set memory attributes: not registered: %w", ErrInvalidParameter)
	}
	g := m.nic.agent
	if attrs.EnableRdmaRead && g.limits.RdmaReadLevels == 0 {
		return fmt.Errorf("set memory attributes: %w", ErrInvalidRdmaRead)
	}
	if (attrs.EnableRdmaRead || attrs.EnableRdmaWrite) && m.arena == nil {
		return fmt.Errorf("set memory attributes: remote access outside an arena: %w", ErrInvalidParameter)
	}
	g.mu.Lock()
	use := g.ptagUseLocked(attrs.Ptag)
	if use == nil {
		g.mu.Unlock()
		return fmt.Errorf("set memory attributes: %w", ErrInvalidPtag)
	}
	if !m.live.Load() { // Deregister gives back the tag that the region has then
		g.mu.Unlock()
		return fmt.Errorf("set memory attributes: not registered: %w", ErrInvalidParameter)
	}
	use.count++
	if old := g.ptags[m.Tag()]; old != nil {
		old.count--
	}
	m.attrs.Store(packAttributes(attrs))
	g.mu.Unlock()
	g.stats.AttributeChanges.Add(1)
	if err := g.adapter.Update(m); err != nil {
		return fmt.Errorf("set memory attributes: %w", withCode(err, ErrResource))
	}
	return nil
}

func packAttributes(a MemAttributes) uint64 {
	v := uint64(a.Ptag.id)
	if a.EnableRdmaWrite {
		v |= attrWrite
	}
	if a.EnableRdmaRead {
		v |= attrRead
	}
	return v
}

// regionTable maps handles to regions. Lookups are lock-free and serve the data
// path (MyVIA's user-level translation table); changes are serialised by the
// NIC's lock. A handle is generation (16 bits) and index (16 bits). The
// generation is drawn anew for each registration, never 0 and never the one
// before it: a handle of an earlier registration, or of another process's, is
// refused, and a handle does not reveal the next one.
//
// Where the device names the regions, its handle is used, and the upper bits
// are the position in the table: InfiniBand's keys have an index above a key of
// 8 bits. Regions at the same position form a list.
type regionTable struct {
	pages [256]atomic.Pointer[[256]atomic.Pointer[Memory]]
	limit int
	named bool // by the device
	shift int  // of a handle, before its place is looked up

	mu sync.Mutex
	// +checklocks:mu
	gens map[uint32]uint16 // by index, of the last registration
	// +checklocks:mu
	free []uint32
	// +checklocks:mu
	next uint32
	// +checklocks:mu
	used int
}

// No other goroutine has t yet.
// +checklocksignore
func (t *regionTable) init(limit int, named bool) {
	t.limit, t.named = min(limit, 1<<16), named
	if named {
		t.limit, t.shift = limit, 8
	}
	t.gens = make(map[uint32]uint16)
}

// lookup returns the live region of a handle, or nil.
func (t *regionTable) lookup(handle uint32) *Memory {
	m := t.find(handle)
	if m == nil && t.named {
		t.mu.Lock() // the search may have met a region that was renamed
		defer t.mu.Unlock()
		return t.find(handle)
	}
	return m
}

func (t *regionTable) find(handle uint32) *Memory {
	at := handle >> t.shift
	page := t.pages[at>>8&0xff].Load()
	if page == nil {
		return nil
	}
	m := page[at&0xff].Load()
	for m != nil && m.handle.Load() != handle {
		m = m.next.Load()
	}
	return m
}

// insert adds a region, and assigns its handle unless the device does.
func (t *regionTable) insert(m *Memory) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.used >= t.limit {
		return false
	}
	if t.named {
		t.used++
		return true
	}
	var index uint32
	if k := len(t.free); k > 0 && int(t.next) >= t.limit {
		index, t.free = t.free[0], t.free[1:]
	} else if int(t.next) < t.limit {
		index = t.next
		t.next++
	} else {
		return false
	}
	gen := newGeneration(t.gens[index])
	t.gens[index] = gen
	m.handle.Store(uint32(gen)<<16 | index)
	t.placeLocked(m).Store(m)
	t.used++
	return true
}

// placeLocked returns the place of a region that has a handle.
//
// +checklocks:t.mu
func (t *regionTable) placeLocked(m *Memory) *atomic.Pointer[Memory] {
	at := m.handle.Load() >> t.shift
	page := t.pages[at>>8&0xff].Load()
	if page == nil {
		page = new([256]atomic.Pointer[Memory])
		t.pages[at>>8&0xff].Store(page)
	}
	return &page[at&0xff]
}

// rename gives a region that is counted its handle, or another one.
func (t *regionTable) rename(m *Memory, handle uint32) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.unlinkLocked(m)
	m.handle.Store(handle)
	place := t.placeLocked(m)
	m.next.Store(place.Load())
	place.Store(m)
}

// unlinkLocked takes a region out of the list at its place, if it is there.
//
// +checklocks:t.mu
func (t *regionTable) unlinkLocked(m *Memory) bool {
	for at := t.placeLocked(m); ; {
		switch x := at.Load(); x {
		case nil:
			return false
		case m:
			at.Store(m.next.Load())
			return true
		default:
			at = &x.next
		}
	}
}

// newGeneration returns an unpredictable generation, which is neither 0,
// so that handle 0 stays invalid, nor the last one of its index.
func newGeneration(last uint16) uint16 {
	for {
		var b [2]byte
		_, _ = rand.Read(b[:]) // never fails
		if gen := binary.NativeEndian.Uint16(b[:]); gen != 0 && gen != last {
			return gen
		}
	}
}

func (t *regionTable) remove(m *Memory) {
	t.mu.Lock()
	defer t.mu.Unlock()
	switch there := t.unlinkLocked(m); {
	case t.named:
		t.used--
	case there:
		t.free = append(t.free, m.handle.Load()&0xffff)
		t.used--
	}
}

func (t *regionTable) live() int {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.used
}

// LookupMemory returns the live region of a handle, or nil. It takes no lock.
func (n *NIC) LookupMemory(handle uint32) *Memory {
	if n == nil {
		return nil
	}
	return n.regions.lookup(handle)
}
