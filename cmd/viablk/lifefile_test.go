package main

import (
	"bytes"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/viablk/viablk/config"
	"github.com/viablk/viablk/initiator"
	"github.com/viablk/viablk/internal/nbd"
)

// lifeBed opens the file beside one socket, as processes one after another do.
type lifeBed struct {
	t      *testing.T
	socket string
	remote config.URI
	log    bytes.Buffer
}

func newLifeBed(t *testing.T) *lifeBed {
	return &lifeBed{t: t, socket: filepath.Join(t.TempDir(), "n"), remote: config.URI{Provider: "shm", Socket: "/run/v", Export: "disk"}}
}

func (b *lifeBed) open(reattach bool) (*lifeFiles, error) {
	return b.openAt(lifePlaces{socket: b.socket}, reattach)
}

func (b *lifeBed) openAt(p lifePlaces, reattach bool) (*lifeFiles, error) {
	return openLifeFiles(p, b.remote, reattach, slog.New(slog.NewTextHandler(&b.log, nil)))
}

// opened is open, which must succeed.
func (b *lifeBed) opened(reattach bool) *lifeFiles {
	b.t.Helper()
	return b.openedAt(lifePlaces{socket: b.socket}, reattach)
}

func (b *lifeBed) openedAt(p lifePlaces, reattach bool) *lifeFiles {
	b.t.Helper()
	l, err := b.openAt(p, reattach)
	if err != nil {
		b.t.Fatal(err)
	}
	return l
}

// change replaces a part of the record.
func (b *lifeBed) change(from, to string) {
	b.t.Helper()
	text, err := os.ReadFile(b.socket + lifeSuffix)
	if err == nil && !strings.Contains(string(text), from) {
		b.t.Fatalf("no %q in %q", from, text)
	}
	if err := errors.Join(err, os.WriteFile(b.socket+lifeSuffix, []byte(strings.Replace(string(text), from, to, 1)), 0o600)); err != nil {
		b.t.Fatal(err)
	}
}

// TestLifeFile: a process continues the life of the one before at a socket if
// it is to, and if that one was killed, or was to be continued too.
func TestLifeFile(t *testing.T) {
	life := initiator.Life{Writer: [16]byte{1, 2}, UUID: [16]byte{3}, Generation: 4, Verifier: 1<<64 - 1}
	for name, c := range map[string]struct {
		firstStays, killed, reattach bool
		continues                    bool
	}{
		"killed":                            {false, true, true, true},
		"ended":                             {false, false, true, false},
		"ended, to be continued":            {true, false, true, true},
		"ended, and another life begins":    {true, false, false, false},
		"killed, and another life begins":   {false, true, false, false},
		"killed when it was to be replaced": {true, true, true, true},
	} {
		t.Run(name, func(t *testing.T) {
			b := newLifeBed(t)
			first := b.opened(c.firstStays)
			if first.reattaching() {
				t.Error("the first one continues a life")
			}
			first.keep(&initiator.Life{Verifier: 5, UUID: [16]byte{9}, Generation: 1 << 60}) // longer
			first.keep(&life)
			if _, err := b.open(c.reattach); !errors.Is(err, nbd.ErrInUse) || !strings.Contains(err.Error(), "by process") {
				t.Errorf("beside another process: %v", err)
			}
			first.close(!c.killed)
			second := b.opened(c.reattach)
			got := second.continues()
			if (got != nil) != c.continues || got != nil && *got != life {
				t.Errorf("continues %+v", got)
			}
			second.close(false) // before it had the disk
			third := b.opened(true)
			defer third.close(true)
			if kept := c.firstStays || c.killed; third.reattaching() != kept {
				t.Errorf("a process that never had the disk leaves %+v", third.before)
			}
		})
	}
}

// TestLifeFileRefusals: records that say nothing of the clients are passed
// over, and those that cannot be read are refused.
func TestLifeFileRefusals(t *testing.T) {
	for name, c := range map[string]struct {
		from, to string
		want     string // "" is another life
	}{
		"another boot":      {thisBoot(), "00000000-0000-0000-0000-000000000000", ""},
		"damaged":           {"{", "[", "the record is damaged"},
		"a damaged writer":  {`"01020000-`, `"0102-`, "the record is damaged"},
		"another version":   {"life/v1", "life/v2", `of another version, "viablk.life/v2"`},
		"a part of another": {"}\n", "}\n,\"verifier\":7}\n", "goes on"},
	} {
		t.Run(name, func(t *testing.T) {
			b := newLifeBed(t)
			first := b.opened(false)
			first.keep(&initiator.Life{Writer: [16]byte{1, 2}, Generation: 4})
			first.close(false)
			b.change(c.from, c.to)
			l, err := b.open(true)
			defer l.close(false)
			switch {
			case c.want == "" || c.want == "goes on":
				if err != nil || l.reattaching() != (c.want != "") {
					t.Errorf("%v; continues: %v", err, l.reattaching())
				}
			case err == nil || !strings.Contains(err.Error(), c.want) || !strings.Contains(err.Error(), "attach it without --reattach"):
				t.Errorf("%v, not %q", err, c.want)
			}
		})
	}
}

