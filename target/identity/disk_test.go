package identity

import (
	"bytes"
	"errors"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/viablk/viablk/internal/block"
)

// rig is a disk file whose target starts, ends and dies.
type rig struct {
	testing.TB
	path, folder string
	boot         [16]byte
	flush        func() error
	log          bytes.Buffer
}

func newRig(t testing.TB) *rig {
	folder := t.TempDir()
	r := &rig{TB: t, path: filepath.Join(folder, "disk"), folder: filepath.Join(folder, "state"), boot: [16]byte{1}}
	r.write("first")
	return r
}

func (r *rig) write(content string) {
	r.Helper()
	if err := os.WriteFile(r.path, []byte(content), 0o600); err != nil {
		r.Fatal(err)
	}
}

func (r *rig) options(fd int) Options {
	return Options{
		FD: fd, Path: r.path, Folder: r.folder, Boot: r.boot, Flush: r.flush,
		Log: slog.New(slog.NewTextHandler(&r.log, nil)),
	}
}

// try opens the disk as a target does. Its file is closed at the end.
func (r *rig) try(edit ...func(*Options)) (*Disk, error) {
	r.Helper()
	f, err := os.OpenFile(r.path, os.O_RDWR, 0)
	if err != nil {
		r.Fatal(err)
	}
	r.Cleanup(func() { _ = f.Close() })
	o := r.options(int(f.Fd()))
	for _, e := range edit {
		e(&o)
	}
	return Open(o)
}

func (r *rig) open(edit ...func(*Options)) *Disk {
	r.Helper()
	d, err := r.try(edit...)
	if err != nil {
		r.Fatal(err)
	}
	return d
}

// serve opens and closes the disk.
func (r *rig) serve() *Disk {
	r.Helper()
	d := r.open()
	if err := d.Close(); err != nil {
		r.Fatal(err)
	}
	return d
}

// compare checks what of the identity is as before.
func (r *rig) compare(what string, a, b *Disk, uuid, verifier, generation bool) {
	r.Helper()
	if (a.UUID() == b.UUID()) != uuid || (a.Verifier() == b.Verifier()) != verifier ||
		(a.Writer().Generation == b.Writer().Generation) != generation {
		r.Errorf("%s: the same uuid %v, verifier %v, generation %v; want %v, %v, %v", what,
			a.UUID() == b.UUID(), a.Verifier() == b.Verifier(), a.Writer().Generation == b.Writer().Generation,
			uuid, verifier, generation)
	}
}

// TestIdentity: what a returning client learns of a disk after each event.
func TestIdentity(t *testing.T) {
	events := []struct {
		name                       string
		closed                     bool // before the event
		do                         func(*rig)
		uuid, verifier, generation bool // as before
	}{
		{"closed", true, func(*rig) {}, true, true, true},
		{"killed", false, func(*rig) {}, true, true, true},
		{"closed, and the machine started again", true, func(r *rig) { r.boot[0]++ }, true, true, true},
		{"not closed, and the machine started again", false, func(r *rig) { r.boot[0]++ }, true, false, true},
		{"killed, and its flush fails afterwards", false, func(r *rig) {
			r.flush = func() error { return syscall.EIO }
		}, true, false, true},
		{"a file made anew", true, func(r *rig) {
			if err := os.Remove(r.path); err != nil {
				r.Fatal(err)
			}
			r.write("first")
		}, false, false, true},
		{"a copy with its attributes", true, func(r *rig) { r.replaceByCopy() }, false, false, true},
		{"a copy with its attributes, killed before", false, func(r *rig) { r.replaceByCopy() }, false, false, true},
		{"overwritten in place", true, func(r *rig) { r.write("other") }, true, true, false},
		{"another modification time", true, func(r *rig) {
			if err := os.Chtimes(r.path, time.Time{}, time.Unix(1, 0)); err != nil {
				r.Fatal(err)
			}
		}, true, true, false},
		{"renamed and back", true, func(r *rig) {
			if err := os.Rename(r.path, r.path+"2"); err != nil {
				r.Fatal(err)
			}
			if err := os.Rename(r.path+"2", r.path); err != nil {
				r.Fatal(err)
			}
		}, true, true, true},
	}
	for _, e := range events {
		t.Run(e.name, func(t *testing.T) {
			r := newRig(t)
			before := r.open()
			if e.closed {
				if err := before.Close(); err != nil {
					t.Fatal(err)
				}
			}
			e.do(r)
			after := r.open()
			r.compare(e.name, before, after, e.uuid, e.verifier, e.generation)
			if !after.Persistent() {
				t.Error("not persistent")
			}
		})
	}
}

