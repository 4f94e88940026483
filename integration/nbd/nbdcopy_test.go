package nbd

import (
	"fmt"
	"testing"

	"github.com/viablk/viablk/integration/testbed"
)

func TestNbdcopyBothWays(t *testing.T) {
	for _, c := range []struct {
		name string
		data []byte
		args []string
	}{
		{"random", testbed.RandomBytes(24 << 20), []string{"--connections=4", "--requests=32"}},
		{"sparse", testbed.SparseBytes(48 << 20), nil},
		{"odd size", testbed.RandomBytes(5<<20 + 7*512), []string{"--request-size=4096", "--requests=64"}},
		{"large requests", testbed.RandomBytes(33<<20 + 512), []string{"--request-size=33554432"}},
		{"one sector", testbed.RandomBytes(512), []string{"--synchronous"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			source := testbed.WriteFile(t, "source", c.data)
			testbed.EachWay(t, testbed.MemoryDisk(fmt.Sprint(len(c.data))), func(t *testing.T, s testbed.Service) {
				testbed.Run(t, "nbdcopy", append(c.args, "--flush", source, s.URI)...)
				back := testbed.WriteFile(t, "back", nil)
				testbed.Run(t, "nbdcopy", append(c.args, s.URI, back)...)
				testbed.CheckFile(t, back, c.data)
			})
		})
	}
}
