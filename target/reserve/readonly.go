package reserve

import (
	"fmt"
	"strings"
)

// RefuseWriters refuses later reservations for writing with [ErrReadOnly],
// until AdmitWriters. If a client has the disk for writing it does nothing, and
// returns an error that names them, 8 at most, and wraps [ErrBusy].
func (d *Disk) RefuseWriters() error {
	const most = 8
	d.mu.Lock()
	defer d.mu.Unlock()
	writers := 0
	var names []string
	for _, r := range d.held {
		if r.request.Mode == ReadOnly {
			continue
		}
		if writers++; writers <= most {
			names = append(names, fmt.Sprintf("%s has it open %v", r.request.Name, r.request.Mode))
		}
	}
	if writers > most {
		names = append(names, fmt.Sprintf("and %d more", writers-most))
	}
	if writers > 0 {
		return fmt.Errorf("%w: %s", ErrBusy, strings.Join(names, ", "))
	}
	d.readOnly = true
	return nil
}

// AdmitWriters ends RefuseWriters.
func (d *Disk) AdmitWriters() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.readOnly = false
}
