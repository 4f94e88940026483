package simulation

// drained knows which target executed which write, in a run whose only faults
// are drains and takeovers. A target that ends in order answers what it has
// executed: no later one executes that again.
type drained struct {
	writes  map[Tag]*drainedWrite
	life    int          // of the target that has the disk
	inOrder map[int]bool // the lives that ended in order, in time
}

// drainedWrite is a write, of which a target executes some blocks.
type drainedWrite struct {
	blocks int
	life   int // of the last target that executed some
	count  int // of those
}

// onlyDrains returns the record of a run, or nil if its faults are others too,
// such as flipped bits, which end connections.
func onlyDrains(p *Plan) *drained {
	if p.Fabric.Flips > 0 {
		return nil
	}
	for _, f := range p.Faults {
		if f.Kind != Drain && !(f.Kind == Takeover && f.misfortune() == noMisfortune) {
			return nil
		}
	}
	return &drained{writes: make(map[Tag]*drainedWrite), inOrder: make(map[int]bool)}
}

// begin records a write that is being submitted.
func (d *drained) begin(accesses []*access) {
	if d == nil {
		return
	}
	w := &drainedWrite{blocks: len(accesses)}
	for _, a := range accesses {
		if a.tag != zero {
			d.writes[a.tag] = w
		}
	}
}

// applied records that a block of a write took effect. It returns false if an
// earlier target had executed all of the write, and ended in order.
func (d *drained) applied(t Tag) bool {
	if d == nil {
		return true
	}
	w := d.writes[t]
	if w == nil {
		return true
	}
	if w.life != d.life {
		if w.count == w.blocks && d.inOrder[w.life] {
			return false
		}
		w.life, w.count = d.life, 0
	}
	w.count++
	return true
}

// serves records that another process serves the disk.
func (d *drained) serves(life int) {
	if d != nil {
		d.life = life
	}
}

// endsInOrder records that a target has drained in time.
func (d *drained) endsInOrder(life int) {
	if d != nil {
		d.inOrder[life] = true
	}
}
