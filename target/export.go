package target

import (
	"errors"
	"fmt"
	"sync"
	"sync/atomic"

	"github.com/viablk/viablk/internal/block"
	"github.com/viablk/viablk/internal/wire"
)

// Export is a disk under a name.
type Export struct {
	Name        string
	Description string
	Device      block.Device
	Default     bool // what the empty name means; a single export is
	ReadOnly    bool
}

// exported is an export with what its opens need to know.
type exported struct {
	Export
	readOnly bool // it or its disk
	uuid     [16]byte
	verifier uint64

	writer    *session // guarded by exportTable.mu
	writes    int      // opens of writer that may write; guarded by exportTable.mu
	exclusive bool     // writer has it alone; guarded by exportTable.mu
	opens     int      // guarded by exportTable.mu

	copied  atomic.Bool // it is memory that a NIC did not register; that was said
	windows WindowStats // of queues that are closed; guarded by exportTable.mu
}

// exportTable finds exports by name. The list is immutable.
type exportTable struct {
	list   []*exported
	byName map[string]*exported

	mu sync.Mutex // who has what open
}

func newExportTable(list []Export) (*exportTable, error) {
	t := &exportTable{byName: make(map[string]*exported)}
	for _, e := range list {
		switch {
		case e.Device == nil:
			return nil, fmt.Errorf("export %q has no device", e.Name)
		case len(e.Name) > wire.MaxName:
			return nil, fmt.Errorf("export name of %d bytes (limit %d)", len(e.Name), wire.MaxName)
		case t.byName[e.Name] != nil:
			return nil, fmt.Errorf("two exports are named %q", e.Name)
		}
		x := &exported{Export: e, uuid: diskUUID(&e), verifier: verifierOf(e.Device)}
		x.readOnly = e.ReadOnly || e.Device.Info().Features&block.ReadOnly != 0
		t.list = append(t.list, x)
		t.byName[e.Name] = x
	}
	return t, t.chooseDefault()
}

// chooseDefault makes the empty name mean the marked export, or the only one.
func (t *exportTable) chooseDefault() error {
	if t.byName[""] != nil {
		return nil
	}
	for _, x := range t.list {
		if !x.Default && len(t.list) > 1 {
			continue
		}
		if t.byName[""] != nil {
			return errors.New("two exports are marked default")
		}
		x.Default = true
		t.byName[""] = x
	}
	return nil
}

// info describes the disk as it is now, as sessions that open it are told.
func (x *exported) info() block.Info {
	i := x.Device.Info()
	if x.readOnly {
		i.Features |= block.ReadOnly
	}
	return i
}

// open books an export for a session, or says why not.
func (t *exportTable) open(s *session, q *wire.OpenRequest) (*exported, wire.Status, string) {
	x := t.byName[q.Name]
	if x == nil {
		return nil, wire.StatusNotFound, fmt.Sprintf("no export is named %q", clip(q.Name))
	}
	if q.WantUUID != [16]byte{} && q.WantUUID != x.uuid {
		return nil, wire.StatusNotFound, fmt.Sprintf("export %q is another disk than before", clip(q.Name))
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	switch {
	case q.Mode == wire.OpenMigrate:
		return nil, wire.StatusNotSupported, "exports are not handed over between writers"
	case x.exclusive && x.writer != s:
		return nil, wire.StatusBusy, "another session has the export open exclusively"
	case q.Mode == wire.OpenExclusive && x.opens > 0:
		return nil, wire.StatusBusy, "the export is open already"
	case q.Mode != wire.OpenReadOnly && x.readOnly:
		return nil, wire.StatusPermission, "the export is read-only; attach it read-only"
	case q.Mode == wire.OpenReadWrite && x.writer != nil && x.writer != s:
		return nil, wire.StatusBusy, "another session has the export open for writing; attach it read-only"
	}
	x.opens++
	if q.Mode != wire.OpenReadOnly {
		x.writer, x.exclusive = s, x.exclusive || q.Mode == wire.OpenExclusive
		x.writes++
	}
	return x, wire.StatusOK, ""
}

// close gives back what open booked.
func (t *exportTable) close(x *exported, mode wire.OpenMode) {
	t.mu.Lock()
	defer t.mu.Unlock()
	x.opens--
	if mode == wire.OpenReadOnly {
		return
	}
	if x.writes--; x.writes == 0 {
		x.writer, x.exclusive = nil, false
	}
}

// clip shortens a name for a reason that people read.
func clip(name string) string {
	const most = 64
	if len(name) <= most {
		return name
	}
	return name[:most] + "…"
}
