package identity

import (
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"path/filepath"
	"sync"
	"sync/atomic"

	"golang.org/x/sys/unix"

	"github.com/viablk/viablk/internal/block"
)

// Options say which disk to identify.
type Options struct {
	// FD is the open disk and Path its name. The caller holds the lock of the
	// disk, and keeps FD open until Close.
	FD   int
	Path string

	// ReadOnly writes nothing: a disk without a record gets a UUID made of what
	// it is and when it was changed last.
	ReadOnly bool

	// Folder is where the records of disks are that keep no extended attribute.
	Folder string

	// Kept, if not nil, is a disk that is no file: FD and Folder have no use.
	Kept *Kept

	// Flush makes the disk durable; nil is fdatasync(2).
	Flush func() error

	// Log gets what a person should know of the disk. Nil discards it.
	Log *slog.Logger

	// Boot identifies the start of the machine; zero asks the kernel. Of a
	// machine that answers no write before it is durable, all starts are one.
	Boot [16]byte
}

// Kept is a disk that keeps its record itself, such as an image of a cluster.
type Kept struct {
	// Place keeps the record.
	Place Place

	// Binding tells the disk from every other, also from its copies.
	Binding [16]byte

	// Renew is what a person runs to remove a record that cannot be used.
	Renew string
}

// outside is the writer of a disk that another program changed.
var outside [16]byte

// Disk is the identity of an open disk. It implements [block.Identity].
type Disk struct {
	options Options
	places  []Place       // the first is the usual one, the next are tried after it
	writing chan struct{} // holds one token; who has it writes the record

	uuid     [16]byte
	verifier atomic.Uint64

	mu sync.Mutex
	// +checklocks:mu
	record Record
	stored bool // the record is kept with the disk
}

var _ block.Identity = (*Disk)(nil)

// Open reads the record of a disk, or makes one, and marks the disk as unclean
// until Close. Errors wrap [ErrDamaged] or [ErrVersion] where the record is to
// blame; nothing was overwritten then.
func Open(o Options) (*Disk, error) {
	d := newDisk(o)
	was, found, err := d.load()
	if err != nil {
		return nil, fmt.Errorf("identity of %q: %w", d.options.Path, d.options.explain(err))
	}
	now, err := d.examine()
	if err != nil {
		return nil, fmt.Errorf("identity of %q: %w", d.options.Path, err)
	}
	if d.options.ReadOnly {
		d.adopt(d.readOnlyRecord(was, found, now), found)
		return d, nil
	}
	r := d.next(was, found, now)
	switch err := d.keep(&r); {
	case err != nil && o.Kept != nil:
		return nil, fmt.Errorf("keep the identity of %q: %w", d.options.Path, err)
	case err != nil:
		return nil, fmt.Errorf("keep the identity of %q: %w: make %q writable, or give up the identity with identity=0",
			d.options.Path, err, d.options.Folder)
	}
	d.adopt(r, true)
	return d, nil
}

func newDisk(o Options) *Disk {
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	if o.Flush == nil {
		o.Flush = func() error { return unix.Fdatasync(o.FD) }
	}
	if o.Boot == [16]byte{} {
		o.Boot = ThisBoot()
	}
	d := &Disk{options: o, writing: make(chan struct{}, 1)}
	d.writing <- struct{}{}
	if o.Kept != nil {
		d.places = []Place{o.Kept.Place}
		return d
	}
	d.places = []Place{xattr{o.FD, o.Path}}
	if o.Folder != "" {
		d.places = append(d.places, newSidecar(o.Folder, realPath(o.Path)))
	}
	return d
}

// realPath returns a path without symbolic links, as far as they can be read.
func realPath(path string) string {
	if real, err := filepath.EvalSymlinks(path); err == nil {
		path = real
	}
	if absolute, err := filepath.Abs(path); err == nil {
		path = absolute
	}
	return path
}

// accept returns what a person runs to use a disk again whose flush failed.
func (o *Options) accept() string {
	if o.Kept != nil {
		return o.Kept.Renew
	}
	return "viablk identity accept " + o.Path
}

