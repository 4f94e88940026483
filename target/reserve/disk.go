// Package reserve decides who uses a disk together with whom, whatever brings
// them to it: every VIA provider and NBD reserve a disk at one [Disk].
//
// The rules, in the terms of the persistent reservations of SCSI and NVMe:
//
//   - Any number of clients read.
//   - One client writes. The NBD connections of a target are one client
//     together, because NBD leaves it to them to agree (multi-conn).
//   - An exclusive client is the only one.
//   - A client that preempts has the others ended that are in its way, and gets
//     the disk when nothing of them is in flight.
//   - A writer that returns after another one wrote is refused: what it has in
//     flight or cached is older than what is on the disk.
package reserve

import (
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/viablk/viablk/internal/block"
	"github.com/viablk/viablk/internal/contain"
	"github.com/viablk/viablk/internal/sched"
)

// Mode is how a client uses a disk.
type Mode int

// The modes.
const (
	ReadOnly  Mode = iota // reads, as any number of clients do
	ReadWrite             // the only writer
	Exclusive             // the only client
)

// String returns the mode as status shows it.
func (m Mode) String() string {
	return [...]string{"read-only", "read-write", "exclusive"}[m]
}

// Reasons of a refusal.
var (
	// ErrBusy means that another client is in the way. It may leave.
	ErrBusy = errors.New("the disk is in use")

	// ErrPreempting means that the clients in the way are being ended: the
	// caller tries again.
	ErrPreempting = errors.New("the disk is being taken from another client")

	// ErrReadOnly means that no client gets the disk for writing.
	ErrReadOnly = errors.New("the disk is exported read-only")

	// ErrRetired means that the disk is not served any more.
	ErrRetired = errors.New("the disk is not exported any more")

	// ErrConflict means that another writer was there since the client left.
	ErrConflict = errors.New("another writer was there in between")
)

// Request is what a client asks for.
type Request struct {
	Client any      // who it is: equal for all reservations of a client
	Name   string   // of the client, for people
	Writer [16]byte // of the client, kept with the disk: its life outlasts a connection
	Mode   Mode

	Preempt bool // end the clients that are in the way

	// Return means that the client had the disk before, when its writer
	// generation was Generation.
	Return     bool
	Generation uint64

	// End ends what the client has of the disk because another preempts it. It
	// does not block and may be called more than once.
	End func(by string)
}

// preemptTime is how long a disk that was preempted waits for the client that
// did it.
const preemptTime = 30 * time.Second

// Disk is the reservations of a disk. It is safe for concurrent use.
type Disk struct {
	identity  block.Identity
	scheduler sched.Scheduler

	mu sync.Mutex
	// +checklocks:mu
	held []*Reservation
	// +checklocks:mu
	preemptor any // gets the disk next; nil: none
	// +checklocks:mu
	preemptorName string
	// +checklocks:mu
	until time.Time // of preemptor

	// +checklocks:mu
	readOnly bool

	// +checklocks:mu
	retired bool
	// +checklocks:mu
	idle func() // called when no client has the retired disk; nil afterwards

	// +checklocks:mu
	overdue overdue
	late    atomic.Bool // Overdue found it so last

	// writer advanced the generation in this process, and no other had the disk
	// for writing since; nil if there is none. The kept writer alone does not
	// tell whether others came and only read.
	// +checklocks:mu
	writer *[16]byte
}

// New returns the reservations of a disk. One that has no identity gets one
// that ends with the process. The scheduler is the clock; nil is sched.Real.
func New(device block.Device, scheduler sched.Scheduler) *Disk {
	if scheduler == nil {
		scheduler = sched.Real
	}
	identity := block.IdentityOf(device)
	if identity == nil {
		identity = block.NewIdentity()
	}
	return &Disk{identity: identity, scheduler: scheduler}
}

// Identity returns the identity of the disk.
func (d *Disk) Identity() block.Identity { return d.identity }

// Reservation is a client's use of a disk, until Release.
type Reservation struct {
	disk    *Disk
	request Request

	wrote atomic.Bool // is the writer that is kept with the disk
}

// Reserve gives a client the disk, or returns why not: an error that wraps
// [ErrBusy], [ErrPreempting], [ErrReadOnly] or [ErrConflict], or has ESHUTDOWN
// because another process has taken the disk over.
func (d *Disk) Reserve(q Request) (*Reservation, error) {
	if err := block.Revoked(d.identity); err != nil {
		return nil, err
	}
	if w := d.identity.Writer(); q.Return && q.Mode != ReadOnly && w.ID != q.Writer && w.Generation != q.Generation {
		return nil, fmt.Errorf("%w: generation %d, and it was %d", ErrConflict, w.Generation, q.Generation)
	}
	r, inTheWay, err := d.reserve(&q)
	for _, other := range inTheWay {
		if end := other.request.End; end != nil {
			end(q.Name)
		}
	}
	if err == nil && q.Preempt && q.Mode != ReadOnly {
		// The preempted writer must not go on, even if this one writes nothing.
		if err = r.BeforeWrite(); err != nil {
			r.Release()
			return nil, err
		}
	}
	return r, err
}