// replaceByCopy puts a copy of the disk in its place, with its record.
func (r *rig) replaceByCopy() {
	r.Helper()
	record := make([]byte, recordLimit)
	n, err := unix.Getxattr(r.path, attribute, record)
	if err != nil {
		r.Fatal(err)
	}
	content, err := os.ReadFile(r.path)
	if err == nil {
		err = os.WriteFile(r.path+".copy", content, 0o600)
	}
	if err == nil {
		err = unix.Setxattr(r.path+".copy", attribute, record[:n], 0)
	}
	if err == nil {
		err = os.Rename(r.path+".copy", r.path)
	}
	if err != nil {
		r.Fatal(err)
	}
}

// TestLossIsKept: a loss is durable when Lost returns, and counted once more at
// each.
func TestLossIsKept(t *testing.T) {
	r := newRig(t)
	d := r.open()
	was := d.Verifier()
	if err := d.Lost(syscall.EIO); err != nil {
		t.Fatal(err)
	}
	if d.Verifier() == was {
		t.Error("the verifier is the same after a loss")
	}
	again := r.open() // as after a kill
	r.compare("killed after the loss", d, again, true, true, true)
	if n := again.Record().Losses; n != 1 {
		t.Errorf("%d losses", n)
	}
	if !strings.Contains(r.log.String(), "level=ERROR") {
		t.Errorf("the log says nothing of a loss:\n%s", &r.log)
	}
}

// TestFailureIsKept: a disk whose flush failed has failed, in this process and
// in every later one, until a person accepts that or renews the record.
func TestFailureIsKept(t *testing.T) {
	ends := map[string]func(*rig) error{
		"accepted": func(r *rig) error { _, err := Accept(r.options(r.fd())); return err },
		"renewed":  func(r *rig) error { _, err := Renew(r.options(r.fd()), false); return err },
		"kept":     func(r *rig) error { _, err := Renew(r.options(r.fd()), true); return err },
	}
	fails := map[string]func(*rig){
		"while it is served": func(r *rig) {
			if err := r.open().Lost(syscall.EIO); err != nil {
				r.Fatal(err)
			}
		},
		"when it is opened": func(r *rig) {
			r.open()
			r.flush = func() error { return syscall.EIO }
			r.open()
			r.flush = nil
		},
	}
	for how, fail := range fails {
		for name, end := range ends {
			t.Run(how+", "+name, func(t *testing.T) {
				r := newRig(t)
				if r.serve().Failed() {
					t.Error("a disk fails that has lost nothing")
				}
				fail(r)
				for range 2 {
					if !r.serve().Failed() {
						t.Error("the failure is forgotten")
					}
				}
				r.boot[0]++
				failed := r.open()
				if !failed.Failed() {
					t.Error("the failure is forgotten by the next start of the machine")
				}
				if err := end(r); err != nil {
					t.Fatal(err)
				}
				after := r.open()
				if after.Failed() {
					t.Error("the disk has still failed")
				}
				if name == "accepted" {
					r.compare("accepted", failed, after, true, true, true)
				}
			})
		}
	}
	r := newRig(t)
	r.serve()
	if _, err := Accept(r.options(r.fd())); !errors.Is(err, ErrNotFailed) {
		t.Errorf("a disk without a failure is accepted: %v", err)
	}
}

// fd opens the file.
func (r *rig) fd() int {
	r.Helper()
	f, err := os.OpenFile(r.path, os.O_RDWR, 0)
	if err != nil {
		r.Fatal(err)
	}
	r.Cleanup(func() { _ = f.Close() })
	return int(f.Fd())
}

