//go:build vm

package interop

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/viablk/viablk/integration/vm"
)

// scenario bounds what one of the tests of this file does in a machine, and
// lifetime all that happens there: both decide nothing but failure.
const (
	scenario = 5 * time.Minute
	lifetime = 20 * time.Minute
)

// bootVerbs boots a machine with rdma_rxe on one end of a veth pair, as boot
// does, for programs that use libibverbs.
func bootVerbs(t *testing.T, files map[string]string, tools ...string) *vm.VM {
	t.Helper()
	v := vm.Boot(t, vm.Config{
		Memory:  768,
		Modules: []string{"veth"},
		Tools:   append([]string{"rdmacm-utils/rping", "netbase/etc/protocols"}, tools...),
		Files:   files,
		Limit:   lifetime,
	}.WithRDMA())
	connectEnds(v)
	return v
}

// TestVerbsConformance runs the conformance kit of via/viatest on rdma_rxe, a
// part in each machine. -short leaves out reliable reception, which an adapter
// does as reliable delivery.
func TestVerbsConformance(t *testing.T) {
	t.Parallel()
	kit := vm.DynamicTestProgram(t, modulePath+"/via/verbs", "verbs")
	for _, part := range []string{
		"early_adopter/delivery", "early_adopter/reception", "functional/delivery/^[A-O]", "functional/delivery/^[P-Z]",
		"functional/reception", "full", "Matrix",
	} {
		if testing.Short() && strings.Contains(part, "reception") {
			continue
		}
		t.Run(part, func(t *testing.T) {
			v := bootVerbs(t, map[string]string{"/usr/bin/kit": kit})
			runTests(t, v, "TestConformance/"+part)
		})
	}
}

// TestVerbsDevice runs the other tests of package verbs, and the table of
// rights on rdma_rxe.
func TestVerbsDevice(t *testing.T) {
	t.Parallel()
	v := bootVerbs(t, map[string]string{
		"/usr/bin/kit":    vm.DynamicTestProgram(t, modulePath+"/via/verbs", "verbs"),
		"/usr/bin/rights": vm.DynamicTestProgram(t, modulePath+"/integration/rights", "verbs"),
		"/usr/bin/end":    vm.Program(t, modulePath+"/integration/vm/interop/end"),
	})
	t.Run("rights", func(t *testing.T) { runProgram(t, v, "rights", "TestTable/.*verbs") })
	t.Run("cookies", func(t *testing.T) { testCookies(t, v) })
	runTests(t, v, "TestDevice")
	ctx, cancel := context.WithTimeout(t.Context(), scenario)
	defer cancel()
	if err := v.Await(ctx, "gone", "sh", "-c", `[ -z "$(rdma link)" ] && echo gone`); err != nil {
		t.Error(err)
	}
}

// testCookies has the connection manager of the kernel's device return the
// cookies that a listener of via/roce asks for.
func testCookies(t *testing.T, v *vm.VM) {
	ctx, cancel := context.WithTimeout(t.Context(), scenario)
	defer cancel()
	const service, requests = 19200, 12
	holder, err := v.Start(ctx, strings.Fields(ours("hold", far4, near4, service, requests, 0, ""))...)
	if err != nil {
		t.Fatal(err)
	}
	if err := holder.Await(ctx, "listening"); err != nil {
		t.Fatal(err)
	}
	runProgram(t, v, "kit", "TestCookies", fmt.Sprintf("VIABLK_VERBS_HOLDER=%s:%d", far4, service))
	if t.Failed() {
		_ = holder.Signal(15)
	}
	if r := holder.Wait(); !r.OK() {
		t.Error(r)
	}
}

// runTests runs tests of package verbs in a machine.
func runTests(t *testing.T, v *vm.VM, name string) {
	t.Helper()
	runProgram(t, v, "kit", name)
}

// runProgram runs tests of a program in a machine, with more variables in its
// environment.
func runProgram(t *testing.T, v *vm.VM, program, name string, variables ...string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), scenario)
	defer cancel()
	command := append([]string{"env", "VIABLK_VERBS_ADDRESS=" + near4}, variables...)
	r := v.Run(ctx, append(command, program, "-test.v", "-test.run", name)...)
	if !r.OK() || !strings.Contains(r.Stdout, "--- PASS") {
		t.Error(readReport(r.Stdout).failure(r))
	}
	for line := range strings.Lines(r.Stdout) {
		if strings.HasPrefix(line, "viatest") {
			t.Log(strings.TrimSpace(line))
		}
	}
}

// end is one side of a pair: the provider that it uses, where it runs, and what
// a URI says of it when it connects.
type end struct{ provider, netns, from string }

// command returns a command of an end.
func (e end) command(args ...string) []string {
	if e.netns != "" {
		args = append([]string{"ip", "netns", "exec", e.netns}, args...)
	}
	return args
}