// explain says what to do about a record that cannot be used.
func (o *Options) explain(err error) error {
	renew := "viablk identity renew " + o.Path
	if o.Kept != nil {
		renew = o.Kept.Renew
	}
	switch {
	case errors.Is(err, ErrDamaged):
		return fmt.Errorf("%w: check that the disk is the right one, then run %q", err, renew)
	case errors.Is(err, ErrVersion):
		return fmt.Errorf("%w: serve the disk with a newer viablk, or run %q", err, renew)
	}
	return err
}

// load returns the record of the disk: the newest, for a place that took no
// record has an old one.
func (d *Disk) load() (r Record, found bool, err error) {
	for _, p := range d.places {
		b, err := p.Load()
		switch {
		case errors.Is(err, fs.ErrNotExist), errors.Is(err, unix.ENOTDIR), errors.Is(err, errNoPlace):
			continue
		case errors.Is(err, fs.ErrPermission) && (found || d.options.ReadOnly):
			continue // a place that this user cannot have written to
		case err != nil:
			return r, false, fmt.Errorf("read %v: %w", p, err)
		}
		other, err := decode(b)
		switch {
		case err != nil:
			return r, false, fmt.Errorf("%v: %w", p, err)
		case !found:
			r, found = other, true
		case other.UUID == r.UUID && other.newer(&r):
			r = other
		}
	}
	return r, found, nil
}

// newer reports whether a record of the same disk was stored after another one.
func (r *Record) newer(than *Record) bool {
	if r.Opens != than.Opens {
		return r.Opens > than.Opens
	}
	return r.Losses > than.Losses || r.Generation > than.Generation
}

// next returns the record of a disk that is opened for writing. It logs what is
// not as it was left.
func (d *Disk) next(was Record, found bool, now state) Record {
	log, path, boot := d.options.Log, d.options.Path, d.options.Boot
	r := was
	switch {
	case !found:
		r = Record{UUID: block.NewUUID(), LossBoot: boot}
		log.Info("disk identified", "event", "disk_identified", "path", path, "uuid", block.FormatUUID(r.UUID))
	case was.Binding != now.binding:
		r = Record{UUID: block.NewUUID(), LossBoot: boot}
		log.Warn("the file is a copy of another disk: it gets an identity of its own", "event", "disk_copied",
			"path", path, "uuid", block.FormatUUID(r.UUID), "copy_of", block.FormatUUID(was.UUID))
	case was.Unclean && was.Boot != boot:
		d.lose(&r, "its machine stopped before the disk was closed")
	case was.Unclean:
		if err := d.options.Flush(); err != nil {
			d.lose(&r, err.Error())
			r.Failed = true
		}
	case was.Modified != now.modified:
		r.Generation, r.Writer = r.Generation+1, outside
		log.Warn("another program changed the disk while no target served it", "event", "disk_changed", "path", path, "uuid", block.FormatUUID(r.UUID))
	}
	if r.Failed {
		log.Error("a flush of the disk failed: every flush fails until a person accepts that writes are lost", "event", "loss_not_accepted",
			"path", path, "accept", d.options.accept())
	}
	r.Opens++
	r.Unclean, r.Boot = true, boot
	r.Binding, r.Modified = now.binding, now.modified
	return r
}

// lose counts a loss in a record.
func (d *Disk) lose(r *Record, cause string) {
	r.Losses, r.LossBoot = r.Losses+1, d.options.Boot
	d.options.Log.Error("writes that were not flushed may be lost", "event", "writes_lost", "path", d.options.Path, "cause", cause, "losses", r.Losses)
}

// readOnlyRecord returns the record of a disk that nothing is written to.
func (d *Disk) readOnlyRecord(was Record, found bool, now state) Record {
	if found && was.Binding == now.binding {
		return was
	}
	var b [24]byte
	copy(b[:], now.binding[:])
	binary.LittleEndian.PutUint64(b[16:], uint64(now.modified))
	h := sha256.Sum256(b[:])
	u := [16]byte(h[:16])
	u[6] = u[6]&0x0f | 0x80 // version 8: made of something
	u[8] = u[8]&0x3f | 0x80
	return Record{UUID: u, Binding: now.binding, Modified: now.modified}
}