// TestLossWithoutTheFirstPlace: a disk that takes no more attributes does not
// forget a loss.
func TestLossWithoutTheFirstPlace(t *testing.T) {
	r := newRig(t)
	d := r.open()
	d.places[0] = refusing{d.places[0]}
	if err := d.Lost(syscall.EIO); err != nil {
		t.Fatal(err)
	}
	again := r.open()
	r.compare("killed after the loss", d, again, true, true, true)
	if err := again.Close(); err != nil {
		t.Fatal(err)
	}
	r.compare("closed after that", d, r.open(), true, true, true)

	again.places = []Place{refusing{again.places[0]}}
	if err := again.Lost(syscall.EIO); !errors.Is(err, syscall.EROFS) {
		t.Errorf("a loss that is kept nowhere: %v", err)
	}
}

// refusing is a place that takes no records any more.
type refusing struct{ Place }

func (refusing) Store([]byte) error { return syscall.EROFS }

// TestWriterGeneration: a writer that takes over advances the generation, also
// if it was the last one, and both outlive the process.
func TestWriterGeneration(t *testing.T) {
	r := newRig(t)
	d := r.open()
	a, b := [16]byte{'a'}, [16]byte{'b'}
	for i, want := range []struct {
		id         [16]byte
		generation uint64
	}{{a, 1}, {a, 2}, {b, 3}, {a, 4}} {
		w, err := d.SetWriter(want.id)
		if err != nil || w != (block.Writer{ID: want.id, Generation: want.generation}) {
			t.Errorf("step %d: %v, %v", i, w, err)
		}
		if d = r.open(); d.Writer() != w {
			t.Errorf("step %d: %v after a kill", i, d.Writer())
		}
	}
}

// TestNoAttributes: the record is in a sidecar where the disk takes no
// attribute, and nowhere is an error that names the way out.
func TestNoAttributes(t *testing.T) {
	r := newRig(t)
	d := newDisk(r.options(-1))
	d.places[0] = missing{}
	if err := d.keep(&Record{UUID: [16]byte{7}}); err != nil {
		t.Fatal(err)
	}
	if got, found, err := d.load(); !found || err != nil || got.UUID != [16]byte{7} {
		t.Errorf("loaded %v, %v, %v", got, found, err)
	}
	if err := os.RemoveAll(r.folder); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(r.folder, nil, 0o600); err != nil { // a file where the folder is to be
		t.Fatal(err)
	}
	if err := d.keep(&Record{}); err == nil {
		t.Error("a record was kept nowhere")
	}
}

// missing is a file system without attributes.
type missing struct{}

func (missing) Load() ([]byte, error) { return nil, errNoPlace }
func (missing) Store([]byte) error    { return syscall.EOPNOTSUPP }
func (missing) String() string        { return "no place" }

// TestBadRecords: a record that cannot be used is an error that says what to
// do, and stays as it is until it is renewed.
func TestBadRecords(t *testing.T) {
	good := (&Record{UUID: [16]byte{1}}).encode()
	flip := func(at int) []byte { b := bytes.Clone(good); b[at] ^= 1; return b }
	future := bytes.Clone(good)
	future[atVersion] = 2
	for name, c := range map[string]struct {
		bytes []byte
		want  error
	}{
		"empty":     {[]byte{}, ErrDamaged},
		"truncated": {good[:recordSize-1], ErrDamaged},
		"too long":  {append(bytes.Clone(good), 0), ErrDamaged},
		"flipped":   {flip(atLosses), ErrDamaged},
		"flagged":   {flip(atFlags + 3), ErrDamaged},
		"foreign":   {[]byte("another program's attribute, of some length"), ErrDamaged},
		"future":    {future, ErrVersion},
	} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t)
			if err := unix.Setxattr(r.path, attribute, c.bytes, 0); err != nil {
				t.Fatal(err)
			}
			_, err := r.try()
			if !errors.Is(err, c.want) || !strings.Contains(err.Error(), "viablk identity renew") {
				t.Errorf("open: %v", err)
			}
			got := make([]byte, recordLimit)
			n, err := unix.Getxattr(r.path, attribute, got)
			if err != nil || !bytes.Equal(got[:n], c.bytes) {
				t.Errorf("the record was overwritten: %v", err)
			}
			f, err := os.OpenFile(r.path, os.O_RDWR, 0)
			if err != nil {
				t.Fatal(err)
			}
			defer f.Close()
			if _, err := Renew(r.options(int(f.Fd())), false); err != nil {
				t.Fatal(err)
			}
			r.open()
		})
	}
}