// uri returns the URI by which an end reaches a disk, or the list of disks.
func (e end) uri(address, disk string, options ...string) string {
	if e.from != "" {
		options = append(options, e.from)
	}
	uri := fmt.Sprintf("via+%s://%s/%s", e.provider, address, disk)
	if len(options) != 0 {
		uri += "?" + strings.Join(options, "&")
	}
	return uri
}

// pair is a target and an initiator, and the address of the target.
type pair struct {
	name              string
	target, initiator end
	address           string
	sealed            bool
}

// The folders of certificates in the machine.
const (
	serverFolder, clientFolder = "/server", "/alice"
	ofClient                   = "tls-certificates=" + clientFolder
)

// TestVerbsMeetsRoCE serves and attaches a disk through each pair of the
// providers that speak RoCEv2, in plain or sealed sessions, and has fio verify
// what it writes there.
func TestVerbsMeetsRoCE(t *testing.T) {
	v := bootVerbs(t, map[string]string{
		"/usr/bin/viablk": vm.DynamicProgram(t, modulePath+"/cmd/viablk", "verbs"),
		"/usr/bin/worker": vm.Program(t, modulePath+"/integration/vm/worker"),
	}, "fio/fio")
	v.Must("viablk", "pki", "init", "/ca")
	for _, address := range []string{near4, far4} {
		v.Must("viablk", "pki", "issue", "/ca", "server", address, "--out", serverFolder+address)
	}
	v.Must("viablk", "pki", "issue", "/ca", "client", "alice", "--out", clientFolder)
	// The kernel's device answers to UDP port 4791, wherever it was asked from.
	verbs, near := end{provider: "verbs"}, end{provider: "roce"}
	far := end{provider: "roce", netns: "far", from: "device=" + far4 + ":4791"}
	far6 := end{provider: "roce", netns: "far", from: "device=[" + far6 + "]:4791"}
	for i, p := range []pair{
		{"verbs to verbs", verbs, verbs, near4, true},
		{"roce to verbs", verbs, far, near4, true},
		{"verbs to roce", far, verbs, far4, true},
		{"roce to roce", far, near, far4, false},
		{"roce to verbs, IPv6", verbs, far6, "[" + near6 + "]", false},
		{"verbs to roce, IPv6", far6, verbs, "[fd77::2]", false},
	} {
		t.Run(p.name, func(t *testing.T) { meet(t, v, i, p) })
	}
	t.Run("counters", func(t *testing.T) { testCounters(t, v) })
}

func meet(t *testing.T, v *vm.VM, i int, p pair) {
	ctx, cancel := context.WithTimeout(t.Context(), scenario)
	defer cancel()
	socket := fmt.Sprintf("/run/nbd%d", i)
	admins := []string{fmt.Sprintf("/run/target%d", i), fmt.Sprintf("/run/initiator%d", i)}
	listen := end{provider: p.target.provider}.uri(p.address, "")
	security, options := "--insecure", []string(nil)
	if p.sealed {
		security, options = "--certificates="+serverFolder+p.address, []string{ofClient}
	}
	disk, list := p.initiator.uri(p.address, "disk", options...), p.initiator.uri(p.address, "", options...)
	served, err := v.Start(ctx, p.target.command("viablk", "target", security, "--admin", admins[0], "--keepalive", "30s", "--listen", listen, "--export", "disk=memory:32M")...)
	if err != nil {
		t.Fatal(err)
	}
	if err := v.Await(ctx, "32MiB", p.initiator.command("viablk", "list", list)...); err != nil {
		t.Fatalf("%v; the target: %v", err, served.Output())
	}
	if p.sealed { // before the initiator, which has the port
		testRefused(ctx, t, v, p)
	}
	attached, err := v.Start(ctx, p.initiator.command("viablk", "attach", disk, "--admin", admins[1], "--nbd", "nbd+unix:///disk?socket="+socket)...)
	if err != nil {
		t.Fatal(err)
	}
	if err := v.Await(ctx, "there", "sh", "-c", "[ -S "+socket+" ] && echo there"); err != nil {
		t.Fatalf("%v; the initiator: %v", err, attached.Output())
	}
	for _, job := range []string{"--bs=4k --size=1M", "--bs=128k --size=8M", "--bsrange=512-300k --size=4M"} {
		fio := "fio --minimal --name=v --ioengine=nbd --uri=nbd+unix:///disk?socket=" + socket +
			" --rw=randwrite --iodepth=8 --verify=crc32c --verify_fatal=1 " + job
		if r := v.Run(ctx, p.initiator.command(strings.Fields(fio)...)...); !r.OK() {
			t.Error(r)
		}
	}
	// A disk in memory gives pages back, which a device that pins memory would
	// still read.
	if r := v.Run(ctx, p.initiator.command("worker", "zeroes", "-socket", socket, "-export", "disk")...); !r.OK() {
		t.Error(r)
	}
	for i, peer := range []string{"alice", p.address} {
		r := v.Run(ctx, "viablk", "status", "--admin", admins[i], "-o", "json")
		if !r.OK() || strings.Contains(r.Stdout, cipher) != p.sealed || strings.Contains(r.Stdout, `"`+peer+`"`) != p.sealed {
			t.Errorf("want %s and the peer %s: %v; %v", cipher, peer, p.sealed, r)
		}
	}
	for _, c := range []*vm.Command{attached, served} {
		_ = c.Signal(15)
		if r := c.Wait(); !r.OK() {
			t.Error(r)
		} else if t.Failed() {
			t.Log(r)
		}
	}
}

