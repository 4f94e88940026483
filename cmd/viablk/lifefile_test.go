package main

import (
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
}

func newLifeBed(t *testing.T) *lifeBed {
	return &lifeBed{t, filepath.Join(t.TempDir(), "n"), config.URI{Provider: "shm", Socket: "/run/v", Export: "disk"}}
}

func (b *lifeBed) open(reattach bool) (*lifeFile, error) {
	return openLifeFile([]config.URI{{Socket: b.socket}}, b.remote, reattach, slog.New(slog.DiscardHandler))
}

// opened is open, which must succeed.
func (b *lifeBed) opened(reattach bool) *lifeFile {
	b.t.Helper()
	l, err := b.open(reattach)
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
			case err == nil || !strings.Contains(err.Error(), c.want) || !strings.Contains(err.Error(), "attach without --reattach"):
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