// TestLifeFileOfAServer: an NBD server's export is known by its URI alone.
func TestLifeFileOfAServer(t *testing.T) {
	b := newLifeBed(t)
	b.remote = config.URI{Host: "a", Export: "disk"}
	first := b.opened(true)
	first.keep(nil)
	first.close(true)
	second := b.opened(true)
	if !second.reattaching() || second.continues() != nil {
		t.Errorf("%+v", second.before)
	}
	second.close(true)
	b.remote.Host = "b"
	if l, err := b.open(true); err == nil || !strings.Contains(err.Error(), "the process before served nbd://a") {
		l.close(true)
		t.Errorf("another server: %v", err)
	}
}

// device returns the place of a device in the folder of the socket, which the
// driver may have chosen, or is to choose.
func (b *lifeBed) device(known, waits bool) lifePlaces {
	p := lifePlaces{folder: filepath.Dir(b.socket), waits: waits}
	if known {
		p.device = lifePath(p.folder, "/dev/nbd3")
	}
	return p
}

// TestLifeFileOfADevice: a process continues the life of the one before at a
// device that waits, whether the user or the driver chose it.
func TestLifeFileOfADevice(t *testing.T) {
	life, stale := initiator.Life{Writer: [16]byte{1}, Generation: 4}, initiator.Life{Writer: [16]byte{9}}
	for name, known := range map[string]bool{"known": true, "chosen by the driver": false} {
		t.Run(name, func(t *testing.T) {
			b := newLifeBed(t)
			before := b.openedAt(b.device(true, false), false) // and was detached
			before.keep(&stale)
			before.close(true)

			first := b.openedAt(b.device(known, false), true)
			if got := first.continues(); got != nil || first.reattaching() {
				t.Errorf("the first one continues %+v", got)
			}
			first.keep(&initiator.Life{Writer: life.Writer, Generation: 3})
			if err := first.publish(lifePath(b.device(true, false).folder, "/dev/nbd3")); err != nil {
				t.Error(err)
			}
			first.keep(&life)
			first.close(true) // the device is in use, and stays
			for range 2 {
				second := b.openedAt(b.device(true, true), true)
				if got := second.continues(); got == nil || *got != life || !second.reattaching() {
					t.Errorf("continues %+v", got)
				}
				second.close(false) // before it had the disk
			}
			if files, err := filepath.Glob(filepath.Join(filepath.Dir(b.socket), "*")); len(files) != 1 || err != nil {
				t.Errorf("files are left: %q, %v", files, err)
			}
		})
	}
}

// TestLifeFileOfADeviceWithoutARecord: a device that waits is taken over all
// the same, and the log tells what is not known.
func TestLifeFileOfADeviceWithoutARecord(t *testing.T) {
	for name, uri := range map[string]string{"none": "", "of another disk": "/run/w"} {
		t.Run(name, func(t *testing.T) {
			b := newLifeBed(t)
			if uri != "" {
				at := b.remote.Socket
				b.remote.Socket = uri
				other := b.openedAt(b.device(true, false), true)
				other.keep(&initiator.Life{Writer: [16]byte{1}})
				other.close(true)
				b.remote.Socket = at
			}
			l := b.openedAt(b.device(true, true), true)
			defer l.close(false)
			if got := l.continues(); got != nil || !l.reattaching() || !strings.Contains(b.log.String(), "event=life_unknown") {
				t.Errorf("continues %+v; log: %s", got, b.log.String())
			}
		})
	}
}

// TestUnpublishedLifeFileGoes: a process that got no device leaves no file.
func TestUnpublishedLifeFileGoes(t *testing.T) {
	b := newLifeBed(t)
	l := b.openedAt(b.device(false, false), true)
	l.keep(&initiator.Life{})
	l.close(false)
	if files, err := filepath.Glob(filepath.Join(filepath.Dir(b.socket), "*")); len(files) != 0 || err != nil {
		t.Errorf("files are left: %q, %v", files, err)
	}
}

// TestLifeOfSocketAndDevice: of two records of one process the later one
// counts; one process cannot continue two.
func TestLifeOfSocketAndDevice(t *testing.T) {
	life := func(writer byte, generation uint64) *initiator.Life {
		return &initiator.Life{Writer: [16]byte{writer}, Generation: generation}
	}
	for name, c := range map[string]struct {
		socket, device *initiator.Life
		continues      uint64 // generation
		refused        bool
	}{
		"the same":          {socket: life(1, 4), device: life(1, 4), continues: 4},
		"the socket later":  {socket: life(1, 5), device: life(1, 4), continues: 5},
		"the device later":  {socket: life(1, 4), device: life(1, 5), continues: 5},
		"the socket alone":  {socket: life(1, 4), continues: 4},
		"the device alone":  {device: life(1, 4), continues: 4},
		"of two processes":  {socket: life(1, 4), device: life(2, 4), refused: true},
		"of none of before": {},
	} {
		t.Run(name, func(t *testing.T) {
			b := newLifeBed(t)
			both := b.device(true, c.device != nil)
			for _, one := range []struct {
				life *initiator.Life
				p    lifePlaces
			}{{c.socket, lifePlaces{socket: b.socket}}, {c.device, b.device(true, false)}} {
				if one.life == nil {
					continue
				}
				l := b.openedAt(one.p, true)
				l.keep(one.life)
				l.close(false)
			}
			both.socket = b.socket
			l, err := b.openAt(both, true)
			defer l.close(false)
			if c.refused {
				if err == nil || !strings.Contains(err.Error(), "two processes before") || !strings.Contains(err.Error(), "detach it with --force") {
					t.Errorf("%v", err)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			if got := l.continues(); (got != nil) != (c.continues != 0) || got != nil && got.Generation != c.continues {
				t.Errorf("continues %+v", got)
			}
		})
	}
}
