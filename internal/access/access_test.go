package access

import (
	"crypto/x509"
	"crypto/x509/pkix"
	"os"
	"os/user"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/viablk/viablk/internal/contain"
)

// certificate returns the identity of a client with a verified certificate.
func certificate(common string, dns ...string) Identity {
	return Identity{}.WithCertificate(&x509.Certificate{Subject: pkix.Name{CommonName: common}, DNSNames: dns})
}

func parse(t *testing.T, clients, readOnly []string) *Rights {
	t.Helper()
	r, err := Parse(clients, readOnly)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// noUser is a user ID without a name.
const noUser = 3_999_999_999

// Each identity gets in each mode what the lists say, and nothing else.
func TestAdmits(t *testing.T) {
	lists := map[string]*Rights{
		"open":      nil,
		"empty":     parse(t, []string{}, nil),
		"no reader": parse(t, nil, []string{}),
		"clients":   parse(t, []string{"alice", "db1.example", "user:root", "uid:" + strconv.Itoa(noUser)}, nil),
		"readers":   parse(t, nil, []string{"alice", "uid:0"}),
		"both":      parse(t, []string{"alice"}, []string{"backup.example", "user:root"}),
		"unlisted":  Unlisted,
	}
	const hidden, reads, writes = "hidden", "reads", "writes"
	for _, c := range []struct {
		who  Identity
		want map[string]string
	}{
		{Identity{}, map[string]string{}},
		{certificate("mallory", "mallory.example"), map[string]string{}},
		{certificate("", "", ""), map[string]string{}},
		{certificate("user:root", "uid:0"), map[string]string{}},
		{certificate("alice"), map[string]string{"clients": writes, "readers": reads, "both": writes}},
		{certificate("Alice"), map[string]string{}},
		{certificate("other", "db1.example"), map[string]string{"clients": writes}},
		{certificate("alice", "backup.example"), map[string]string{"clients": writes, "readers": reads, "both": writes}},
		{certificate("backup.example"), map[string]string{"both": reads}},
		{Local(0), map[string]string{"clients": writes, "readers": reads, "both": reads}},
		{Local(noUser), map[string]string{"clients": writes}},
		{Local(65534), map[string]string{}},
		{Local(65534).Guest(), map[string]string{"open": hidden}},
		{Local(noUser).Guest(), map[string]string{"open": hidden, "clients": writes}},
		{certificate("mallory").Guest(), map[string]string{}},
		{Local(0).WithCertificate(&x509.Certificate{Subject: pkix.Name{CommonName: "alice"}}), map[string]string{"clients": writes, "readers": reads, "both": writes}},
	} {
		for list, rights := range lists {
			want := c.want[list]
			if list == "open" && want == "" {
				want = writes
			}
			for _, m := range []Mode{List, ReadOnly, ReadWrite, Exclusive, Preempt} {
				verdict := map[string]Verdict{"": Hidden, hidden: Hidden, reads: Granted, writes: Granted}[want]
				if want == reads && m > ReadOnly {
					verdict = MayRead
				}
				if got := Admits(c.who, rights, m); got != verdict {
					t.Errorf("%v, list %s, mode %d: %d, want %d", c.who, list, m, got, verdict)
				}
			}
		}
	}
}

// An administrator writes names of three kinds; the error of another says what
// is wrong.
func TestParse(t *testing.T) {
	for _, c := range []struct {
		clients, readOnly []string
		want              string // of the error
	}{
		{nil, nil, ""},
		{[]string{"alice", "db1.example", "*.example", "user:root", "user:svc-disk$", "uid:0", "uid:4294967294"}, nil, ""},
		{[]string{"alice", "alice"}, []string{"bob"}, ""},
		{[]string{""}, nil, "is empty"},
		{nil, []string{""}, "is empty"},
		{[]string{strings.Repeat("a", 254)}, nil, "254 bytes"},
		{[]string{"a\nb"}, nil, "not printable"},
		{[]string{"a\xff"}, nil, "not printable"},
		{[]string{"users:root"}, nil, "user:NAME or uid:N"},
		{[]string{"group:disk"}, nil, "user:NAME or uid:N"},
		{[]string{"user:"}, nil, "missing"},
		{[]string{"user:a b"}, nil, "no user"},
		{[]string{"user:a:b"}, nil, "no user"},
		{[]string{"user:" + strings.Repeat("a", 65)}, nil, "65 bytes"},
		{[]string{"uid:"}, nil, "number"},
		{[]string{"uid:-1"}, nil, "number"},
		{[]string{"uid:007"}, nil, "number"},
		{[]string{"uid:+7"}, nil, "number"},
		{[]string{"uid:4294967295"}, nil, "number"},
		{[]string{"uid:root"}, nil, "number"},
		{[]string{"alice"}, []string{"alice"}, "remove it"},
		{make([]string, 4097), nil, "at most 4096"},
	} {
		r, err := Parse(c.clients, c.readOnly)
		switch {
		case c.want == "" && err != nil, c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want)):
			t.Errorf("%.40q, %.40q: %v, want %q", c.clients, c.readOnly, err, c.want)
		case err == nil && (r == nil) != (c.clients == nil):
			t.Errorf("%.40q: %v", c.clients, r)
		}
	}
}

