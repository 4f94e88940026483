package via

import "testing"

// namedIncoming is a request of a host.
type namedIncoming struct {
	Incoming
	host string
}

func (in namedIncoming) RemoteHost() string { return in.host }

// trustedIncoming is a request of a provider that knows its peers.
type trustedIncoming struct{ namedIncoming }

func (trustedIncoming) Origin() string  { return "" }
func (trustedIncoming) PeerUID() uint32 { return 7 }

// wrappedIncoming is a request inside another.
type wrappedIncoming struct{ Incoming }

func (w wrappedIncoming) Unwrap() Incoming { return w.Incoming }

// Connections from one host have one origin, from whatever port or, in a
// network of IPv6, address they come.
func TestOrigin(t *testing.T) {
	for host, want := range map[string]string{
		"192.0.2.1:4791":         "192.0.2.1",
		"192.0.2.1:1":            "192.0.2.1",
		"[::ffff:192.0.2.1]:7":   "192.0.2.1",
		"[2001:db8:1:2::7]:4791": "2001:db8:1:2::/64",
		"[2001:db8:1:2:9::]:1":   "2001:db8:1:2::/64",
		"[fe80::1%eth0]:4791":    "fe80::1%eth0",
		"loopback":               "loopback",
		"192.0.2.1":              "192.0.2.1",
		"":                       "",
	} {
		if got := (&ConnRequest{in: namedIncoming{host: host}}).Origin(); got != want {
			t.Errorf("%q has the origin %q, want %q", host, got, want)
		}
	}
	if got := (&ConnRequest{in: trustedIncoming{namedIncoming{host: "pid 1, uid 0"}}}).Origin(); got != "" {
		t.Errorf("the origin is %q, the provider says none", got)
	}
	if got := (&ConnRequest{in: wrappedIncoming{trustedIncoming{namedIncoming{host: "pid 1, uid 0"}}}}).Origin(); got != "" {
		t.Errorf("inside another request the origin is %q", got)
	}
	if got := (*ConnRequest)(nil).Origin(); got != "" {
		t.Errorf("no request has the origin %q", got)
	}
}

// A request has the user of its peer if the provider has it, also inside
// another request.
func TestPeerUID(t *testing.T) {
	local := trustedIncoming{namedIncoming{host: "pid 1, uid 7"}}
	for _, in := range []Incoming{local, wrappedIncoming{wrappedIncoming{local}}} {
		if uid, ok := (&ConnRequest{in: in}).PeerUID(); uid != 7 || !ok {
			t.Errorf("%T has the user %d, %v", in, uid, ok)
		}
	}
	for _, r := range []*ConnRequest{nil, {}, {in: namedIncoming{host: "192.0.2.1:1"}}, {in: wrappedIncoming{namedIncoming{}}}} {
		if uid, ok := r.PeerUID(); ok {
			t.Errorf("a peer of another host has the user %d", uid)
		}
	}
}
