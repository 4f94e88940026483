package roce_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/viablk/viablk/internal/netns"
	"github.com/viablk/viablk/via"
	"github.com/viablk/viablk/via/roce"
)

// ipIn runs commands of iproute2 in a namespace; file, if not nil, is their
// file descriptor 3.
func ipIn(t *testing.T, n *netns.Namespace, file *os.File, lines ...string) {
	t.Helper()
	cmd := exec.Command("ip", "-batch", "-")
	cmd.Stdin = strings.NewReader(strings.Join(lines, "\n"))
	var out strings.Builder
	cmd.Stdout, cmd.Stderr = &out, &out
	if file != nil {
		cmd.ExtraFiles = []*os.File{file}
	}
	if err := errors.Join(n.Start(cmd), cmd.Wait()); err != nil {
		t.Fatalf("ip: %v: %s", err, out.String())
	}
}

// narrowNetwork makes three hosts in a row, of which the middle one routes: the
// MTU on the side of the first is 4500, on the side of the last 1500.
func narrowNetwork(t *testing.T) (first, last *netns.Namespace) {
	t.Helper()
	var hosts [3]*netns.Namespace
	for i := range hosts {
		var err error
		hosts[i], err = netns.New()
		check(t, err)
		t.Cleanup(func() { check(t, hosts[i].Close()) })
	}
	router := hosts[1]
	for i, mtu := range map[int]int{0: 4500, 2: 1500} {
		ipIn(t, router, hosts[i].File(),
			fmt.Sprintf("link add r%d mtu %d type veth peer name veth0 mtu %d netns /proc/self/fd/3", i, mtu, mtu))
		ipIn(t, router, nil, fmt.Sprintf("link set r%d addrgenmode none up", i),
			fmt.Sprintf("addr add 10.9.%d.1/24 dev r%d", i, i), fmt.Sprintf("addr add fd09:%d::1/64 dev r%d nodad", i, i),
			fmt.Sprintf("addr add fe80::1/64 dev r%d nodad", i)) // source of the router's neighbour solicitations
		ipIn(t, hosts[i], nil, "link set lo up", "link set veth0 addrgenmode none up",
			fmt.Sprintf("addr add 10.9.%d.2/24 dev veth0", i), fmt.Sprintf("addr add fd09:%d::2/64 dev veth0 nodad", i),
			fmt.Sprintf("route add default via 10.9.%d.1", i), fmt.Sprintf("route add default via fd09:%d::1", i))
	}
	check(t, router.Do(func() error {
		return errors.Join(
			os.WriteFile("/proc/sys/net/ipv4/ip_forward", []byte("1"), 0),
			os.WriteFile("/proc/sys/net/ipv6/conf/all/forwarding", []byte("1"), 0))
	}))
	check(t, errors.Join(hosts[0].AwaitLink(), hosts[2].AwaitLink()))
	return hosts[0], hosts[2]
}

// askVariable makes the test binary a process that connects to an echo, sends
// it a long message, and prints the path MTU.
const askVariable = "VIABLK_TEST_ROCE_ASK"

// ask is that process.
func ask(host string) error {
	p := roce.New(roce.Options{})
	nic, err := via.OpenNic(p, "")
	if err != nil {
		return err
	}
	tag, err := nic.CreatePtag()
	if err != nil {
		return err
	}
	arena, err := nic.NewArena(1 << 20)
	if err != nil {
		return err
	}
	mem, err := nic.RegisterMem(arena.Bytes(), via.MemAttributes{Ptag: tag})
	if err != nil {
		return err
	}
	cq, err := nic.CreateCQ(8)
	if err != nil {
		return err
	}
	vi, err := nic.CreateVi(via.ViAttributes{Reliability: via.ReliableDelivery, MaxTransferSize: 1 << 20, Ptag: tag},
		via.ViConfig{SendCQ: cq, RecvCQ: cq, SendDepth: 2, RecvDepth: 2})
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	for { // the other process may not be listening yet
		if _, err = vi.Connect(ctx, via.Address{Host: host, Discriminator: "echo"}); err == nil {
			break
		} else if ctx.Err() != nil || !errors.Is(err, via.ErrNotReachable) && !errors.Is(err, via.ErrNoMatch) {
			return err
		}
	}
	for i, op := range []via.Opcode{via.OpRecv, via.OpSend} {
		d, err := mem.NewDescriptor(i*128, 128)
		if err != nil {
			return err
		}
		d.Reset(op)
		d.AddSegment(mem.Addr()+4096+uint64(i)*100_000, mem.Handle(), 100_000)
		if op == via.OpRecv {
			err = vi.PostRecv(d)
		} else {
			err = vi.PostSend(d)
		}
		if err != nil {
			return err
		}
	}
	var batch [4]via.Completion
	for done := 0; done < 2; {
		n := cq.Poll(batch[:])
		for _, c := range batch[:n] {
			if c.Status.Failed() {
				return fmt.Errorf("completed with %v", c.Status)
			}
		}
		if done += n; ctx.Err() != nil {
			return ctx.Err()
		}
		sleep(cq, 100*time.Millisecond)
	}
	fmt.Println(p.Statistics()[0].Shards[0].Links[0].MTU)
	return vi.Disconnect()
}

// Across a router to a link with a smaller MTU, connections use that MTU, in
// both directions of the request: the wide end learns it from the router or the
// peer, the narrow end from its interface.
func TestPathMTUBehindRouter(t *testing.T) {
	first, last := narrowNetwork(t)
	for name, hosts := range map[string][2]string{"IPv4": {"10.9.0.2", "10.9.2.2"}, "IPv6": {"[fd09:0::2]", "[fd09:2::2]"}} {
		for i, ends := range [][2]*netns.Namespace{{first, last}, {last, first}} {
			t.Run(fmt.Sprintf("%s, from the narrow side %v", name, i == 1), func(t *testing.T) {
				to := hosts[1-i] + ":4791"
				process := func(n *netns.Namespace, variable string) (*exec.Cmd, *bytes.Buffer) {
					cmd, out := exec.Command(os.Args[0], "-test.run=^$"), new(bytes.Buffer)
					cmd.Env = append(os.Environ(), variable+"="+to)
					cmd.Stdout, cmd.Stderr = out, out
					check(t, n.Start(cmd))
					return cmd, out
				}
				server, heard := process(ends[1], hostVariable)
				client, said := process(ends[0], askVariable)
				err := client.Wait()
				if err != nil {
					_ = server.Process.Kill()
				}
				if err := errors.Join(err, server.Wait()); err != nil || said.String() != "1024\n" {
					t.Errorf("the path MTU is %q, want 1024; the server says %q: %v", said.String(), heard.String(), err)
				}
			})
		}
	}
}
