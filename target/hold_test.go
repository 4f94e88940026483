package target

import (
	"testing"
	"time"

	"github.com/viablk/viablk/internal/wire"
)

// TestBeatsOfAHolder: an I/O connection may be silent for ever, but not while it
// holds a range that never becomes free.
func TestBeatsOfAHolder(t *testing.T) {
	for name, row := range map[string]struct {
		holding int
		moves   int // a request lets go between so many beats and the next
		ends    bool
	}{
		"holds nothing":  {0, 0, false},
		"moves":          {2, 1, false},
		"moves slowly":   {2, missedBeats - 1, false},
		"is stuck":       {1, 0, true},
		"moves too late": {1, missedBeats + 1, true},
	} {
		t.Run(name, func(t *testing.T) {
			c := &conn{role: wire.RoleIO, holding: row.holding, server: &Server{cfg: Config{Heartbeat: time.Second}}}
			for beat := 1; beat <= 3*missedBeats && c.failure == nil; beat++ {
				c.beat()
				c.moved = row.moves > 0 && beat%row.moves == 0
				if row.ends && c.failure != nil && beat != missedBeats {
					t.Errorf("the connection ends after %d beats", beat)
				}
			}
			if ends := c.failure != nil; ends != row.ends {
				t.Errorf("the connection ends: %v, %v", ends, c.failure)
			}
		})
	}
}