// cipher is that of sealed sessions, in JSON.
const cipher = `"cipher": "AES-256-GCM"`

// testRefused checks that the target tells an initiator without certificates
// nothing, and one with certificates how the session is sealed.
func testRefused(ctx context.Context, t *testing.T, v *vm.VM, p pair) {
	t.Helper()
	r := v.Run(ctx, p.initiator.command("viablk", "info", p.initiator.uri(p.address, "disk"))...)
	if r.Err != nil || r.Code != 77 || strings.Count(r.Stderr, "\n") != 1 || r.Stdout != "" {
		t.Errorf("want exit code 77 and one line without certificates: %v", r)
	}
	r = v.Run(ctx, p.initiator.command("viablk", "info", "-o", "json", p.initiator.uri(p.address, "disk", ofClient))...)
	if !r.OK() || !strings.Contains(r.Stdout, cipher) || !strings.Contains(r.Stdout, `"`+p.address+`"`) {
		t.Errorf("want %s and the peer %s: %v", cipher, p.address, r)
	}
}

// TestVerbsRefusals is what keeps RDMA from working, each told in one line that
// says what to do.
func TestVerbsRefusals(t *testing.T) {
	t.Parallel()
	v := bootVerbs(t, map[string]string{
		"/usr/bin/viablk": vm.DynamicProgram(t, modulePath+"/cmd/viablk", "verbs"),
		"/usr/bin/plain":  vm.Program(t, modulePath+"/cmd/viablk"),
	}, "util-linux/setpriv")
	at := "via+verbs://" + near4 + "/"
	target := func(uri string) string {
		return "viablk target --insecure --log-level error --admin none --listen " + uri + " --export disk=memory:1M"
	}
	const unlocked = "ulimit -l 16; exec setpriv --bounding-set=-ipc_lock --inh-caps=-ipc_lock "
	served, err := v.Start(t.Context(), "sh", "-c", "exec "+target(at))
	if err != nil {
		t.Fatal(err)
	}
	if err := served.Await(t.Context(), "disk"); err != nil {
		t.Fatal(err)
	}
	if out := v.Must("viablk", "devices"); !strings.Contains(out, "rxe0") || !strings.Contains(out, "active") {
		t.Errorf("the list of devices is %s", out)
	}
	if out := v.Must("viablk", "devices", "-o", "json"); !strings.Contains(out, `"viablk.devices/v1"`) || !strings.Contains(out, `"mtu": 4096`) {
		t.Errorf("the list of devices is %s", out)
	}
	for _, c := range []struct {
		before, command string
		code            int
		says            string
	}{
		{"", "plain devices", 78, "build it with -tags verbs"},
		{"", "plain list " + at, 78, "install the package viablk-verbs"},
		{"", target(at + "?device=rxe7"), 78, `no RDMA device "rxe7": viablk devices lists those of this host`},
		// No process has the port of RoCE there.
		{"", "viablk list --timeout 3s via+verbs://" + far4 + "/", 75, "its connection manager loaded?"},
		{"", "viablk list --timeout 3s via+verbs://127.0.0.1/", 75, "127.0.0.1"},
		{"", unlocked + "viablk attach " + at + "disk --nbd nbd://127.0.0.1/", 78, "raise it with ulimit -l"},
		{"ip link set near down", target(at), 75, "bring its network interface up"},
		{"rdma link delete rxe0", target(at), 78, "rdma link add rxe0 type rxe netdev INTERFACE"},
		{"", "viablk devices", 78, "rdma link add rxe0 type rxe netdev INTERFACE"},
	} {
		if strings.HasPrefix(c.before, "rdma") { // waits for who has the device open
			_ = served.Signal(15)
			served.Wait()
		}
		if c.before != "" {
			v.Must(strings.Fields(c.before)...)
		}
		ctx, cancel := context.WithTimeout(t.Context(), scenario)
		r := v.Run(ctx, "sh", "-c", c.command)
		cancel()
		if r.Err != nil || r.Code != c.code || !strings.Contains(r.Stderr, c.says) || strings.Count(r.Stderr, "\n") != 1 {
			t.Errorf("want exit code %d and one line with %q: %v", c.code, c.says, r)
		}
	}
}
