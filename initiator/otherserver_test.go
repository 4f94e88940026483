package initiator_test

import (
	"strings"
	"testing"
	"time"

	"github.com/viablk/viablk/initiator"
	"github.com/viablk/viablk/target"
)

// TestPathToOtherProtection: a path to a server of the same target that has
// other protection does not come up, and says why; the session goes on without.
func TestPathToOtherProtection(t *testing.T) {
	sessions, err := target.NewSessions(nil)
	must(t, err)
	sealed := newSealedRemote(t, target.Config{Sessions: sessions}, "memory:8MiB")
	clear := newRemote(t, target.Config{Sessions: sessions}, "memory:8MiB")
	for name, c := range map[string]struct {
		r     *remote
		other string
		want  string
	}{
		"sealed session": {sealed, clear.host, "leave out the certificates"},
		"clear session":  {clear, sealed.host, "certificate"},
	} {
		t.Run(name, func(t *testing.T) {
			d := c.r.dial(t, "a", func(cfg *initiator.Config) {
				lasting(time.Minute)(cfg)
				cfg.OtherHosts = []string{c.other}
			})
			q, err := d.NewQueue(4)
			must(t, err)
			waitFor(t, "a refusal of the path", func() bool { return strings.Contains(d.Status().Paths[1].Error, c.want) })
			use(t, q.(*initiator.Queue), 0, 1)
			if s := states(d); s != [2]initiator.PathState{initiator.PathUp, initiator.PathDown} {
				t.Errorf("states %v", s)
			}
			must(t, q.Close())
		})
	}
}
