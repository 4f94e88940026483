package target

import (
	"errors"
	"fmt"
	"log/slog"
	"reflect"
	"sync"
	"sync/atomic"
	"time"

	"github.com/viablk/viablk/internal/access"
	"github.com/viablk/viablk/internal/block"
	"github.com/viablk/viablk/internal/latency"
	"github.com/viablk/viablk/internal/sched"
	"github.com/viablk/viablk/internal/wire"
	"github.com/viablk/viablk/target/reserve"
)

// Export is a disk under a name.
type Export struct {
	Name        string
	Description string
	Device      block.Device
	Default     bool // the export of the empty name; a single export is
	ReadOnly    bool

	// Rights are the clients of the export; nil admits every peer.
	Rights *access.Rights

	// Reservations are those of the disk, for all servers that export it and
	// for NBD. Nil means that this server alone exports it.
	Reservations *reserve.Disk
}

// exported is an export with the state of its opens.
type exported struct {
	Export
	table    *exportTable
	readOnly bool // it or its disk
	identity block.Identity
	size     int64  // bytes, when the export came
	life     uint64 // of what Flush does not cover; see verifier

	latency latency.Set // of the requests to it

	copied       atomic.Bool  // the warning of a failed registration was logged
	mappingStats MappingStats // of closed queues; guarded by exportTable.mu
	counts       ExportCounts // of closed queues; guarded by exportTable.mu
}

// exportTable finds exports by name. The list is replaced as a whole.
type exportTable struct {
	scheduler sched.Scheduler
	current   atomic.Pointer[exportList]

	epoch     time.Time // of clock
	ioTimeout time.Duration
	log       *slog.Logger
	lifetime  uint64 // of the process

	mu *sync.Mutex // guards what the exports say; see Sessions
}

// exportList is the exports at a time. It is immutable.
type exportList struct {
	generation uint32 // tells lists apart
	list       []*exported
	byName     map[string]*exported // with the default as ""
}

func newExportTable(cfg *Config, shared *Sessions) (*exportTable, error) {
	t := &exportTable{scheduler: cfg.Scheduler, epoch: cfg.Scheduler.Now(), ioTimeout: cfg.IOTimeout, log: cfg.Log, lifetime: shared.lifetime, mu: &shared.exportsMu}
	t.current.Store(new(exportList))
	first, err := t.prepare(cfg.Exports)
	if err != nil {
		return nil, err
	}
	t.current.Store(first)
	return t, nil
}

// prepare returns the list of exports that comes after the present one. An
// export with the disk and the settings of one before is that one.
func (t *exportTable) prepare(list []Export) (*exportList, error) {
	old := t.current.Load()
	l := &exportList{generation: old.generation + 1, byName: make(map[string]*exported)}
	for _, e := range list {
		switch {
		case e.Device == nil:
			return nil, fmt.Errorf("export %q has no device", e.Name)
		case len(e.Name) > wire.MaxName:
			return nil, fmt.Errorf("export name of %d bytes (limit %d)", len(e.Name), wire.MaxName)
		case l.byName[e.Name] != nil:
			return nil, fmt.Errorf("two exports are named %q", e.Name)
		}
		x := old.byName[e.Name]
		if x == nil || !x.equals(&e) {
			x = t.newExported(e)
		}
		l.list = append(l.list, x)
		l.byName[e.Name] = x
	}
	return l, l.chooseDefault()
}

// equals reports whether an export is that of e. Reservations name the disk.
func (x *exported) equals(e *Export) bool {
	return x.Reservations == e.Reservations && x.Name == e.Name && x.Description == e.Description &&
		x.Default == e.Default && x.ReadOnly == e.ReadOnly && reflect.DeepEqual(x.Rights, e.Rights)
}

func (t *exportTable) newExported(e Export) *exported {
	x := &exported{Export: e, table: t, size: e.Device.Info().Size, life: lifeOf(e.Device, t.lifetime)}
	if x.Reservations == nil {
		x.Reservations = reserve.New(e.Device, t.scheduler)
		x.Reservations.Limit(e.Name, t.ioTimeout, t.log)
	}
	x.identity = x.Reservations.Identity()
	x.readOnly = e.ReadOnly || e.Device.Info().Features&block.ReadOnly != 0
	return x
}

// chooseDefault makes the empty name mean the marked export, or the only one.
func (l *exportList) chooseDefault() error {
	if l.byName[""] != nil {
		return nil
	}
	for _, x := range l.list {
		if !x.Default && len(l.list) > 1 {
			continue
		}
		if l.byName[""] != nil {
			return errors.New("two exports are marked default")
		}
		l.byName[""] = x
	}
	return nil
}

