package target

import (
	"testing"
	"time"

	"github.com/viablk/viablk/internal/handshake"
	"github.com/viablk/viablk/internal/seal"
	"github.com/viablk/viablk/internal/wire"
)

// authenticationOf returns what a handshake established that named its keys by
// a number.
func authenticationOf(t *testing.T, name byte) *authentication {
	t.Helper()
	ekm := [seal.ExportSize]byte{name}
	s, err := seal.NewSession(ekm[:], [32]byte{1}, [32]byte{2}, [16]byte{name}, seal.Limits{})
	if err != nil {
		t.Fatal(err)
	}
	return &authentication{&handshake.Result{Session: s}, time.Time{}}
}

// Connections join a session by its keys, amid a rekey by those from before
// too, and by nothing else: not by keys that have retired, and not when the
// session is gone, which leaves nothing in the table.
func TestKeysThatJoin(t *testing.T) {
	table := &sessionTable{byID: map[[16]byte]*session{}, byKeys: map[[16]byte]*session{}}
	exports := &exportTable{}
	first := authenticationOf(t, 1)
	s, reason, _ := table.begin(&signals{}, client{}, &wire.LoginRequest{SessionID: [16]byte{7}}, first)
	if reason != wire.ReasonNone {
		t.Fatal(reason)
	}
	joins := func(when string, want ...byte) {
		t.Helper()
		for name := range byte(5) {
			expected := false
			for _, w := range want {
				expected = expected || w == name
			}
			keys := table.keys([16]byte{name})
			if (keys != nil) != expected || keys != nil && (keys.Name() != [16]byte{name} || !s.admits(&handshake.Result{Session: keys})) {
				t.Errorf("%s: keys %d: %v", when, name, keys != nil)
			}
		}
	}
	joins("at first", 1)
	for name := byte(2); name < 4; name++ {
		if !table.replaceKeys(s, authenticationOf(t, name)) {
			t.Fatal("no rekey")
		}
		joins("amid a rekey", name-1, name)
	}
	old := table.keys([16]byte{2})
	table.retireKeys(s)
	joins("after a rekey", 3)
	table.retireKeys(s)
	joins("once more", 3)
	if _, err := old.Proof(seal.Target); err != seal.ErrCleared {
		t.Errorf("the old keys are known: %v", err)
	}
	other := authenticationOf(t, 3)
	if s.admits(other.Result) {
		t.Error("a connection with other keys of the same name is admitted")
	}
	table.replaceKeys(s, authenticationOf(t, 4))
	table.finish(s, exports)
	joins("at the end")
	if len(table.byKeys)+len(table.byID) != 0 {
		t.Errorf("left are %d names of keys and %d sessions", len(table.byKeys), len(table.byID))
	}
	if table.replaceKeys(s, authenticationOf(t, 2)) {
		t.Error("a session that is gone has other keys")
	}
}
