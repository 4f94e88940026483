//go:build vm

package interop

import (
	"context"
	"fmt"
	"strings"
	"testing"

	"github.com/viablk/viablk/integration/vm"
)

const modulePath = "github.com/viablk/viablk"

// The addresses of the two ends.
const (
	near4, near6 = "10.77.0.1", "fd77::1"
	far4, far6   = "10.77.0.2", "fd77::2"
)

// world is one machine: rdma_rxe on one end of a veth pair, package roce in a
// network namespace at the other.
type world struct{ *vm.VM }

func boot(t *testing.T) world {
	t.Helper()
	v := world{vm.Boot(t, vm.Config{
		Modules: []string{"veth"},
		Tools:   []string{"rdmacm-utils/rping", "netbase/etc/protocols"},
		Files:   map[string]string{"/usr/bin/end": vm.Program(t, modulePath+"/integration/vm/interop/end")},
		Limit:   lifetime,
	}.WithRDMA())}
	connectEnds(v.VM)
	return v
}

// connectEnds makes the veth pair, and the device on its near end.
func connectEnds(v *vm.VM) {
	for _, command := range []string{
		"ip netns add far",
		"ip link add near type veth peer name far netns far",
		"ip link set lo up",
		"ip link set near mtu 4500 up",
		"ip -n far link set far mtu 4500 up",
		"ip address add " + near4 + "/24 dev near",
		"ip address add " + near6 + "/64 dev near nodad",
		"ip -n far address add " + far4 + "/24 dev far",
		"ip -n far address add " + far6 + "/64 dev far nodad",
		"rdma link add rxe0 type rxe netdev near",
	} {
		v.Must(strings.Fields(command)...)
	}
}

// gid returns the index of rxe's entry for an address.
func (v world) gid(t *testing.T, address string) string {
	t.Helper()
	want := map[string]string{
		near4: "0000:0000:0000:0000:0000:ffff:0a4d:0001",
		near6: "fd77:0000:0000:0000:0000:0000:0000:0001",
	}[address]
	for i := range 8 {
		index := fmt.Sprint(i)
		if strings.TrimSpace(v.Must("cat", "/sys/class/infiniband/rxe0/ports/1/gids/"+index)) == want {
			return index
		}
	}
	t.Fatalf("rxe0 has no entry for %s", address)
	return ""
}

// play runs a server until it listens, then a client, and wants both to
// succeed.
func (v world) play(t *testing.T, server, listens, probe, client string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), scenario)
	defer cancel()
	s, err := v.Start(ctx, strings.Fields(server)...)
	if err != nil {
		t.Fatal(err)
	}
	if err := v.Await(ctx, listens, strings.Fields(probe)...); err != nil {
		t.Fatalf("%v; the server: %v", err, s.Output())
	}
	if r := v.Run(ctx, strings.Fields(client)...); !r.OK() {
		t.Error(r)
		_ = s.Signal(15)
	}
	if r := s.Wait(); !r.OK() {
		t.Error(r)
	}
}

// ours runs package roce.
func ours(role, local, peer string, port, rounds, size int, more string) string {
	return fmt.Sprintf("ip netns exec far end -role %s -local %s -peer %s -port %d -rounds %d -size %d %s",
		role, local, peer, port, rounds, size, more)
}

func TestRxe(t *testing.T) {
	t.Parallel()
	v := boot(t)
	for _, at := range []struct{ name, near, far string }{
		{"IPv4", near4, far4}, {"IPv6", near6, far6},
	} {
		t.Run(at.name, func(t *testing.T) {
			for _, size := range []int{64, 3001, 20000} {
				t.Run(fmt.Sprintf("rping client/%d", size), func(t *testing.T) { v.rpingClient(t, at.near, at.far, size) })
				t.Run(fmt.Sprintf("rping server/%d", size), func(t *testing.T) { v.rpingServer(t, at.near, at.far, size) })
			}
			gid := v.gid(t, at.near)
			// Our PSNs wrap where psn says so. Those of the program are random,
			// so that they wrap by chance; a wrap of the peer's is what package
			// rc simulates.
			for _, c := range []struct{ size, rounds, mtu, psn int }{
				{4096, 200, 4096, 0xffff80}, {4001, 200, 1024, 0xffff00}, {20000, 50, 2048, 0xffffe0}, {1, 200, 256, 0},
			} {
				t.Run(fmt.Sprintf("ibv_rc_pingpong/%d by %d", c.size, c.mtu), func(t *testing.T) {
					theirs := fmt.Sprintf("ibv_rc_pingpong -d rxe0 -g %s -m %d -s %d -n %d -r 64 -c", gid, c.mtu, c.size, c.rounds)
					// The program listens at IPv4 addresses alone, whatever its
					// GID.
					more := fmt.Sprintf("-mtu %d -psn %d -exchange ", c.mtu, c.psn)
					v.play(t, theirs, ":18515 ", "netstat -ltn",
						ours("pingpong-client", at.far, at.near, 18515, c.rounds, c.size, more+near4))
					v.play(t, ours("pingpong-server", at.far, at.near, 18515, c.rounds, c.size, more+far4),
						":18515 ", "ip netns exec far netstat -ltn", theirs+" "+far4)
				})
			}
		})
	}
}

const rounds = 20

// rpingClient has rping ask us.
func (v world) rpingClient(t *testing.T, near, far string, size int) {
	service := 7000 + size%1000
	v.play(t, ours("rping-server", far, near, service, rounds, size, ""), "4791", "ip netns exec far netstat -lun",
		fmt.Sprintf("rping -c -a %s -p %d -C %d -S %d -V", far, service, rounds, size))
}

// rpingServer has us ask rping.
func (v world) rpingServer(t *testing.T, near, far string, size int) {
	service := 8000 + size%1000
	v.play(t, fmt.Sprintf("rping -s -a %s -p %d -C %d -S %d -V", near, service, rounds, size),
		"LISTEN", "rdma resource show cm_id", ours("rping-client", far, near, service, rounds, size, ""))
}