func (d *Disk) reserve(q *Request) (r *Reservation, inTheWay []*Reservation, err error) {
	defer contain.Shared()
	d.mu.Lock()
	defer d.mu.Unlock()
	switch {
	case d.retired:
		return nil, nil, ErrRetired
	case d.readOnly && q.Mode != ReadOnly:
		return nil, nil, ErrReadOnly
	}
	if d.preemptor != nil && d.scheduler.Now().After(d.until) {
		d.preemptor = nil
	}
	if d.preemptor != nil && d.preemptor != q.Client && (q.Mode != ReadOnly) {
		return nil, nil, fmt.Errorf("%w: %s preempts it", ErrBusy, d.preemptorName)
	}
	for _, other := range d.held {
		if other.conflicts(q) {
			inTheWay = append(inTheWay, other)
		}
	}
	switch {
	case len(inTheWay) == 0:
	case !q.Preempt:
		first := &inTheWay[0].request
		return nil, nil, fmt.Errorf("%w: %s has it open %v: attach it read-only, or preempt that client", ErrBusy, first.Name, first.Mode)
	default:
		d.preemptor, d.preemptorName, d.until = q.Client, q.Name, d.scheduler.Now().Add(preemptTime)
		return nil, inTheWay, fmt.Errorf("%w: %s had it open %v", ErrPreempting, inTheWay[0].request.Name, inTheWay[0].request.Mode)
	}
	if d.preemptor == q.Client {
		d.preemptor = nil
	}
	if d.writer != nil && *d.writer != q.Writer && q.Mode != ReadOnly {
		d.writer = nil
	}
	r = &Reservation{disk: d, request: *q}
	d.held = append(d.held, r)
	return r, nil, nil
}

// conflicts reports whether a reservation is in the way of a request.
func (r *Reservation) conflicts(q *Request) bool {
	has := &r.request
	switch {
	case has.Client == q.Client:
		return false
	case has.Mode == Exclusive || q.Mode == Exclusive:
		return true
	default:
		return has.Mode == ReadWrite && q.Mode == ReadWrite
	}
}

// BeforeWrite makes the client the writer that is kept with the disk, unless it
// is, and no other writer had the disk since. It is called before each write;
// all but the first return at once.
func (r *Reservation) BeforeWrite() error {
	if r.wrote.Load() {
		return nil
	}
	d := r.disk
	d.mu.Lock()
	known := d.writer != nil && *d.writer == r.request.Writer
	d.mu.Unlock()
	if !known {
		if _, err := d.identity.SetWriter(r.request.Writer); err != nil {
			return err
		}
		d.mu.Lock()
		d.writer = &r.request.Writer
		d.mu.Unlock()
	}
	r.wrote.Store(true)
	return nil
}

// Wrote reports whether BeforeWrite has nothing more to do.
func (r *Reservation) Wrote() bool { return r.wrote.Load() }

// Mode returns how the disk is used.
func (r *Reservation) Mode() Mode { return r.request.Mode }

// Generation returns the writer generation of the disk.
func (r *Reservation) Generation() uint64 { return r.disk.identity.Writer().Generation }

// Release gives the disk back. Nothing of the client is in flight any more. It
// may be called more than once.
func (r *Reservation) Release() {
	defer contain.Shared()
	if idle := r.disk.release(r); idle != nil {
		idle()
	}
}

// release removes a reservation. It returns what is to be called without the
// lock.
func (d *Disk) release(r *Reservation) (idle func()) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.held = slices.DeleteFunc(d.held, func(other *Reservation) bool { return other == r })
	return d.idleLocked()
}

// Retire refuses all later reservations with [ErrRetired]. It calls idle once,
// when no client has the disk: before it returns, or in the Release of the last
// one, which idle must not block. It returns the clients that have the disk
// now. It is called once.
func (d *Disk) Retire(idle func()) []Client {
	defer contain.Shared()
	d.mu.Lock()
	d.retired, d.idle = true, idle
	call := d.idleLocked()
	d.mu.Unlock()
	if call != nil {
		call()
		return nil
	}
	return d.Clients()
}

// idleLocked returns what Retire was given, once, if no client has the disk.
//
// +checklocks:d.mu
func (d *Disk) idleLocked() (idle func()) {
	if len(d.held) == 0 {
		idle, d.idle = d.idle, nil
	}
	return idle
}

// Client is a client of a disk as status shows it.
type Client struct {
	Name string `json:"name"`
	Mode string `json:"mode"`
}

// Rule is what the clients of a disk keep others from, as a type of reservation
// of SCSI and NVMe.
type Rule string

// The rules.
const (
	NoReservation   Rule = "none"             // another client may do everything
	WriteExclusive  Rule = "write exclusive"  // others may only read
	ExclusiveAccess Rule = "exclusive access" // others may not open the disk
)

// Rule returns the present rule.
func (d *Disk) Rule() Rule {
	d.mu.Lock()
	defer d.mu.Unlock()
	rule := NoReservation
	for _, r := range d.held {
		switch r.request.Mode {
		case Exclusive:
			return ExclusiveAccess
		case ReadWrite:
			rule = WriteExclusive
		}
	}
	return rule
}

// Clients returns who uses the disk, in the order in which they came.
func (d *Disk) Clients() []Client {
	d.mu.Lock()
	defer d.mu.Unlock()
	clients := []Client{}
	for _, r := range d.held {
		clients = append(clients, Client{r.request.Name, r.request.Mode.String()})
	}
	return clients
}
