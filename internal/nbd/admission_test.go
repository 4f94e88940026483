package nbd

import (
	"cmp"
	"errors"
	"fmt"
	"net"
	"os"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"
)

// known is what the model knows of a connection.
type known struct {
	conn   *conn
	origin string
	age    int // when its handshake began
	spoke  bool
	inside bool // has an export
}

// before reports whether k goes before o of the same origin.
func (k *known) before(o *known) bool {
	if k.spoke != o.spoke {
		return o.spoke
	}
	return k.age < o.age
}

// greediest returns the handshake that has to go: the oldest of the origin with
// most handshakes, silent ones first; of several origins the one whose next is
// the oldest.
func greediest(all []*known) *known {
	count, oldest := map[string]int{}, map[string]*known{}
	for _, k := range all {
		if k.inside {
			continue
		}
		count[k.origin]++
		if o := oldest[k.origin]; o == nil || k.before(o) {
			oldest[k.origin] = k
		}
	}
	var worst *known
	for origin, k := range oldest {
		if worst == nil || count[origin] > count[worst.origin] || count[origin] == count[worst.origin] && k.age < worst.age {
			worst = k
		}
	}
	return worst
}

func TestAdmissionAgainstModel(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		limits := &Limits{
			Connections:           rapid.IntRange(1, 9).Draw(t, "connections"),
			ConnectionsPerAddress: rapid.IntRange(0, 3).Draw(t, "per address"),
			Handshakes:            rapid.IntRange(1, 6).Draw(t, "handshakes"),
		}
		a := admission{limits: limits}
		var all []*known
		clock := 0
		forget := func(k *known) { all = slices.DeleteFunc(all, func(o *known) bool { return o == k }) }
		pick := func(t *rapid.T, inside bool) *known {
			var some []*known
			for _, k := range all {
				if k.inside == inside {
					some = append(some, k)
				}
			}
			if len(some) == 0 {
				t.Skip("there is none")
			}
			return rapid.SampledFrom(some).Draw(t, "which")
		}
		inside := func(match func(*known) bool) (n int) {
			for _, k := range all {
				if k.inside && match(k) {
					n++
				}
			}
			return n
		}
		t.Repeat(map[string]func(*rapid.T){
			"begin": func(t *rapid.T) {
				clock++
				k := &known{origin: rapid.SampledFrom([]string{"a", "b", "c"}).Draw(t, "origin"), age: clock}
				k.conn = &conn{clientID: k.origin, local: true, since: time.Unix(int64(clock), 0)}
				all = append(all, k)
				var want *conn
				if len(all)-inside(func(*known) bool { return true }) > limits.Handshakes {
					worst := greediest(all)
					want = worst.conn
					forget(worst)
				}
				if got := a.begin(k.conn); got != want {
					t.Fatalf("victim %+v, want %+v", got, want)
				}
				if want != nil && !errors.Is(a.admit(want, "x"), errEvicted) {
					t.Fatal("a victim is admitted")
				}
			},
			"hear": func(t *rapid.T) {
				k := pick(t, false)
				if k.spoke {
					t.Skip("it has spoken")
				}
				clock++
				k.spoke, k.age = true, clock
				k.conn.since = time.Unix(int64(clock), 0)
				a.markActive(k.conn)
			},
			"drop": func(t *rapid.T) {
				var want *conn
				if worst := greediest(all); worst != nil {
					want = worst.conn
					forget(worst)
				}
				if got := a.evict(); got != want {
					t.Fatalf("victim %+v, want %+v", got, want)
				}
			},
			"admit": func(t *rapid.T) {
				k := pick(t, false)
				identity := rapid.SampledFrom([]string{"", "a", "x", "y"}).Draw(t, "identity")
				counts := cmp.Or(identity, k.origin)
				var want error
				switch {
				case inside(func(*known) bool { return true }) >= limits.Connections:
					want = errTooMany
				case inside(func(o *known) bool { return o.origin == counts }) == 0 &&
					inside(func(*known) bool { return true }) >= limits.Connections-limits.Connections/4:
					want = errTooMany
				case limits.ConnectionsPerAddress > 0 &&
					inside(func(o *known) bool { return o.origin == counts }) >= limits.ConnectionsPerAddress:
					want = errTooManyHere
				}
				if err := a.admit(k.conn, identity); !errors.Is(err, want) {
					t.Fatalf("admit: %v, want %v", err, want)
				}
				if k.inside = want == nil; k.inside {
					k.origin = counts
				}
			},
			"end": func(t *rapid.T) {
				k := pick(t, rapid.Bool().Draw(t, "admitted"))
				forget(k)
				a.end(k.conn)
				a.end(k.conn) // once more is no harm
			},
			"resign": func(t *rapid.T) {
				k := pick(t, true)
				if len(all)-inside(func(*known) bool { return true }) == limits.Handshakes {
					t.Skip("too many handshakes")
				}
				// It is behind those that began later: its age is that of its
				// return.
				clock++
				k.inside, k.age = false, clock
				k.conn.since = time.Unix(int64(clock), 0)
				a.revoke(k.conn)
			},
			"": func(t *rapid.T) {
				n := inside(func(*known) bool { return true })
				if a.admitted != n || a.handshakes != len(all)-n {
					t.Fatalf("%d connections and %d handshakes, want %d and %d", a.admitted, a.handshakes, n, len(all)-n)
				}
			},
		})
		for _, k := range all {
			a.end(k.conn)
		}
		if len(a.clients) != 0 || len(a.busiest) != 0 || a.handshakes != 0 || a.admitted != 0 {
			t.Fatalf("no client is left, and %+v is", a)
		}
	})
}

