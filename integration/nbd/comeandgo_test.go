package nbd

import (
	"fmt"
	"testing"

	"github.com/viablk/viablk/integration/testbed"
)

// TestClientsComeAndGo connects again and again, one client at once after the
// other: what the last one had may not be in the way of the next.
func TestClientsComeAndGo(t *testing.T) {
	testbed.Requires(t, "nbdsh")
	const clients = 200
	testbed.EachWay(t, testbed.MemoryDisk("1MiB"), func(t *testing.T, s testbed.Service) {
		files := s.IdleFiles(t)
		out := testbed.Succeed(t, testbed.StartPath(t, nil, testbed.Locate("python3"), "testdata/comeandgo.py", s.URI, fmt.Sprint(clients)))
		if out != "" {
			t.Errorf("of %d clients:\n%s", clients, out)
		}
		s.Idle(t)
		testbed.Eventually(t, "files of clients being closed", func() (any, bool) {
			n := s.Attach.Files()
			return n, n <= files
		})
	})
}
