package viatest

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/viablk/viablk/via"
)

var namesCases = []kitCase{
	{"NamesAndAddresses", EarlyAdopter, "a name has its addresses by index, an address its name", anyLevel, 0, namesAndAddresses},
	{"ConnectByName", EarlyAdopter, "the address that a name has is one to connect to", anyLevel, 0, connectByName},
	{"UnknownNames", EarlyAdopter, "unknown names, addresses and indices are errors of the name service", anyLevel, 0, unknownNames},
	{"NameServiceOnce", EarlyAdopter, "a NIC has one name service at a time, and none before and after", anyLevel, 0, nameServiceOnce},
	{"NameServiceClosedNIC", EarlyAdopter, "a closed NIC refuses names as an invalid parameter", anyLevel, 0, nameServiceClosedNIC},
	{"Discovery", Full, "a host is discovered while it has a listener", anyLevel, NeedsDiscovery, discovery},
	{"DiscoveryRefusals", Full, "discovery needs a hop, time and an open NIC", anyLevel, NeedsDiscovery, discoveryRefusals},
}

// lacksDiscovery says whether a NIC's fabric has no discovery.
func lacksDiscovery(n *via.NIC) bool {
	_, err := n.Discover(context.Background(), 1)
	return errors.Is(err, via.ErrNotSupported)
}

// hosts returns a table of hosts with the server's address in it.
func (e *env) hosts() *via.Hosts {
	e.t.Helper()
	var escaped strings.Builder
	for _, c := range []byte(e.service().Host) {
		fmt.Fprintf(&escaped, "\\%03o", c)
	}
	h, err := via.ParseHosts(strings.NewReader("elsewhere other server\n" + escaped.String() + " server\n"))
	e.check(err, "parse hosts")
	return h
}

func namesAndAddresses(e *env) {
	n, ctx := e.client.nic, e.timeout()
	e.check(n.InitNameService(e.hosts()), "init name service")
	for _, c := range []struct {
		name  string
		index int
		want  string
	}{
		{"server", 0, "elsewhere"},
		{"server", 1, e.service().Host},
		{"SERVER", 1, e.service().Host},
		{"other", 0, "elsewhere"},
	} {
		got, err := n.HostByName(ctx, c.name, c.index)
		e.check(err, "host by name")
		if got != c.want {
			e.t.Errorf("address %d of %s is %q, want %q", c.index, c.name, got, c.want)
		}
	}
	for host, want := range map[string]string{"elsewhere": "other", e.service().Host: "server"} {
		got, err := n.HostByAddr(ctx, host)
		e.check(err, "host by address")
		if got != want {
			e.t.Errorf("the name of %q is %q, want %q", host, got, want)
		}
	}
	e.check(n.ShutdownNameService(), "shut name service down")
}

func connectByName(e *env) {
	e.idle()
	l := e.listen(e.service())
	e.check(e.client.nic.InitNameService(e.hosts()), "init name service")
	host, err := e.client.nic.HostByName(e.timeout(), "server", 1)
	e.check(err, "host by name")
	dial := e.dial(e.timeout(), e.client.vi, via.Address{Host: host, Discriminator: l.Addr().Discriminator})
	r, err := l.Wait(e.timeout())
	e.check(err, "wait for a request")
	e.check(r.Accept(e.timeout(), e.server.vi), "accept")
	e.check(dial.wait(), "connect")
}

func unknownNames(e *env) {
	n, ctx := e.client.nic, e.timeout()
	e.check(n.InitNameService(e.hosts()), "init name service")
	byName := func(name string, index int) {
		_, err := n.HostByName(ctx, name, index)
		e.wants(err, via.ErrNameService, fmt.Sprintf("address %d of %q", index, name))
	}
	byName("unknown", 0)
	byName("", 0)
	byName("server", -1)
	byName("server", 2)
	for _, host := range []string{"nowhere", "", "other"} {
		_, err := n.HostByAddr(ctx, host)
		e.wants(err, via.ErrNameService, fmt.Sprintf("name of %q", host))
	}
}

// nameless checks that every call that needs a name service fails with a code.
func (e *env) nameless(n *via.NIC, code error) {
	e.t.Helper()
	_, err := n.HostByName(e.timeout(), "server", 0)
	e.wants(err, code, "host by name")
	_, err = n.HostByAddr(e.timeout(), "elsewhere")
	e.wants(err, code, "host by address")
	e.wants(n.ShutdownNameService(), code, "shut name service down")
}

func nameServiceOnce(e *env) {
	n := e.client.nic
	e.nameless(n, via.ErrNameService)
	e.wants(n.InitNameService(nil), via.ErrInvalidParameter, "init with nil")
	for range 2 {
		e.check(n.InitNameService(e.hosts()), "init name service")
		e.wants(n.InitNameService(e.hosts()), via.ErrNameService, "init again")
		e.nameless(e.server.nic, via.ErrNameService) // another NIC is another matter
		e.check(n.ShutdownNameService(), "shut name service down")
		e.nameless(n, via.ErrNameService)
	}
}

func nameServiceClosedNIC(e *env) {
	n := e.client.nic
	e.check(n.InitNameService(e.hosts()), "init name service")
	e.client.close()
	e.nameless(n, via.ErrInvalidParameter)
	e.wants(n.InitNameService(e.hosts()), via.ErrInvalidParameter, "init name service")
}

// discovers waits until the client discovers a host, or until it does not any
// more: a fabric may take its time.
func (e *env) discovers(host string, want bool) {
	e.t.Helper()
	for deadline := time.Now().Add(caseTimeout); ; pause() {
		found, err := e.client.nic.Discover(e.timeout(), 1)
		e.check(err, "discover")
		for i, n := range found {
			if n.Hops != 1 || i > 0 && found[i-1].Host >= n.Host {
				e.t.Fatalf("neighbours within 1 hop: %v; want each once, sorted", found)
			}
		}
		if slices.Contains(found, via.DiscoveredHost{Host: host, Hops: 1}) == want {
			return
		}
		if time.Now().After(deadline) {
			e.t.Fatalf("timed out waiting for host %q to be discovered: %t; found: %v", host, want, found)
		}
	}
}

func discovery(e *env) {
	host := e.service().Host
	e.discovers(host, false)
	for range 2 {
		first, err := e.server.nic.Listen(e.service())
		e.check(err, "listen")
		second, err := e.server.nic.Listen(e.service())
		e.check(err, "listen")
		e.discovers(host, true)
		e.check(first.Close(), "close listener")
		e.discovers(host, true) // it has a listener
		e.check(second.Close(), "close listener")
		e.discovers(host, false)
	}
}

func discoveryRefusals(e *env) {
	n := e.client.nic
	for _, hops := range []int{-1 << 31, -1, 0} {
		_, err := n.Discover(e.timeout(), hops)
		e.wants(err, via.ErrInvalidParameter, fmt.Sprintf("discover within %d hops", hops))
	}
	expired, cancel := context.WithCancel(context.Background())
	cancel()
	_, err := n.Discover(expired, 1)
	e.wants(err, via.ErrTimeout, "discover with an expired context")
	e.client.close()
	_, err = n.Discover(e.timeout(), 1)
	e.wants(err, via.ErrInvalidParameter, "discover from a closed nic")
}
