package block

import "syscall"

// extentsOfCall is how many extents one request of Extents can bring.
const extentsOfCall = 1024

// statusLength is the length of the range, in bytes, that one request of
// Extents asks for.
const statusLength = 1 << 30

// Extents returns what a range of the disk consists of, in order and without a
// gap; neighbours differ. It calls visit with each extent until that returns an
// error, which it returns.
func (d *Disk) Extents(off, length int64, visit func(off int64, e Extent) error) error {
	if length == 0 {
		return nil
	}
	info := d.present()
	if e := info.Check(Status, 0, uint64(off), uint64(length)); e != 0 {
		return describe(Status, off, e)
	}
	q, err := d.acquire()
	if err != nil {
		return err
	}
	defer d.release(q)
	var last Extent // ends at off
	memory := make([]Extent, 0, extentsOfCall)
	for end := off + length; off < end; {
		extents, err := q.status(off, min(end-off, statusLength), memory)
		if err != nil {
			return err
		}
		for _, e := range extents {
			off += e.Length
			if last.Length > 0 && last.Flags == e.Flags {
				last.Length += e.Length
				continue
			}
			if last.Length > 0 {
				if err := visit(off-e.Length-last.Length, last); err != nil {
					return err
				}
			}
			last = e
		}
	}
	return visit(off-last.Length, last)
}

// status asks what the beginning of a range consists of, at least one byte.
func (q *syncQueue) status(off, length int64, memory []Extent) ([]Extent, error) {
	q.request.Extents = memory[:0]
	err := q.run(Status, 0, nil, off, length)
	extents := q.request.Extents
	q.request.Extents = nil
	if err == nil && len(extents) == 0 {
		err = describe(Status, off, syscall.EIO)
	}
	return extents, err
}
