package roce

import (
	"fmt"
	"sync/atomic"

	"github.com/viablk/viablk/via"
	"github.com/viablk/viablk/via/roce/rc"
)

// regions maps handles, which are the R_Keys of packets, to the regions of a
// device, for lookup without a lock. A handle is 32 random bits, of which the
// low ones are the place of its region: put draws until it finds a free place,
// twice at most on average, because the table has more than twice as many
// places as a device has regions. find compares all bits.
type regions struct {
	pages [regionPlaces >> 8]atomic.Pointer[regionPage]

	// withdrawals counts the changes that may have revoked access.
	withdrawals atomic.Uint64
}

// regionPage holds the regions whose indexes differ only in the low 8 bits.
type regionPage [1 << 8]atomic.Pointer[via.Memory]

// regionPlaces is the number of places in the table, a power of two.
const regionPlaces = 2 * maxRegions

// put inserts a region, and gives it its handle. A region of a NIC of several
// adapters has one by then, see [via.Joinable], and its place is free.
func (r *regions) put(m *via.Memory) error {
	if h := m.Handle(); h != 0 {
		if !r.place(h, m) {
			return fmt.Errorf("another region has the place of handle %#x: %w", h, via.ErrResource)
		}
		return nil
	}
	for {
		if h := uint32(random()); h != 0 && r.place(h, m) {
			m.Name(h)
			return nil
		}
	}
}

// place inserts a region at the place of a handle, if that is free.
func (r *regions) place(h uint32, m *via.Memory) bool {
	page := r.page(h)
	for page.Load() == nil {
		page.CompareAndSwap(nil, new(regionPage))
	}
	return page.Load()[h&0xff].CompareAndSwap(nil, m)
}

// page returns the page of a handle.
func (r *regions) page(h uint32) *atomic.Pointer[regionPage] {
	return &r.pages[h>>8&(regionPlaces>>8-1)]
}

// remove removes a region.
func (r *regions) remove(m *via.Memory) {
	h := m.Handle()
	if page := r.page(h).Load(); page != nil {
		page[h&0xff].CompareAndSwap(m, nil)
	}
	r.withdrawals.Add(1)
}

// find returns the region with a handle, or nil.
func (r *regions) find(handle uint32) *via.Memory {
	page := r.page(handle).Load()
	if page == nil {
		return nil
	}
	m := page[handle&0xff].Load()
	if m == nil || m.Handle() != handle {
		return nil
	}
	return m
}

// Register inserts a region and so enables its remote access.
func (a *adapter) Register(m *via.Memory) error { return a.regions.put(m) }

// PrivateArenas implements [via.Joinable]: packets reach any memory.
func (*adapter) PrivateArenas() bool { return false }

// Update applies changed attributes: when it returns, access that only the
// former ones allowed has ended.
func (a *adapter) Update(*via.Memory) error {
	a.regions.withdrawals.Add(1)
	a.provider.quiesce()
	return nil
}

// Accessed returns false: this process places what peers send.
func (*adapter) Accessed(*via.Memory) bool { return false }

// Deregister withdraws a region.
func (a *adapter) Deregister(m *via.Memory) error {
	a.regions.remove(m)
	a.provider.quiesce()
	return nil
}

// DeregisterAll withdraws regions and waits once.
func (a *adapter) DeregisterAll(list []*via.Memory) error {
	for _, m := range list {
		a.regions.remove(m)
	}
	a.provider.quiesce()
	return nil
}

// quiesce waits until every pass now in progress has ended. A pass checks
// memory before each access and accesses none after it ends, so no pass
// accesses a region that was withdrawn before quiesce.
func (p *Provider) quiesce() {
	for _, e := range *p.all.Load() {
		for _, s := range *e.shards.Load() {
			s.quiesce()
		}
	}
}

// Remote implements [rc.Memory]: it returns the memory of an R_Key and address,
// if the region has the link's tag and its attributes allow the access.
func (t *transport) Remote(key uint32, addr uint64, length int, access rc.Access) []byte {
	m := t.link.adapter.regions.find(key)
	if m == nil || !m.Live() || m.Tag() != t.link.cfg.Tag {
		return nil
	}
	if access == rc.RemoteWrite && !m.RemoteWrite() || access == rc.RemoteRead && !m.RemoteRead() {
		return nil
	}
	b := m.Bytes()
	at, size := addr-m.Addr(), uint64(len(b))
	if addr < m.Addr() || at > size || uint64(length) > size-at {
		return nil
	}
	return b[at : at+uint64(length)]
}

// Local implements [rc.Memory]: it reports whether the regions of a work's
// segments are still registered with the link's tag. The result is cached until
// the next withdrawal.
func (t *transport) Local(id uint64) bool {
	w, checked := t.entry(id)
	version := t.link.adapter.regions.withdrawals.Load() + 1
	if *checked == version {
		return true
	}
	for i := range w.Segments {
		if m := w.Segments[i].Memory; !m.Live() || m.Tag() != t.link.cfg.Tag {
			return false
		}
	}
	*checked = version
	return true
}
