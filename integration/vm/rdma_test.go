//go:build vm

package vm

import (
	"context"
	"strings"
	"testing"
)

// Two machines talk over a cable: by IP, and by RDMA between their rdma_rxe.
func TestTwoMachines(t *testing.T) {
	t.Parallel()
	a, b := Cable(t)
	tools := []string{"rdmacm-utils/rping", "perftest/ib_write_bw", "netbase/etc/protocols"}
	machines := BootAll(t,
		Config{Tools: tools, NICs: []NIC{{End: a, Address: "10.77.0.1/24", MTU: 4500}}}.WithRDMA(),
		Config{Tools: tools, NICs: []NIC{{End: b, Address: "10.77.0.2/24", MTU: 4500}}}.WithRDMA())
	server, client := machines[0], machines[1]
	ctx, cancel := context.WithTimeout(t.Context(), 8*waitLimit)
	defer cancel()
	client.Must("ping", "-c", "3", "-i", "0.05", "-s", "4400", "10.77.0.1")
	for _, v := range machines {
		v.Must("rdma", "link", "add", "rxe0", "type", "rxe", "netdev", "eth0")
		for _, want := range []string{"PORT_ACTIVE", "active_mtu:\t\t4096", "RoCE v2"} {
			if out := v.Must("ibv_devinfo", "-v"); !strings.Contains(out, want) {
				t.Errorf("no %q in %s", want, out)
			}
		}
	}
	for _, c := range []struct {
		server, client string
		listens        string
		probe          string
	}{
		{"ibv_rc_pingpong -d rxe0 -g 1 -m 4096 -s 20000 -n 100 -c", "", ":18515 ", "netstat -ltn"},
		{"ib_write_bw -d rxe0 -x 1 -m 4096 -s 65536 -n 100 -F", "", ":18515 ", "netstat -ltn"},
		{
			"rping -s -a 10.77.0.1 -C 50 -S 3000 -V -v", "rping -c -a 10.77.0.1 -C 50 -S 3000 -V",
			"LISTEN", "rdma resource show cm_id",
		},
	} {
		if c.client == "" {
			c.client = c.server + " 10.77.0.1"
		}
		s, err := server.Start(ctx, strings.Fields(c.server)...)
		must(t, err)
		must(t, server.Await(ctx, c.listens, strings.Fields(c.probe)...))
		if r := client.Run(ctx, strings.Fields(c.client)...); !r.OK() {
			t.Error(r)
		}
		if r := s.Wait(); !r.OK() {
			t.Error(r)
		}
	}
}
