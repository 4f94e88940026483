package porttest

import (
	"fmt"
	"net/netip"
	"os/exec"
	"runtime"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// Addresses of the kernel in a namespace.
const (
	Kernel4 = "192.0.2.1"
	Kernel6 = "2001:db8::1"
)

// Namespace moves the test's goroutine to a new network namespace: a bridge
// with the kernel's addresses. It ends with the test's thread.
func Namespace(tb testing.TB, mtu int) {
	tb.Helper()
	runtime.LockOSThread() // never unlocked: the thread ends with the test
	if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
		tb.Skipf("no network namespace: %v", err)
	}
	IP(tb,
		"link set lo up",
		fmt.Sprintf("link add br0 mtu %d type bridge mcast_snooping 0", mtu),
		"link set br0 addrgenmode none up",
	)
	Address(tb, "br0", Kernel4+"/24", Kernel6+"/64")
}

// Address gives addresses to an interface. With IPv6 the kernel adds the local
// route late; until then it would resolve its own address on the link.
func Address(tb testing.TB, name string, prefixes ...string) {
	tb.Helper()
	for _, prefix := range prefixes {
		IP(tb, fmt.Sprintf("addr add %s dev %s nodad", prefix, name))
		family, addr := "-4", netip.MustParsePrefix(prefix).Addr()
		if addr.Is6() {
			family = "-6"
		}
		AwaitIP(tb, fmt.Sprintf("local %v dev %s", addr, name), func() {}, family, "route", "show", "table", "local")
	}
}

// AwaitIP repeats a command of iproute2 until its output has want.
func AwaitIP(tb testing.TB, want string, before func(), command ...string) {
	tb.Helper()
	for end := time.Now().Add(Timeout); time.Now().Before(end); {
		before()
		out, err := exec.Command("ip", command...).CombinedOutput()
		if err != nil {
			tb.Fatalf("ip: %v: %s", err, out)
		}
		if strings.Contains(string(out), want) {
			return
		}
	}
	tb.Fatalf("ip %s does not say %q", strings.Join(command, " "), want)
}

// IP runs commands of iproute2.
func IP(tb testing.TB, commands ...string) {
	tb.Helper()
	c := exec.Command("ip", "-batch", "-")
	c.Stdin = strings.NewReader(strings.Join(commands, "\n") + "\n")
	if out, err := c.CombinedOutput(); err != nil {
		tb.Fatalf("ip: %v: %s", err, out)
	}
}
