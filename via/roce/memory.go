package roce

import (
	"runtime"
	"sync/atomic"
	"time"

	"github.com/viablk/viablk/via"
	"github.com/viablk/viablk/via/roce/rc"
)

// regions are the regions of a device by handle, for packets that come in: looked
// up without a lock. Handles are the user agent's: an index of 16 bits below a
// generation that starts at random, and all 32 are compared, so that a key of
// another registration names nothing.
type regions struct {
	pages [1 << 8]atomic.Pointer[regionPage]

	// withdrawals counts the changes after which something may be forbidden that
	// was allowed before.
	withdrawals atomic.Uint64
}

// regionPage are the regions whose handles have the same index but for the low
// 8 bits.
type regionPage [1 << 8]atomic.Pointer[via.Memory]

// put makes a region known.
func (r *regions) put(m *via.Memory) {
	h := m.Handle()
	page := &r.pages[h>>8&0xff]
	for page.Load() == nil {
		page.CompareAndSwap(nil, new(regionPage))
	}
	page.Load()[h&0xff].Store(m)
}

// remove forgets a region.
func (r *regions) remove(m *via.Memory) {
	h := m.Handle()
	if page := r.pages[h>>8&0xff].Load(); page != nil {
		page[h&0xff].CompareAndSwap(m, nil)
	}
	r.withdrawals.Add(1)
}

// find returns the region with a handle, or nil.
func (r *regions) find(handle uint32) *via.Memory {
	page := r.pages[handle>>8&0xff].Load()
	if page == nil {
		return nil
	}
	m := page[handle&0xff].Load()
	if m == nil || m.Handle() != handle {
		return nil
	}
	return m
}

// Register makes a region known. Its remote access works from now on.
func (a *adapter) Register(m *via.Memory) error {
	a.regions.put(m)
	return nil
}

// Update applies changed attributes: what the former ones allowed is over.
func (a *adapter) Update(*via.Memory) error {
	a.regions.withdrawals.Add(1)
	a.provider.quiesce()
	return nil
}

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

// quiesce waits until every turn that is under way now has ended. Within a turn
// memory is checked before it is touched, and touched no more when it ends: what
// was withdrawn before is not touched after this.
func (p *Provider) quiesce() {
	for _, e := range *p.all.Load() {
		for _, l := range *e.lanes.Load() {
			l.quiesce()
		}
	}
}

// quiesce waits for the end of the turn under way, if there is one.
func (l *lane) quiesce() {
	if l.state.Load() == turnFree {
		return
	}
	ended := l.ended.Load()
	for i := 0; l.state.Load() != turnFree && l.ended.Load() == ended; i++ {
		rest(i)
	}
}

// rest lets others run, the longer the longer this goes on.
func rest(i int) {
	if i < 100 {
		runtime.Gosched()
		return
	}
	time.Sleep(20 * time.Microsecond)
}

// Remote implements [rc.Memory]: what the peer may access.
func (l *link) Remote(key uint32, addr uint64, length int, access rc.Access) []byte {
	m := l.adapter.regions.find(key)
	if m == nil || !m.Live() || m.Tag() != l.cfg.Tag {
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

// Local implements [rc.Memory]: whether the regions of a work's segments are
// still what they were at the post. The answer holds as long as nothing is
// withdrawn.
func (l *link) Local(id uint64) bool {
	w, checked := l.slot(id)
	version := l.adapter.regions.withdrawals.Load() + 1
	if *checked == version {
		return true
	}
	for i := range w.Segments {
		if m := w.Segments[i].Memory; !m.Live() || m.Tag() != l.cfg.Tag {
			return false
		}
	}
	*checked = version
	return true
}