// FuzzRecord: what decode accepts, encode gives back.
func FuzzRecord(f *testing.F) {
	f.Add((&Record{UUID: [16]byte{1}, Unclean: true, Failed: true, Losses: 3}).encode())
	f.Fuzz(func(t *testing.T, b []byte) {
		r, err := decode(b)
		if err != nil {
			if !errors.Is(err, ErrDamaged) && !errors.Is(err, ErrVersion) {
				t.Errorf("%v", err)
			}
			return
		}
		if !bytes.Equal(r.encode(), b) {
			t.Errorf("%x is %x", b, r.encode())
		}
	})
}

// TestReadOnly: a disk that nothing is written to has the UUID of its record,
// or one that changes with its content.
func TestReadOnly(t *testing.T) {
	readOnly := func(o *Options) { o.ReadOnly = true }
	r := newRig(t)
	plain := r.open(readOnly)
	r.compare("opened again", plain, r.open(readOnly), true, true, true)
	if plain.Persistent() {
		t.Error("a UUID that is kept nowhere is persistent")
	}
	r.write("other")
	r.compare("changed", plain, r.open(readOnly), false, false, true)
	if _, err := unix.Getxattr(r.path, attribute, nil); err != unix.ENODATA {
		t.Errorf("a read-only disk has a record: %v", err)
	}
	kept := r.serve()
	r.compare("read-only after it was written", kept, r.open(readOnly), true, true, true)
}

// TestInspectAndRenew: what the command shows, and does when told.
func TestInspectAndRenew(t *testing.T) {
	r := newRig(t)
	f, err := os.OpenFile(r.path, os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := Inspect(r.options(int(f.Fd()))); !errors.Is(err, ErrNoRecord) {
		t.Errorf("inspect a disk without a record: %v", err)
	}
	if _, err := Renew(r.options(int(f.Fd())), true); !errors.Is(err, ErrNoRecord) {
		t.Errorf("keep what is not there: %v", err)
	}
	_ = f.Close()
	served := r.serve()
	r.replaceByCopy()
	if f, err = os.OpenFile(r.path, os.O_RDWR, 0); err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	i, err := Inspect(r.options(int(f.Fd())))
	if err != nil || !i.Copied || i.UUID != served.UUID() || !strings.Contains(i.Place, attribute) {
		t.Errorf("inspect a copy: %+v, %v", i, err)
	}
	if _, err := Renew(r.options(int(f.Fd())), true); err != nil {
		t.Fatal(err)
	}
	r.compare("kept", served, r.open(), true, true, false)
	if _, err := Renew(r.options(int(f.Fd())), false); err != nil {
		t.Fatal(err)
	}
	r.compare("renewed", served, r.open(), false, false, true)
}

// TestRenewNotClosed: a copy of a disk in use may be without answered writes,
// which a kept UUID must not hide.
func TestRenewNotClosed(t *testing.T) {
	r := newRig(t)
	served := r.open()
	r.replaceByCopy()
	f, err := os.OpenFile(r.path, os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	i, err := Renew(r.options(int(f.Fd())), true)
	if err != nil || i.Unclean || i.Losses != 1 {
		t.Fatalf("%+v, %v", i, err)
	}
	r.compare("kept", served, r.open(), true, false, false)
}

// TestRenewRefused: a record that stays where it is read first is not renewed,
// even if another place takes the new one.
func TestRenewRefused(t *testing.T) {
	r := newRig(t)
	d := r.serve()
	d.places[0] = refusing{d.places[0]}
	if err := d.renew(&Record{UUID: [16]byte{7}}); err == nil {
		t.Error("the old record is still the one that counts")
	}
}

// TestNewestRecordCounts: whatever could only be written down in the second
// place counts in the next process: an open, a writer, a loss.
func TestNewestRecordCounts(t *testing.T) {
	for name, c := range map[string]struct {
		do                         func(*rig, *Disk)
		verifier, generation, same bool // as the process that ends has them
	}{
		"a writer": {func(r *rig, d *Disk) {
			if _, err := d.SetWriter([16]byte{'b'}); err != nil {
				r.Fatal(err)
			}
		}, true, true, true},
		"a loss": {func(r *rig, d *Disk) {
			if err := d.Lost(syscall.EIO); err != nil {
				r.Fatal(err)
			}
		}, true, true, true},
		"an open, and the machine stops": {func(r *rig, _ *Disk) { r.boot[0]++ }, false, true, true},
	} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t)
			r.serve()
			d := r.open()
			// As if the first place had taken nothing since the disk was closed.
			d.places[0] = refusing{d.places[0]}
			closed := d.Record()
			closed.Opens, closed.Unclean = 1, false
			if err := (xattr{d.options.FD, r.path}).Store(closed.encode()); err != nil {
				t.Fatal(err)
			}
			record := d.Record()
			if err := d.keep(&record); err != nil {
				t.Fatal(err)
			}
			c.do(r, d)
			again := r.open()
			r.compare(name, d, again, c.same, c.verifier, c.generation)
			if again.Writer() != d.Writer() {
				t.Errorf("the writer is %v and was %v", again.Writer(), d.Writer())
			}
		})
	}
}

