package reserve

import (
	"fmt"
	"log/slog"
	"sync/atomic"
	"time"
)

// A target never answers a request in place of its disk: the disk may execute
// it later, and a client that was told of an error would not expect that. A
// request that is in the disk for longer than the limit makes the disk overdue:
// the log says so, and new clients are refused until the disk answers. Over
// VIA, sessions that return are not new: their requests wait at the initiator.

// Age tells since when the oldest request of a connection has been in the disk.
// Its owner sets it, and any goroutine reads it.
type Age struct {
	clock func() time.Duration // of the owner
	since atomic.Int64         // on clock; 0: no request is in the disk
}

// Set notes since when, on the owner's clock, and 0 that no request is in the
// disk. It neither blocks nor allocates.
func (a *Age) Set(since time.Duration) { a.since.Store(int64(since)) }

// Any reports whether a request is in the disk.
func (a *Age) Any() bool { return a.since.Load() != 0 }

// overdue is how long requests may be in the disk, and what came of it.
type overdue struct {
	name  string        // of the export, for people
	limit time.Duration // 0: for ever
	log   *slog.Logger
	ages  map[*Age]struct{}
	age   time.Duration // when it was checked last; 0: the disk is not overdue
}

// Limit has the disk be overdue when a request is in it for longer, and the log
// say so of an export. 0 is no limit. It is called before the disk has clients.
func (d *Disk) Limit(export string, limit time.Duration, log *slog.Logger) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.overdue.name, d.overdue.limit, d.overdue.log = export, limit, log
}

// AddAge makes the age of a connection known, which measures by a clock that
// any goroutine may read and that never returns 0. The owner removes it.
func (d *Disk) AddAge(clock func() time.Duration) *Age {
	a := &Age{clock: clock}
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.overdue.ages == nil {
		d.overdue.ages = make(map[*Age]struct{})
	}
	d.overdue.ages[a] = struct{}{}
	return a
}

// RemoveAge ends an age.
func (d *Disk) RemoveAge(a *Age) {
	d.mu.Lock()
	delete(d.overdue.ages, a)
	d.mu.Unlock()
	d.Overdue()
}

// Oldest returns how long the oldest request has been in the disk.
func (d *Disk) Oldest() time.Duration {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.oldestLocked()
}

// +checklocks:d.mu
func (d *Disk) oldestLocked() (oldest time.Duration) {
	for a := range d.overdue.ages {
		if since := time.Duration(a.since.Load()); since != 0 {
			oldest = max(oldest, a.clock()-since)
		}
	}
	return oldest
}

// Overdue returns how long the disk has been overdue, or 0. It logs when the
// disk becomes overdue, and when it has answered: who has a request in the disk
// calls it now and then.
func (d *Disk) Overdue() time.Duration {
	d.mu.Lock()
	o := &d.overdue
	if o.limit <= 0 {
		d.mu.Unlock()
		return 0
	}
	age, before := d.oldestLocked(), o.age
	if age < o.limit {
		age = 0
	}
	o.age = age
	d.late.Store(age > 0)
	name, limit, log := o.name, o.limit, o.log
	d.mu.Unlock()
	switch {
	case age > 0 && before == 0:
		log.Warn("a request is in the disk for longer than io_timeout: new clients are refused until the disk answers",
			"event", "disk_overdue", "export", name, "age", age.Round(time.Millisecond), "io_timeout", limit)
	case age == 0 && before > 0:
		log.Info("the disk has answered: clients are admitted", "event", "disk_answered", "export", name, "age", before.Round(time.Millisecond))
	}
	return age
}

// Admit returns an error for a new client while the disk is overdue.
func (d *Disk) Admit() error {
	age := d.Overdue()
	if age == 0 {
		return nil
	}
	return fmt.Errorf("the disk has not answered a request for %v: try again", age.Round(time.Second))
}
