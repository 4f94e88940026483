package via

import "fmt"

// Ptag is a protection tag of a NIC. A VI reaches only memory of its own tag.
// The zero Ptag is invalid. Ptags are comparable.
type Ptag struct {
	nic *NIC
	id  uint32
}

// ID returns a number that is unique among the NIC's live tags.
func (p Ptag) ID() uint32 { return p.id }

// CreatePtag creates a protection tag (VipCreatePtag).
func (n *NIC) CreatePtag() (Ptag, error) {
	if !n.made() {
		return Ptag{}, noObject("create protection tag")
	}
	g := n.agent
	g.mu.Lock()
	defer g.mu.Unlock()
	if err := g.usableLocked(); err != nil {
		return Ptag{}, fmt.Errorf("create protection tag: %w", err)
	}
	if len(g.ptags) >= g.limits.MaxPtags {
		return Ptag{}, fmt.Errorf("create protection tag: %d in use: %w", len(g.ptags), ErrResource)
	}
	g.lastPtag++
	for g.lastPtag == 0 || g.ptags[g.lastPtag] != nil {
		g.lastPtag++
	}
	g.ptags[g.lastPtag] = &ptagUse{}
	g.stats.Objects.Add(1)
	return Ptag{nic: n, id: g.lastPtag}, nil
}

// DestroyPtag destroys a tag that no VI and no memory carries (VipDestroyPtag).
// It returns ErrResource while something carries it, and ErrInvalidPtag for
// another tag.
func (n *NIC) DestroyPtag(p Ptag) error {
	if !n.made() {
		return noObject("destroy protection tag")
	}
	g := n.agent
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.closed { // a failed one is torn down
		return fmt.Errorf("destroy protection tag: nic is closed: %w", ErrInvalidParameter)
	}
	use := g.ptagUseLocked(p)
	if use == nil {
		return fmt.Errorf("destroy protection tag: %w", ErrInvalidPtag)
	}
	if use.count != 0 {
		return fmt.Errorf("destroy protection tag: %d objects carry it: %w", use.count, ErrResource)
	}
	delete(g.ptags, p.id)
	g.stats.Objects.Add(1)
	return nil
}

// ptagUse counts the VIs and regions that carry a tag.
type ptagUse struct{ count int }

// ptagUseLocked returns the use count of a live tag of this NIC, or nil.
//
// +checklocks:g.mu
func (g *agent) ptagUseLocked(p Ptag) *ptagUse {
	if p.nic == nil || p.nic.agent != g {
		return nil
	}
	return g.ptags[p.id]
}
