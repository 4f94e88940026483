package target

import (
	"testing"

	"github.com/viablk/viablk/internal/handshake"
	"github.com/viablk/viablk/internal/seal"
	"github.com/viablk/viablk/internal/wire"
)

// Servers in clear and sealed ones may have the same sessions: a connection in
// clear joins no sealed session, nor does a sealed one join a session in clear,
// whatever they know of it.
func TestProtectionOfJoinedConnections(t *testing.T) {
	var results []*handshake.Result
	for n := range byte(2) {
		k, err := seal.NewSession(make([]byte, seal.ExportSize), [seal.NonceSize]byte{n}, [seal.NonceSize]byte{}, [seal.NameSize]byte{n}, seal.Limits{})
		if err != nil {
			t.Fatal(err)
		}
		results = append(results, &handshake.Result{Session: k})
	}
	first, second := results[0], results[1]
	for name, c := range map[string]struct {
		of, by *handshake.Result
		want   wire.LoginReason
	}{
		"clear to clear":   {nil, nil, wire.ReasonNone},
		"clear to sealed":  {first, nil, wire.ReasonSession},
		"sealed to clear":  {nil, first, wire.ReasonSession},
		"sealed to sealed": {first, first, wire.ReasonNone},
		"by other keys":    {first, second, wire.ReasonSession},
	} {
		shared := makeSessions()
		s := &session{id: [16]byte{1}, nonce: 7}
		if c.of != nil {
			s.authenticated.Store(&authentication{Result: c.of})
		}
		shared.table.byID[s.id] = s
		found, reason, _ := shared.table.find(&joining{signals: new(signals), proof: c.by}, &wire.LoginRequest{SessionID: s.id, Nonce: 7})
		if reason != c.want || (found == s) != (c.want == wire.ReasonNone) {
			t.Errorf("%s: %v", name, reason)
		}
	}
}
