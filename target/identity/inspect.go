package identity

import (
	"errors"
	"fmt"

	"github.com/viablk/viablk/internal/block"
)

// Inspection is the identity of a disk that is not served.
type Inspection struct {
	Record

	// Place is where the record is kept.
	Place string

	// Copied means that the record belongs to another file, of which this one
	// is a copy.
	Copied bool

	// Changed means that another program changed the disk since it was closed.
	Changed bool
}

// Inspect returns the record of a disk without changing anything. The error
// wraps [ErrNoRecord] if the disk has none.
func Inspect(o Options) (*Inspection, error) {
	o.ReadOnly = false // a place that may not be read is an error
	d := newDisk(o)
	was, found, err := d.load()
	if err != nil {
		return nil, fmt.Errorf("identity of %q: %w", o.Path, o.explain(err))
	}
	if !found {
		return nil, fmt.Errorf("identity of %q: %w: it gets one when it is served for writing", o.Path, ErrNoRecord)
	}
	now, err := d.examine()
	if err != nil {
		return nil, fmt.Errorf("identity of %q: %w", o.Path, err)
	}
	i := &Inspection{Record: was, Copied: was.Binding != now.binding, Place: d.place().String()}
	i.Changed = !i.Copied && !was.Unclean && was.Modified != now.modified
	return i, nil
}

// place returns where the record is, or would be.
func (d *Disk) place() Place {
	for _, p := range d.places {
		if _, err := p.Load(); err == nil {
			return p
		}
	}
	return d.places[0]
}

// ErrNotFailed means that no flush of a disk has failed.
var ErrNotFailed = errors.New("no flush of the disk has failed")

// Accept lets flushes of a disk succeed that is not served and whose flush has
// failed. The verifier tells clients that return and have lost writes.
func Accept(o Options) (*Inspection, error) {
	i, err := Inspect(o)
	if err != nil {
		return nil, err
	}
	if !i.Failed {
		return nil, fmt.Errorf("identity of %q: %w", o.Path, ErrNotFailed)
	}
	i.Failed = false
	if err := newDisk(o).renew(&i.Record); err != nil {
		return nil, fmt.Errorf("keep the identity of %q: %w", o.Path, err)
	}
	return i, nil
}

// Renew gives a disk that is not served a new record, whatever was there. With
// keep it has the UUID of the present one: a copy, or a restored disk, that is
// to be taken for the original. Clients that return to it are told that another
// writer was there; a record that was not closed counts as a loss, because the
// disk may be without what its target had answered and not written.
func Renew(o Options, keep bool) (*Inspection, error) {
	d := newDisk(o)
	r := Record{UUID: block.NewUUID(), LossBoot: d.options.Boot}
	if keep {
		was, found, err := d.load()
		switch {
		case errors.Is(err, ErrDamaged), errors.Is(err, ErrVersion):
			return nil, fmt.Errorf("identity of %q: %w: it cannot be kept, only replaced", o.Path, err)
		case err != nil:
			return nil, fmt.Errorf("identity of %q: %w", o.Path, err)
		case !found:
			return nil, fmt.Errorf("identity of %q: %w that could be kept", o.Path, ErrNoRecord)
		}
		r = was
		r.Generation, r.Writer = was.Generation+1, outside
		if r.Unclean {
			d.lose(&r, "the disk was not closed when its record was made")
		}
		r.Unclean, r.Failed = false, false
	}
	now, err := d.examine()
	if err != nil {
		return nil, fmt.Errorf("identity of %q: %w", o.Path, err)
	}
	r.Binding, r.Modified, r.Boot = now.binding, now.modified, d.options.Boot
	if err := d.renew(&r); err != nil {
		return nil, fmt.Errorf("keep the identity of %q: %w", o.Path, err)
	}
	return &Inspection{Record: r, Place: d.place().String()}, nil
}

// renew stores a record wherever there is one, so that no old one is left. A
// place that is read and refuses to be written would keep the old one.
func (d *Disk) renew(r *Record) error {
	for _, p := range d.places[1:] {
		if _, err := p.Load(); err == nil {
			if err := p.Store(r.encode()); err != nil {
				return err
			}
		}
	}
	if err := d.keep(r); err != nil {
		return err
	}
	if got, _, err := d.load(); err != nil || got != *r {
		return fmt.Errorf("%v still has the old record", d.place())
	}
	return nil
}

// Succeed gives the file of o the record of the file of from, whose place it
// takes, also if both are one file that viablk itself changed. With changed it
// holds something else: clients that return are told that another writer was
// there. A file without a record of its own has none to give. Nothing serves
// either.
func Succeed(o, from Options, changed bool) error {
	old := newDisk(from)
	r, found, err := old.load()
	if err != nil {
		return fmt.Errorf("identity of %q: %w", from.Path, from.explain(err))
	}
	was, err := old.examine()
	if err != nil {
		return fmt.Errorf("identity of %q: %w", from.Path, err)
	}
	if !found || r.Binding != was.binding {
		return nil
	}
	d := newDisk(o)
	now, err := d.examine()
	if err != nil {
		return fmt.Errorf("identity of %q: %w", o.Path, err)
	}
	if changed {
		r.Generation, r.Writer = r.Generation+1, outside
	}
	r.Binding, r.Modified = now.binding, now.modified
	if err := d.keep(&r); err != nil {
		return fmt.Errorf("keep the identity of %q: %w", o.Path, err)
	}
	return nil
}
