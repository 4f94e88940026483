package reserve

import (
	"errors"
	"fmt"
	"strings"
	"testing"
)

// TestRefuseWriters: a disk becomes one for reading only while no client has it
// for writing, who else is named; then no client gets it for writing, however
// it asks, until writers are admitted again.
func TestRefuseWriters(t *testing.T) {
	d := newDisk()
	for _, mode := range []Mode{ReadWrite, Exclusive} {
		w, err := d.Reserve(Request{Client: "w", Name: "the writer", Mode: mode})
		if err != nil {
			t.Fatal(err)
		}
		want := fmt.Sprintf("the writer has it open %v", mode)
		if err := d.RefuseWriters(); !errors.Is(err, ErrBusy) || !strings.Contains(err.Error(), want) {
			t.Errorf("%v: %v, want %q", mode, err, want)
		}
		again, err := d.Reserve(Request{Client: "w", Mode: ReadWrite})
		if err != nil {
			t.Fatalf("a refusal has changed the disk: %v", err)
		}
		again.Release()
		w.Release()
	}
	ended := false
	reader, err := d.Reserve(Request{Client: "r", Name: "the reader", End: func(string) { ended = true }})
	if err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if err := d.RefuseWriters(); err != nil {
			t.Fatalf("below a reader: %v", err)
		}
	}
	for _, q := range []Request{
		{Client: "w", Mode: ReadWrite},
		{Client: "r", Mode: ReadWrite},
		{Client: "w", Mode: Exclusive, Preempt: true},
		{Client: "w", Mode: ReadWrite, Preempt: true},
	} {
		if _, err := d.Reserve(q); !errors.Is(err, ErrReadOnly) || ended {
			t.Errorf("%+v: %v, a reader was ended: %v", q, err, ended)
		}
	}
	n, err := d.NBD("n", false, nil)
	if err != nil || !n.ReadOnly() {
		t.Fatalf("an NBD client: %v", err)
	}
	if _, err := d.Reserve(Request{Client: "other"}); err != nil {
		t.Errorf("another reader: %v", err)
	}
	d.AdmitWriters()
	if m, err := d.NBD("m", false, nil); err != nil || m.ReadOnly() || !n.ReadOnly() {
		t.Errorf("NBD clients after it: %v", err)
	}
	reader.Release()
	for i := range 10 {
		if _, err := d.NBD(fmt.Sprint(i), false, nil); err != nil {
			t.Fatal(err)
		}
	}
	if err := d.RefuseWriters(); err == nil || !strings.HasSuffix(err.Error(), "has it open read-write, and 3 more") {
		t.Errorf("many writers: %v", err)
	}
}
