package interop

import (
	"context"
	"fmt"

	"github.com/viablk/viablk/via"
)

// PingPong exchanges messages of a size with ibv_rc_pingpong: each end sends
// its next message after it has received the other's and its last send has
// completed. The end with first set begins, like the client of the program. The
// caller posts the receives before the connection is established; see
// [End.PingPongReceives].
func (e *End) PingPong(ctx context.Context, receives []*via.Work, rounds, size int, first bool) error {
	send := e.Work(via.OpSend, 0, size)
	posted := first
	if first {
		if err := e.Post(send); err != nil {
			return err
		}
	}
	sent, received := 0, 0
	for received < rounds || sent < rounds {
		w, err := e.Wait(ctx)
		if err != nil {
			return fmt.Errorf("after %d sends and %d receives: %w", sent, received, err)
		}
		if w == send {
			sent++
			posted = false
		} else {
			if int(w.Moved) != size {
				return fmt.Errorf("a message of %d bytes, not %d", w.Moved, size)
			}
			received++
			*w = *e.Work(via.OpRecv, size, size)
			if err := e.Post(w); err != nil {
				return err
			}
		}
		maySend := received > sent || first && received == sent
		if !posted && maySend && sent < rounds {
			*send = *e.Work(via.OpSend, 0, size)
			posted = true
			if err := e.Post(send); err != nil {
				return err
			}
		}
	}
	return nil
}

// PingPongReceives returns the initial receives of an end of PingPong.
func (e *End) PingPongReceives(size int) []*via.Work {
	receives := make([]*via.Work, Depth)
	for i := range receives {
		receives[i] = e.Work(via.OpRecv, size, size)
	}
	return receives
}

// PingPongMemory returns the memory size of an end for messages of a size.
func PingPongMemory(size int) int { return (2*size + 4095) &^ 4095 }
