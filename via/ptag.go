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

// CreatePtag creates a protection tag.
func (n *NIC) CreatePtag() (Ptag, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.closed {
		return Ptag{}, fmt.Errorf("create protection tag: nic is closed: %w", ErrInvalidParameter)
	}
	if len(n.ptags) >= n.limits.MaxPtags {
		return Ptag{}, fmt.Errorf("create protection tag: %d in use: %w", len(n.ptags), ErrResource)
	}
	n.lastPtag++
	for n.lastPtag == 0 || n.ptags[n.lastPtag] != nil {
		n.lastPtag++
	}
	n.ptags[n.lastPtag] = &ptagUse{}
	return Ptag{nic: n, id: n.lastPtag}, nil
}

// DestroyPtag destroys a tag that no VI and no memory carries.
func (n *NIC) DestroyPtag(p Ptag) error {
	n.mu.Lock()
	defer n.mu.Unlock()
	use := n.ptagUseLocked(p)
	if use == nil {
		return fmt.Errorf("destroy protection tag: %w", ErrInvalidPtag)
	}
	if use.count != 0 {
		return fmt.Errorf("destroy protection tag: %d objects carry it: %w", use.count, ErrResource)
	}
	delete(n.ptags, p.id)
	return nil
}

// ptagUse counts the VIs and regions that carry a tag.
type ptagUse struct{ count int }

// ptagUseLocked returns the use count of a live tag of this NIC, or nil.
//
// +checklocks:n.mu
func (n *NIC) ptagUseLocked(p Ptag) *ptagUse {
	if p.nic != n {
		return nil
	}
	return n.ptags[p.id]
}