// TestStateFolderThatCannotBe: a disk with attributes needs no folder.
func TestStateFolderThatCannotBe(t *testing.T) {
	r := newRig(t)
	r.folder = "/dev/null/state"
	r.serve()
	r.compare("served again", r.open(), r.open(), true, true, true)
}

// remembered is a place in memory.
type remembered struct{ record []byte }

func (*remembered) String() string { return "memory" }

func (m *remembered) Load() ([]byte, error) {
	if m.record == nil {
		return nil, fs.ErrNotExist
	}
	return m.record, nil
}

func (m *remembered) Store(b []byte) error {
	m.record = bytes.Clone(b)
	return nil
}

// TestKeptElsewhere: a disk that is no file keeps its record itself. One that
// was not closed has lost nothing if all starts of its machine are one, and a
// copy with its record is another disk.
func TestKeptElsewhere(t *testing.T) {
	place := new(remembered)
	open := func(binding, boot byte) (*Disk, error) {
		return Open(Options{
			FD: -1, Path: "kept", Boot: [16]byte{boot}, Flush: func() error { return nil },
			Kept: &Kept{Place: place, Binding: [16]byte{binding}, Renew: "remove the record"},
		})
	}
	must := func(d *Disk, err error) *Disk {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		return d
	}
	first := must(open(1, 1))
	if _, err := first.SetWriter([16]byte{'w'}); err != nil {
		t.Fatal(err)
	}
	again := must(open(1, 1)) // the first one was not closed
	if again.UUID() != first.UUID() || again.Verifier() != first.Verifier() || again.Writer() != first.Writer() || !again.Persistent() {
		t.Errorf("%+v became %+v", first.Record(), again.Record())
	}
	if other := must(open(1, 2)); other.Verifier() == first.Verifier() {
		t.Error("a machine that lost power has lost nothing")
	}
	if err := again.Close(); err != nil {
		t.Fatal(err)
	}
	if other := must(open(2, 1)); other.UUID() == first.UUID() {
		t.Error("a copy has the identity of its original")
	}
	place.record[0] ^= 1
	if _, err := open(1, 1); !errors.Is(err, ErrDamaged) || !strings.Contains(err.Error(), `run "remove the record"`) {
		t.Errorf("a damaged record: %v", err)
	}
}
