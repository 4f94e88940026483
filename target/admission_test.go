package target

import (
	"crypto/x509"
	"crypto/x509/pkix"
	"fmt"
	"strings"
	"testing"

	"github.com/viablk/viablk/internal/access"
)

// fill begins connections until one is refused, and returns how many began.
func (a *admission) fill(t *testing.T, from, refusal string) (n int) {
	t.Helper()
	for ; n <= a.most; n++ {
		if got := a.begin(from); got != "" {
			if !strings.Contains(got, refusal) {
				t.Errorf("%s is refused because %q, want %q", from, got, refusal)
			}
			return n
		}
	}
	t.Errorf("%s is refused nothing", from)
	return n
}

// No host keeps others out, and none that has no export open keeps out one that
// has.
func TestAdmission(t *testing.T) {
	a := newAdmission(512, 256)
	for range 3 {
		if got := a.begin("user"); got != "" {
			t.Fatal(got)
		}
	}
	a.opened("user")
	if n := a.fill(t, "hog", "without an open export"); n != 64 {
		t.Errorf("a host without an open export has %d connections", n)
	}
	a.opened("hog")
	if n := a.fill(t, "hog", "as one may have"); n != 256-64 {
		t.Errorf("a host with an open export has %d connections more", n)
	}
	for i := 0; a.total < 384; i++ {
		if got := a.begin(fmt.Sprint("host ", i)); got != "" {
			t.Fatalf("connection %d: %s", a.total, got)
		}
	}
	if got := a.begin("late"); !strings.Contains(got, "hosts that have an export open") {
		t.Errorf("with 384 connections: %q", got)
	}
	if n := a.fill(t, "user", "all places"); n != 512-384 {
		t.Errorf("the user has %d connections more", n)
	}
	for range 256 {
		a.release("hog", a.origins["hog"].opens > 0)
	}
	for i := range 384 - 256 - 3 {
		a.release(fmt.Sprint("host ", i), false)
	}
	for range 3 + 512 - 384 {
		a.release("user", a.origins["user"].opens > 0)
	}
	if a.total != 0 || len(a.origins) != 0 {
		t.Errorf("%d connections of %v are left", a.total, a.origins)
	}
}

// Peers with the rights of the target have all places.
func TestAdmissionOfLocalPeers(t *testing.T) {
	a := newAdmission(512, 256)
	if n := a.fill(t, "", "all places"); n != 512 {
		t.Errorf("%d connections", n)
	}
}

// A connection counts for an identity once that is proved: one identity at many
// addresses has no more places than at one, and gives them back.
func TestAdmissionOfIdentities(t *testing.T) {
	s := &Server{cfg: Config{}.withDefaults(), admission: newAdmission(512, 256)}
	alice := access.Identity{}.WithCertificate(&x509.Certificate{Subject: pkix.Name{CommonName: "alice"}})
	var conns []*conn
	for i := range 65 {
		from := fmt.Sprint("host ", i)
		if got := s.admission.begin(from); got != "" {
			t.Fatal(got)
		}
		c := newConn(s, nil, from, from)
		conns = append(conns, c)
		refusal := c.countAs(alice)
		if refused := strings.Contains(refusal, "without an open export"); refused != (i == 64) {
			t.Fatalf("connection %d: %q", i, refusal)
		}
	}
	if n := s.admission.origins["certificate alice"].conns; n != 64 || len(s.admission.origins) != 2 {
		t.Errorf("alice has %d connections of %v", n, s.admission.origins)
	}
	conns[0].markOpened()
	if got := conns[64].countAs(alice); got != "" {
		t.Errorf("with an export open: %s", got)
	}
	local := newConn(s, nil, "pid 1, uid 0", "")
	if got := s.admission.begin(""); got != "" || local.countAs(access.Local(0)) != "" || local.countedBy() != "" {
		t.Errorf("a peer with the rights of the target is counted by %q", local.countedBy())
	}
	for _, c := range append(conns, local) {
		s.admission.release(c.counted, c.opened)
	}
	if s.admission.total != 0 || len(s.admission.origins) != 0 {
		t.Errorf("%d connections of %v are left", s.admission.total, s.admission.origins)
	}
}

// A server with few places still has some for each host.
func TestAdmissionOfFew(t *testing.T) {
	a := newAdmission(3, 3)
	if n := a.fill(t, "one", "all places"); n != 3 {
		t.Errorf("%d connections", n)
	}
}