// The kinds of clients on a list, and the local users among them.
func TestKindsOfClients(t *testing.T) {
	r := parse(t, []string{"alice", "user:root", "uid:7"}, []string{"user:no-such-user", "uid:7000"})
	uids, unknown := r.UIDs()
	if !slices.Equal(uids, []uint32{0, 7, 7000}) || !slices.Equal(unknown, []string{"no-such-user"}) {
		t.Errorf("users %v, unknown %v", uids, unknown)
	}
	for _, c := range []struct {
		r                   *Rights
		certificates, users bool
	}{
		{nil, false, false},
		{parse(t, []string{}, nil), false, false},
		{r, true, true},
		{parse(t, nil, []string{"alice"}), true, false},
		{parse(t, []string{"user:root"}, nil), false, true},
		{parse(t, []string{"uid:0"}, nil), false, true},
	} {
		if c.r.Certificates() != c.certificates || c.r.Users() != c.users {
			t.Errorf("%v: certificates %v, users %v", c.r, c.r.Certificates(), c.r.Users())
		}
	}
}

// Limits count an identity by one name, and the log has all that is known.
func TestNamesOfIdentities(t *testing.T) {
	for _, c := range []struct {
		i         Identity
		key, text string
	}{
		{Identity{}, "", "anonymous"},
		{certificate("alice", "db1.example", "alice"), "certificate alice", "certificate alice, db1.example"},
		{certificate("", "db1.example"), "certificate db1.example", "certificate db1.example"},
		{certificate(""), "", "anonymous"},
		{Local(0), "user 0", "user root, uid 0"},
		{Local(noUser), "user 3999999999", "uid 3999999999"},
		{Local(0).WithCertificate(&x509.Certificate{Subject: pkix.Name{CommonName: "a"}}), "certificate a", "certificate a; user root, uid 0"},
	} {
		if c.i.Key() != c.key || c.i.String() != c.text {
			t.Errorf("key %q, want %q; text %q, want %q", c.i.Key(), c.key, c.i, c.text)
		}
	}
}

// The names of users are those of the system.
func TestNameOfThisUser(t *testing.T) {
	u, err := user.Current()
	if err != nil {
		t.Fatal(err)
	}
	if got := userName(uint32(os.Getuid())); got != u.Username {
		t.Errorf("user %d is %q, not %q", os.Getuid(), got, u.Username)
	}
}

// Names of users that hang do not hold up clients: beyond maxLookups a client
// waits for its time and has its user ID alone.
func TestLookupsAreBounded(t *testing.T) {
	for range maxLookups {
		lookups <- struct{}{}
	}
	defer func() {
		for range maxLookups {
			<-lookups
		}
	}()
	if got := userName(0); got != "" {
		t.Errorf("looked up as %q", got)
	}
	if Admits(Local(0), parse(t, []string{"uid:0"}, nil), ReadWrite) != Granted {
		t.Error("the user ID is not enough")
	}
}

// A user whose name is not found because of a panic has the rights of the ID.
func TestPanicInLookup(t *testing.T) {
	before := lookupID
	t.Cleanup(func() { lookupID = before })
	lookupID = func(string) (*user.User, error) { panic("planted in a lookup") }
	caught := contain.Count()
	for range 2 * maxLookups { // each returns its place
		if name := userName(0); name != "" {
			t.Errorf("name %q", name)
		}
	}
	if n := contain.Count() - caught; n != 2*maxLookups {
		t.Errorf("%d panics", n)
	}
}
