package main

import (
	"errors"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/viablk/viablk/config"
	"github.com/viablk/viablk/internal/block"
	"github.com/viablk/viablk/target/backend"
)

// scrubbedSet returns a set with the export d, which a scrub is amid that
// sleeps for days.
func scrubbedSet(t *testing.T) (*exportSet, disk) {
	t.Helper()
	const size = 3 << 20
	path := filepath.Join(t.TempDir(), "disk")
	if err := os.WriteFile(path, make([]byte, size), 0o600); err != nil {
		t.Fatal(err)
	}
	set, _ := newTestSet(t, memoryExport("other"), config.Export{Name: "d", Backend: "crc:file:" + path + "," + path + ".sums"})
	d, err := set.exported("d")
	if err != nil {
		t.Fatal(err)
	}
	view, err := block.NewDisk(d.device)
	if err == nil {
		_, err = view.WriteAt(make([]byte, size), 0)
		err = errors.Join(err, view.Close())
	}
	if err != nil {
		t.Fatal(err)
	}
	if r, err := set.scrub(t.Context(), "d", 1); err != nil || r.State != backend.ScrubRunning {
		t.Fatalf("the scrub is %+v, %v", r, err)
	}
	return set, d
}

// awaitStop waits until the scrub of a disk has stopped.
func awaitStop(t *testing.T, d disk) {
	t.Helper()
	for deadline := time.Now().Add(waitTimeout); ; time.Sleep(time.Millisecond) {
		switch status, _ := backend.ScrubOf(d.opened); {
		case status.State == backend.ScrubStopped:
			return
		case time.Now().After(deadline):
			t.Fatalf("the scrub does not stop: %+v", status)
		}
	}
}

// TestScrubOfRemovedExport: a scrub stops when its export is removed, also
// while a client has the disk, and none starts then.
func TestScrubOfRemovedExport(t *testing.T) {
	set, d := scrubbedSet(t)
	client, err := d.reserveNBD("client", false, func(string) {})
	if err != nil {
		t.Fatal(err)
	}
	removed, err := set.withdraw(t.Context(), "d", removal{drain: time.Hour})
	if err != nil {
		t.Fatal(err)
	}
	awaitStop(t, d)
	if _, err := set.scrub(t.Context(), "d", 1); !errors.Is(err, errNoExport) {
		t.Errorf("started with %v", err)
	}
	if removed.isClosed() {
		t.Error("the disk of a client is closed")
	}
	client.Release()
	<-removed.closed
}

// TestScrubOfDrainedTarget: scrubs stop when the process drains, and none
// starts then.
func TestScrubOfDrainedTarget(t *testing.T) {
	set, d := scrubbedSet(t)
	ending := make(chan struct{})
	if err := set.stopScrub(t.Context(), "d"); err != nil {
		t.Fatal(err)
	}
	set.ending = ending
	if _, err := set.scrub(t.Context(), "d", 1); err != nil {
		t.Fatal(err)
	}
	close(ending)
	awaitStop(t, d)
	if _, err := set.scrub(t.Context(), "d", 1); !errors.Is(err, errDraining) {
		t.Errorf("started with %v", err)
	}
}

// TestScrubResults: the first row says damaged only of blocks.
func TestScrubResults(t *testing.T) {
	for want, s := range map[string]backend.ScrubStatus{
		"clean":      {State: backend.ScrubFinished},
		"damaged":    {State: backend.ScrubFinished, Unreadable: 1, Unchecked: 1},
		"incomplete": {State: backend.ScrubFinished, Unchecked: 1},
		"stopped":    {State: backend.ScrubStopped, Corrupt: 1},
	} {
		r := scrubReport{ScrubStatus: s}
		if got := r.rows()[0][1]; got != want {
			t.Errorf("%s instead of %s", got, want)
		}
	}
}
