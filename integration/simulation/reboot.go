package simulation

import (
	"fmt"
	"slices"
)

// rebooted checks what a reboot has left of the disk against what was promised,
// and begins a new record: what was there before is the initial content.
func (r *Referee) rebooted(m *medium) {
	now := r.scheduler.now
	missing := make(map[*deviceRecord]bool)
	for i := range r.blocks {
		b := &r.blocks[i]
		v := m.present[i]
		for _, w := range b.accesses {
			if !w.write || w.lost || w.trim || w.ended == never || !b.lost(v, w) {
				continue
			}
			if w.promised {
				r.scheduler.fail("block %d holds %v after a reboot, and %v from %v to %v was durable", i, v, w.tag, w.began, w.ended)
				return
			}
			if missing[w.device] = true; r.note != nil {
				r.note("write lost", "block", i, "holds", v, "write", w.tag, "from", w.began, "to", w.ended)
			}
		}
	}
	for _, d := range r.devices {
		switch {
		case d.closed:
		case missing[d]:
			d.lose(now, "a reboot lost answered writes")
		case d.dirty+d.pending > 0:
			d.excuse = "a reboot may have lost answered writes"
		}
	}
	r.restart(m)
}

// lost reports whether a write is missing from a block that holds v.
func (b *blockRecord) lost(v Tag, w *access) bool {
	if v == w.tag {
		return false
	}
	return !slices.ContainsFunc(b.accesses, func(a *access) bool { return a.write && a.tag == v && !a.before(w) })
}

// restart checks the record, and begins a new one with what a disk holds.
// Writes without an answer may still take effect.
func (r *Referee) restart(m *medium) {
	r.check()
	r.since = r.scheduler.now
	for i := range r.blocks {
		b := &r.blocks[i]
		kept := b.accesses[:0]
		for _, a := range b.accesses {
			if a.write && a.ended == never {
				kept = append(kept, a)
			}
		}
		clear(b.accesses[len(kept):])
		b.initial, b.accesses = m.present[i], kept
	}
	for _, a := range r.answered {
		a.device.dirty--
	}
	r.answered = nil
}

// replaced records that another disk takes the place of the present one.
func (r *Referee) replaced(m *medium) {
	for _, d := range r.devices {
		if !d.closed {
			d.lose(r.scheduler.now, "another disk has its name")
		}
	}
	r.restart(m)
}

// check fails the run unless the record is that of a disk.
func (r *Referee) check() {
	for i := range r.blocks {
		if err := r.blocks[i].check(int64(i)); err != nil {
			r.scheduler.fail("%w", err)
			return
		}
		if !r.samples {
			continue
		}
		if err := r.blocks[i].sample(int64(i)); err != nil {
			r.scheduler.fail("%w", err)
			return
		}
	}
}

// finish checks the last record together with what the disk holds.
func (r *Referee) finish(m *medium) {
	now := r.scheduler.now
	for i := range r.blocks {
		t := m.present[i]
		if t != zero && t.block() != int64(i) {
			r.scheduler.fail("%w", fmt.Errorf("block %d holds %v", i, t))
			return
		}
		r.blocks[i].accesses = append(r.blocks[i].accesses, &access{tag: t, began: now, ended: now})
	}
	r.check()
}
