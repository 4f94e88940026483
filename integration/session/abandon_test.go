package session

import (
	"bytes"
	"context"
	"testing"

	"github.com/viablk/viablk/integration/history"
	"github.com/viablk/viablk/integration/testbed"
)

// TestDeadClientsQueueIsDropped: a client of a limited disk dies with writes of
// one block queued. Those that had not begun never begin, and its successor
// reads what it writes itself.
func TestDeadClientsQueueIsDropped(t *testing.T) {
	const queued = 120
	for _, w := range testbed.Ways {
		t.Run(w.Name, func(t *testing.T) {
			t.Parallel()
			s := w.Serve(t, testbed.Program(t), testbed.Disk{Name: "disk", Spec: "limit:iops=4,burst=1ms:memory:1MiB"})
			admitted := func() uint64 { return s.Target.Status().Limits[0].Status.Requests }
			network, address := testbed.AddressOf(t, s.URI)
			dial := func() *history.Conn {
				c, err := history.Dial(context.Background(), network, address, "disk")
				testbed.Must(t, err)
				return c
			}
			first := dial()
			for range queued {
				go func() { _, _ = first.WriteAt(bytes.Repeat([]byte{1}, 4096), 0) }() // its server never answers
			}
			testbed.Eventually(t, "all writes at the server", func() (any, bool) {
				st := s.Attach.Status().NBD
				return st, len(st.Connections) == 1 && st.Connections[0].Writes == queued
			})
			testbed.Must(t, first.Abort())
			testbed.Eventually(t, "the end of the connection", func() (any, bool) {
				st := s.Attach.Status().NBD
				return st, len(st.Connections) == 0
			})
			begun := admitted()
			if begun >= queued {
				t.Fatalf("%d of %d writes of a dead client began", begun, queued)
			}
			second := dial()
			mine, got := bytes.Repeat([]byte{2}, 4096), make([]byte, 4096)
			_, err := second.WriteAt(mine, 0)
			testbed.Must(t, err)
			for range 4 {
				_, err = second.ReadAt(got, 0)
				testbed.Must(t, err)
				if !bytes.Equal(got, mine) {
					t.Fatalf("the block holds %d, which the dead client wrote", got[0])
				}
			}
			if now := admitted(); now != begun+5 {
				t.Errorf("%d requests began after the dead client's %d, and its successor sent 5", now-begun, begun)
			}
			testbed.Must(t, second.Close())
		})
	}
}