// One host has 16 connections by default, and a process of this host as many as
// there are. With a quarter left, who has a connection gets more, and others
// none.
func TestDefaultShares(t *testing.T) {
	limits := Limits{Connections: 100}.withDefaults()
	a := admission{limits: &limits}
	join := func(origin string, local bool) error {
		c := &conn{clientID: origin, local: local, since: time.Unix(1, 0)}
		a.begin(c)
		return a.admit(c, "")
	}
	for i := range 17 {
		if err := join("host", false); (err != nil) != (i == 16) || err != nil && !errors.Is(err, errTooManyHere) {
			t.Fatalf("connection %d of a host: %v", i+1, err)
		}
	}
	if err := join("other host", false); err != nil {
		t.Fatal(err)
	}
	for i := range 75 - 17 {
		if err := join("user 0", true); err != nil {
			t.Fatalf("connection %d of a user: %v", i+1, err)
		}
	}
	if err := join("third host", false); !errors.Is(err, errTooMany) {
		t.Errorf("a new host gets a kept place: %v", err)
	}
	for i := range 15 {
		if err := join("other host", false); err != nil {
			t.Errorf("connection %d of a host that has some: %v", i+2, err)
		}
	}
	for range 10 {
		if err := join("user 0", true); err != nil {
			t.Error(err)
		}
	}
	if err := join("user 0", true); !errors.Is(err, errTooMany) {
		t.Errorf("connection 101: %v", err)
	}
}

// Clients of this host are those of loopback addresses, UNIX sockets and the
// CID of the host itself.
func TestIsLocal(t *testing.T) {
	for _, c := range []struct {
		from  net.Addr
		local bool
	}{
		{&net.TCPAddr{IP: net.ParseIP("127.0.0.1")}, true},
		{&net.TCPAddr{IP: net.ParseIP("::1")}, true},
		{&net.TCPAddr{IP: net.ParseIP("::ffff:127.0.0.2")}, true},
		{&net.TCPAddr{IP: net.ParseIP("192.0.2.1")}, false},
		{&net.TCPAddr{IP: net.ParseIP("fe80::1"), Zone: "lo"}, false},
		{&net.UnixAddr{}, true},
		{VsockAddr{CID: 1}, true},
		{VsockAddr{CID: 3}, false},
		{&net.IPAddr{}, false},
	} {
		if got := isLocal(remote{from: c.from}); got != c.local {
			t.Errorf("%v %v: local %v", c.from.Network(), c.from, got)
		}
	}
}

// remote is a connection from somewhere.
type remote struct {
	net.Conn
	from net.Addr
}

func (r remote) RemoteAddr() net.Addr { return r.from }

// place is an address of a network that the server does not know.
type place string

func (place) Network() string  { return "vsock" }
func (p place) String() string { return string(p) }

func TestOrigin(t *testing.T) {
	tcp := func(s string) net.Addr {
		a, err := net.ResolveTCPAddr("tcp", s)
		if err != nil {
			t.Fatal(err)
		}
		return a
	}
	for _, c := range []struct {
		from net.Addr
		want string
	}{
		{tcp("192.0.2.7:1"), "192.0.2.7"},
		{tcp("[::ffff:192.0.2.7]:1"), "192.0.2.7"},
		{tcp("[2001:db8:1:2:3:4:5:6]:1"), "2001:db8:1:2::/64"},
		{tcp("[2001:db8:1:2:ffff::1]:9"), "2001:db8:1:2::/64"},
		{tcp("[2001:db8:1:3::1]:9"), "2001:db8:1:3::/64"},
		{tcp("[fe80::1%7]:9"), "fe80::1%7"},
		{place("3:1025"), "vsock 3"},
		{place("host"), "vsock host"},
		{&net.UnixAddr{}, "unknown user"},
	} {
		if got := clientIDOf(remote{from: c.from}); got != c.want {
			t.Errorf("%v: %q, want %q", c.from, got, c.want)
		}
	}
	server, client := pair(t)
	defer client.Close()
	defer server.Close()
	if got, want := clientIDOf(server), fmt.Sprintf("user %d", os.Getuid()); got != want {
		t.Errorf("%q, want %q", got, want)
	}
}