// adopt makes r the record of the disk.
func (d *Disk) adopt(r Record, stored bool) {
	d.uuid, d.stored = r.UUID, stored
	d.verifier.Store(r.verifier())
	d.mu.Lock()
	defer d.mu.Unlock()
	d.record = r
}

// verifier returns the write verifier that a record stands for.
func (r *Record) verifier() uint64 {
	var b [40]byte
	copy(b[:], r.UUID[:])
	copy(b[16:], r.LossBoot[:])
	binary.LittleEndian.PutUint64(b[32:], r.Losses)
	h := sha256.Sum256(b[:])
	return binary.LittleEndian.Uint64(h[:])
}

// keep stores a record in the first place that takes it.
func (d *Disk) keep(r *Record) error {
	var errs []error
	for _, p := range d.places {
		err := p.Store(r.encode())
		if err == nil {
			return nil
		}
		errs = append(errs, fmt.Errorf("%v: %w", p, err))
	}
	return errors.Join(errs...)
}

// change stores a changed record. Changes take place one after another. A
// change holds in this process even if it cannot be stored.
func (d *Disk) change(edit func(*Record)) error {
	<-d.writing
	defer func() { d.writing <- struct{}{} }()
	r := d.Record()
	edit(&r)
	d.verifier.Store(r.verifier())
	d.mu.Lock()
	d.record = r
	d.mu.Unlock()
	if d.options.ReadOnly {
		return nil
	}
	return d.keep(&r)
}

// Record returns the present record.
func (d *Disk) Record() Record {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.record
}

// UUID implements [block.Identity].
func (d *Disk) UUID() [16]byte { return d.uuid }

// Verifier implements [block.Identity].
func (d *Disk) Verifier() uint64 { return d.verifier.Load() }

// Persistent implements [block.Identity].
func (d *Disk) Persistent() bool { return d.stored }

// Writer implements [block.Identity].
func (d *Disk) Writer() block.Writer {
	r := d.Record()
	return block.Writer{ID: r.Writer, Generation: r.Generation}
}

// SetWriter implements [block.Identity].
func (d *Disk) SetWriter(id [16]byte) (block.Writer, error) {
	err := d.change(func(r *Record) { r.Writer, r.Generation = id, r.Generation+1 })
	if err != nil {
		err = fmt.Errorf("keep the writer of %q: %w", d.options.Path, err)
	}
	return d.Writer(), err
}

// ErrFailed is why the flushes of a disk fail whose process has not seen one
// fail.
var ErrFailed = errors.New("a flush failed before the disk was opened")

// Failed reports whether a flush of the disk has failed, in this process or an
// earlier one, and no person has accepted that since. No flush of such a disk
// succeeds: a client that reconnects over NBD, and has writes that are lost,
// looks like one that comes for the first time.
func (d *Disk) Failed() bool { return d.Record().Failed }

// Lost keeps that a flush failed because of cause, and that writes may be lost,
// durably, before it returns. An error means that this ends with the process.
func (d *Disk) Lost(cause error) error {
	err := d.change(func(r *Record) {
		d.lose(r, cause.Error())
		r.Failed = true
	})
	if err != nil {
		err = fmt.Errorf("keep the loss of writes to %q: %w", d.options.Path, err)
		d.options.Log.Error("the loss is forgotten when the process ends", "event", "disk_record_failed", "path", d.options.Path, "error", err)
	}
	return err
}

// Close marks the disk as clean. The caller has made all writes durable and
// begins no more; otherwise it leaves Close out.
func (d *Disk) Close() error {
	if d.options.ReadOnly {
		return nil
	}
	now, err := d.examine()
	if err == nil {
		err = d.change(func(r *Record) { r.Unclean, r.Modified = false, now.modified })
	}
	if err != nil {
		return fmt.Errorf("mark %q as clean: %w", d.options.Path, err)
	}
	return nil
}