// isDefault reports whether the empty name means the export.
func (l *exportList) isDefault(x *exported) bool { return x.Default || l.byName[""] == x }

// find returns the export of a name, if the client may use it in a mode. A
// hidden export and none are the same to the client, in the answer and in the
// work it takes; why is for the log.
func (t *exportTable) find(i access.Identity, name string, m access.Mode) (x *exported, v access.Verdict, why string) {
	rights := access.Unlisted
	if x = t.current.Load().byName[name]; x != nil {
		rights = x.Rights
	}
	v = access.Admits(i, rights, m)
	switch {
	case x == nil:
		why = "there is no such export"
	case v == access.Hidden:
		why = "the client is not on the export's list"
	case v == access.MayRead:
		why = "the client may only read"
	}
	return x, v, why
}

// visible returns the exports that a client sees.
func (l *exportList) visible(i access.Identity) []*exported {
	var list []*exported
	for _, x := range l.list {
		if access.Admits(i, x.Rights, access.List) == access.Granted {
			list = append(list, x)
		}
	}
	return list
}

// info describes the disk as it is now, as sessions see it.
func (x *exported) info() block.Info {
	i := x.Device.Info()
	if x.readOnly {
		i.Features |= block.ReadOnly
	}
	return i
}

// counterpart returns the export of this table for one of another server, with
// which its session has opened the same disk: its counters are those of this
// server. One that is not exported any more has none.
func (t *exportTable) counterpart(x *exported) *exported {
	if x.table == t {
		return x
	}
	if other := t.current.Load().byName[x.Name]; other != nil && other.Reservations == x.Reservations {
		return other
	}
	return x
}

// readOnlyReason is what an initiator hears that wants to write.
const readOnlyReason = "the export is read-only; attach it read-only"

// open reserves an export for a session, or returns the reason of the refusal.
// The rights of the client come before the reservation: who may not write takes
// no place of a writer.
func (t *exportTable) open(s *session, x *exported, q *wire.OpenRequest) (*reserve.Reservation, wire.Status, string) {
	switch {
	case q.WantUUID != [16]byte{} && q.WantUUID != x.identity.UUID():
		return nil, wire.StatusNotFound, fmt.Sprintf("export %q is another disk than before", clip(q.Name))
	case q.Mode == wire.OpenMigrate:
		return nil, wire.StatusNotSupported, "exports are not handed over between writers"
	case q.Mode != wire.OpenReadOnly && x.readOnly:
		return nil, wire.StatusPermission, readOnlyReason
	}
	request := reserve.Request{
		Client: s, Name: s.clientName(), Writer: q.Writer, Mode: modes[q.Mode],
		Preempt: q.Preempt, Return: q.Return, Generation: q.Generation, End: s.preempted,
	}
	if q.Writer == [16]byte{} {
		request.Writer = s.id
	}
	r, err := x.Reservations.Reserve(request)
	switch {
	case err == nil:
		return r, wire.StatusOK, ""
	case errors.Is(err, reserve.ErrReadOnly): // since the list of exports was read
		return nil, wire.StatusPermission, readOnlyReason
	case errors.Is(err, reserve.ErrConflict):
		return nil, wire.StatusStale, err.Error()
	case errors.Is(err, reserve.ErrPreempting):
		return nil, wire.StatusRetry, err.Error()
	case errors.Is(err, reserve.ErrBusy):
		return nil, wire.StatusBusy, err.Error()
	}
	return nil, wire.StatusOf(block.Errno(err)), err.Error()
}

// accessMode returns what a client asks for, in the terms of its rights.
func accessMode(q *wire.OpenRequest) access.Mode {
	switch {
	case q.Preempt:
		return access.Preempt
	case q.Mode == wire.OpenReadOnly:
		return access.ReadOnly
	case q.Mode == wire.OpenExclusive:
		return access.Exclusive
	}
	return access.ReadWrite
}

// modes are the modes of the reservations for those on the wire.
var modes = map[wire.OpenMode]reserve.Mode{
	wire.OpenReadOnly: reserve.ReadOnly, wire.OpenReadWrite: reserve.ReadWrite, wire.OpenExclusive: reserve.Exclusive,
}

// clip shortens a name for a reason that people read.
func clip(name string) string {
	const most = 64
	if len(name) <= most {
		return name
	}
	return name[:most] + "…"
}
