package handshake_test

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/viablk/viablk/internal/handshake"
	"github.com/viablk/viablk/internal/pki"
	"github.com/viablk/viablk/internal/wire"
)

func TestHandshake(t *testing.T) {
	a := newAuthority(t)
	for _, rekey := range []bool{false, true} {
		cfg := a.initiator(t)
		cfg.Rekey = rekey
		o := run(t, cfg, a.guard(t))
		if o.initiatorErr != nil || o.targetErr != nil || !agree(t, o.initiator, o.target) {
			t.Fatalf("%v, %v", o.initiatorErr, o.targetErr)
		}
		if o.messages != 2 {
			t.Errorf("%d messages", o.messages)
		}
		i, target := o.initiator, o.target
		if !slices.Equal(i.Names, []string{host}) || !slices.Equal(target.Names, []string{"db1.example"}) {
			t.Errorf("names %q, %q", i.Names, target.Names)
		}
		if i.Curve != "X25519MLKEM768" || target.Curve != i.Curve || i.Serial == "" || i.Serial == target.Serial {
			t.Errorf("%q, %q, %q, %q", i.Curve, target.Curve, i.Serial, target.Serial)
		}
		if left := time.Until(target.NotAfter); left < 0 || left > time.Hour || len(target.Certificates) != 1 {
			t.Errorf("ends in %v", left)
		}
		if i.Session.Name() != target.Session.Name() || i.Epoch != 7 || target.Epoch != 7 || i.Conn != 0 {
			t.Errorf("%+v, %+v", i, target)
		}
	}
}

// damaged is a handshake that must not come to pass.
type damaged struct {
	name      string
	initiator func(*testing.T, *authority, *handshake.Config)
	target    func(*testing.T, *authority, *handshake.Guard)
	change    change
	errs      [2]error // of initiator and target; nil: any
	text      string   // in the error of who finds out
}

// at makes a change of one message.
func at(number int, edit func(*wire.Auth)) change {
	return func(n int, m *wire.Auth) {
		if n == number {
			edit(m)
		}
	}
}

func clientAuth(c *x509.Certificate) { c.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth} }

// shows has the initiator show a certificate as edit wants it.
func shows(edits ...func(*x509.Certificate)) func(*testing.T, *authority, *handshake.Config) {
	return func(t *testing.T, a *authority, c *handshake.Config) {
		c.TLS.Certificates = []tls.Certificate{a.issue(t, func(template *x509.Certificate) {
			for _, edit := range edits {
				edit(template)
			}
		})}
	}
}

// presents has the target do so.
func presents(edits ...func(*x509.Certificate)) func(*testing.T, *authority, *handshake.Guard) {
	return func(t *testing.T, a *authority, g *handshake.Guard) {
		writePair(t, a.server, "server", a.issue(t, func(template *x509.Certificate) {
			template.ExtKeyUsage, template.DNSNames = []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}, []string{host}
			for _, edit := range edits {
				edit(template)
			}
		}))
		g.TLS = a.guard(t).TLS
	}
}

var rejected = [2]error{handshake.ErrRejected, handshake.ErrRejected}

func ended(c *x509.Certificate)  { c.NotAfter = time.Now().Add(-time.Minute) }
func early(c *x509.Certificate)  { c.NotBefore = time.Now().Add(time.Minute) }
func server(c *x509.Certificate) { c.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth} }

var damages = []damaged{
	{name: "no certificate", initiator: func(_ *testing.T, _ *authority, c *handshake.Config) {
		c.TLS.Certificates = []tls.Certificate{{}}
	}, errs: rejected, text: "certificate"},
	{name: "another authority", initiator: func(t *testing.T, _ *authority, c *handshake.Config) {
		c.TLS.Certificates = newAuthority(t).initiator(t).TLS.Certificates
	}, errs: rejected, text: "unknown authority"},
	{name: "expired", initiator: shows(clientAuth, ended), errs: rejected, text: "expired"},
	{name: "not yet valid", initiator: shows(clientAuth, early), errs: rejected, text: "not yet valid"},
	{name: "server certificate of an initiator", initiator: shows(server), errs: rejected, text: "usage"},
	{name: "revoked", target: func(t *testing.T, a *authority, g *handshake.Guard) {
		_, err := pki.Revoke(a.ca, "db1.example", time.Hour)
		must(t, err)
		must(t, pki.GiveList(a.ca, a.server))
		g.TLS = a.guard(t).TLS
	}, errs: rejected, text: "revoked"},
	{name: "stale list", target: func(t *testing.T, a *authority, g *handshake.Guard) {
		_, err := pki.Revoke(a.ca, "", time.Nanosecond)
		must(t, err)
		must(t, pki.GiveList(a.ca, a.server))
		g.TLS = a.guard(t).TLS
	}, errs: rejected, text: "out of date"},

	{name: "another authority of the target", initiator: func(t *testing.T, _ *authority, c *handshake.Config) {
		c.TLS.RootCAs = newAuthority(t).initiator(t).TLS.RootCAs
	}, errs: [2]error{handshake.ErrRejected}, text: "unknown authority"},
	{name: "expired target", target: presents(ended), errs: [2]error{handshake.ErrRejected}, text: "expired"},
	{name: "target that is not yet valid", target: presents(early), errs: [2]error{handshake.ErrRejected}, text: "not yet valid"},
	{name: "client certificate of a target", target: presents(clientAuth), errs: [2]error{handshake.ErrRejected}, text: "usage"},
	{name: "wrong name", initiator: func(_ *testing.T, _ *authority, c *handshake.Config) {
		c.TLS.ServerName = "other.example"
	}, errs: [2]error{handshake.ErrRejected}, text: "other.example"},
	{name: "revoked target", initiator: func(t *testing.T, a *authority, c *handshake.Config) {
		_, err := pki.Revoke(a.ca, host, time.Hour)
		must(t, err)
		must(t, pki.GiveList(a.ca, a.client))
		*c = a.initiator(t)
	}, errs: [2]error{handshake.ErrRejected}, text: "revoked"},

	{name: "no seals", change: at(0, func(m *wire.Auth) { m.Seals = 0 }), errs: rejected, text: "offers"},
	{name: "no methods", change: at(0, func(m *wire.Auth) { m.Methods = wire.AuthPSK }), errs: rejected, text: "offers"},
	{name: "other choice of a seal", change: at(1, func(m *wire.Auth) { m.Seals = 0 }), errs: [2]error{handshake.ErrRejected}, text: "not offered"},
	{name: "other choice of a method", change: at(1, func(m *wire.Auth) { m.Methods = wire.AuthPSK }), errs: [2]error{handshake.ErrRejected}, text: "not offered"},

	{name: "truncated hello", change: at(0, cutShort), errs: [2]error{handshake.ErrProtocol}},
	{name: "truncated flight of the target", change: at(1, cutShort)},
	{name: "truncated flight", change: at(2, cutShort), errs: [2]error{handshake.ErrRejected}},
	{name: "nothing in the hello", change: at(0, func(m *wire.Auth) { m.Data = nil })},
	{name: "garbage hello", change: at(0, garble), errs: rejected},
	{name: "garbage flight of the target", change: at(1, garble), errs: [2]error{handshake.ErrRejected}},
	{name: "garbage flight", change: at(2, garble), errs: rejected},
	{name: "last too early", change: at(0, func(m *wire.Auth) { m.Last = true }), errs: [2]error{handshake.ErrRejected, handshake.ErrProtocol}},
	{name: "last withheld", change: at(2, func(m *wire.Auth) { m.Last = false }), errs: [2]error{handshake.ErrRejected, handshake.ErrProtocol}},
	{name: "flight before the hello", change: at(0, func(m *wire.Auth) { m.Kind = wire.AuthFlight }), errs: [2]error{handshake.ErrProtocol, handshake.ErrProtocol}},
	{name: "second hello", change: at(2, func(m *wire.Auth) { m.Kind = wire.AuthHello }), errs: [2]error{handshake.ErrProtocol, handshake.ErrProtocol}},
	{name: "rekey in clear", change: at(0, func(m *wire.Auth) { m.Kind = wire.AuthRekey }), errs: [2]error{handshake.ErrProtocol, handshake.ErrProtocol}},
	{name: "ok at once", change: at(1, func(m *wire.Auth) { m.Status = wire.StatusOK }), errs: [2]error{handshake.ErrProtocol}},
	{name: "continue behind the last", change: at(3, func(m *wire.Auth) { m.Status = wire.StatusContinue }), errs: [2]error{handshake.ErrProtocol}},
	{name: "answer of another message", change: at(1, func(m *wire.Auth) { m.ID++ }), errs: [2]error{handshake.ErrProtocol}},
}

func cutShort(m *wire.Auth) { m.Data = m.Data[:len(m.Data)-1] }

func garble(m *wire.Auth) {
	for i := range m.Data {
		m.Data[i] ^= byte(0xa5 + i)
	}
}

func TestDamagedHandshakes(t *testing.T) { testDamages(t, damages, false) }

// A rekey checks certificates as the first handshake does.
func TestDamagedRekeys(t *testing.T) {
	certificates := slices.DeleteFunc(slices.Clone(damages), func(d damaged) bool { return d.change != nil })
	testDamages(t, append(certificates, damaged{name: "another client", initiator: shows(clientAuth), errs: rejected, text: "other names"}), true)
}

func testDamages(t *testing.T, damages []damaged, rekey bool) {
	for _, d := range damages {
		t.Run(d.name, func(t *testing.T) {
			a := newAuthority(t)
			cfg, g := a.initiator(t), a.guard(t)
			if d.initiator != nil {
				d.initiator(t, &a, &cfg)
			}
			if d.target != nil {
				d.target(t, &a, g)
			}
			cfg.Rekey = rekey
			var changes []change
			if d.change != nil {
				changes = append(changes, d.change)
			}
			o := run(t, cfg, g, changes...)
			if o.initiator != nil || o.initiatorErr == nil {
				t.Fatalf("%v, %v", o.initiatorErr, o.targetErr)
			}
			for i, err := range []error{o.initiatorErr, o.targetErr} {
				if d.errs[i] != nil && !errors.Is(err, d.errs[i]) {
					t.Errorf("end %d: %v", i, err)
				}
			}
			if text := fmt.Sprint(o.initiatorErr, o.targetErr); !strings.Contains(text, d.text) {
				t.Errorf("%q does not tell %q", text, d.text)
			}
			if o.messages > 8 {
				t.Errorf("%d messages", o.messages)
			}
		})
	}
}

// Offers, choices and nonces that change on the way leave both ends with keys
// of their own.
func TestChangedOffersGiveOtherKeys(t *testing.T) {
	a := newAuthority(t)
	for name, c := range map[string]change{
		"more seals":        at(0, func(m *wire.Auth) { m.Seals |= 1 << 3 }),
		"more methods":      at(0, func(m *wire.Auth) { m.Methods |= wire.AuthPSK }),
		"nonce":             at(0, func(m *wire.Auth) { m.Nonce[5] ^= 1 }),
		"nonce of answer":   at(1, func(m *wire.Auth) { m.Nonce[31] ^= 1 }),
		"session in answer": at(1, func(m *wire.Auth) { m.Session[0] ^= 1 }),
		"last in answer":    at(1, func(m *wire.Auth) { m.Last = true }),
		"retry in answer":   at(1, func(m *wire.Auth) { m.RetryAfter = 1 }),
	} {
		o := run(t, a.initiator(t), a.guard(t), c)
		if o.initiatorErr != nil || o.targetErr != nil {
			t.Errorf("%s: %v, %v", name, o.initiatorErr, o.targetErr)
		} else if agree(t, o.initiator, o.target) {
			t.Errorf("%s: the ends agree", name)
		}
	}
}

// An initiator of TLS 1.2, and one of another protocol in TLS, are refused by
// the record that they send.
func TestForeignClients(t *testing.T) {
	a := newAuthority(t)
	for name, edit := range map[string]func(*tls.Config){
		"TLS 1.2":          func(c *tls.Config) { c.MinVersion, c.MaxVersion = tls.VersionTLS12, tls.VersionTLS12 },
		"another protocol": func(c *tls.Config) { c.NextProtos = []string{"h2"} },
		"P-256 alone":      func(c *tls.Config) { c.CurvePreferences = []tls.CurveID{tls.CurveP256} },
	} {
		t.Run(name, func(t *testing.T) {
			c := a.initiator(t).TLS
			edit(c)
			target, err := a.guard(t).NewTarget("peer", nil)
			must(t, err)
			out, done, err := target.Step(&wire.Auth{
				Kind: wire.AuthHello, Methods: wire.AuthCertificates, Seals: wire.SealAESGCM,
				Version: wire.AuthVersion, Data: clientHello(t, c),
			})
			if !errors.Is(err, handshake.ErrRejected) || done || out.Status != wire.StatusAuth || len(out.Data) == 0 {
				t.Errorf("%+v, %v, %v", out, done, err)
			}
		})
	}
}

// A certificate that needs several messages goes in several, and one that needs
// more than 8 is refused.
func TestLongCertificates(t *testing.T) {
	a := newAuthority(t)
	for _, c := range []struct {
		names int
		fits  bool
	}{{300, true}, {600, true}, {2500, false}} {
		many := func(template *x509.Certificate) {
			clientAuth(template)
			for i := range c.names {
				template.DNSNames = append(template.DNSNames, fmt.Sprintf("a-long-name-of-a-client-%05d.example", i))
			}
		}
		cfg, g := a.initiator(t), a.guard(t)
		shows(many)(t, &a, &cfg)
		presents(func(template *x509.Certificate) {
			if c.fits {
				many(template)
				server(template)
			}
		})(t, &a, g)
		o := run(t, cfg, g)
		switch {
		case c.fits && (o.initiatorErr != nil || o.targetErr != nil || o.messages < 3 || !agree(t, o.initiator, o.target)):
			t.Errorf("%d names: %d messages, %v, %v", c.names, o.messages, o.initiatorErr, o.targetErr)
		case c.fits && len(o.target.Names) != c.names+1:
			t.Errorf("%d of %d names", len(o.target.Names), c.names)
		case !c.fits && o.initiatorErr == nil:
			t.Errorf("%d names: %d messages", c.names, o.messages)
		}
	}
}

// A target that is asked for more, flight after flight, ends after 8.
func TestNineFlights(t *testing.T) {
	a := newAuthority(t)
	target, err := a.guard(t).NewTarget("peer", nil)
	must(t, err)
	m := &wire.Auth{Kind: wire.AuthHello, Methods: wire.AuthCertificates, Seals: wire.SealAESGCM, Version: wire.AuthVersion}
	for n := range 9 {
		out, _, err := target.Step(m)
		if n < 8 && (err != nil || out.Status != wire.StatusContinue) {
			t.Fatalf("flight %d: %v, %v", n, out.Status, err)
		}
		if n == 8 && (!errors.Is(err, handshake.ErrProtocol) || out.Status != wire.StatusAuth) {
			t.Fatalf("flight %d: %v, %v", n, out.Status, err)
		}
		m = &wire.Auth{Kind: wire.AuthFlight, Version: wire.AuthVersion}
	}
	if out, _, err := target.Step(m); out != nil || err == nil {
		t.Error("a message behind the end is answered")
	}
}

// Handshakes in flight are bounded, for one peer and for all; the answer says
// when to come back, and every end makes room.
func TestBusyTarget(t *testing.T) {
	a := newAuthority(t)
	g := a.guard(t)
	begin := func(peer string) (*handshake.Target, error) {
		i, err := handshake.NewInitiator(a.initiator(t))
		must(t, err)
		defer i.Close()
		hello, _, err := i.Step(nil)
		must(t, err)
		target, err := g.NewTarget(peer, nil)
		must(t, err)
		answer, _, err := target.Step(hello)
		var busy *handshake.BusyError
		if errors.As(err, &busy) {
			if _, _, err := i.Step(travel(t, answer, 1, nil)); !errors.As(err, &busy) || busy.RetryAfter <= 0 {
				t.Errorf("the initiator: %v", err)
			}
		}
		return target, err
	}
	var open []*handshake.Target
	for n := range 17 {
		target, err := begin(fmt.Sprint(n / 8))
		if (err != nil) != (n == 16) {
			t.Fatalf("handshake %d: %v", n, err)
		}
		open = append(open, target)
	}
	open[0].Close()
	open[0].Close()
	if _, err := begin("1"); err == nil {
		t.Error("nine handshakes of one peer")
	}
	target, err := begin("0")
	must(t, err)
	if _, err := begin("2"); err == nil {
		t.Error("seventeen handshakes")
	}
	for _, target := range append(open, target) {
		target.Close()
	}
	o := run(t, a.initiator(t), g)
	must(t, o.initiatorErr)
	for range 40 {
		run(t, a.initiator(t), g, at(2, garble)) // a failure makes room too
	}
	must(t, run(t, a.initiator(t), g).initiatorErr)
}

// A rejected initiator learns of the alert; the target's log of the name.
func TestRejectionTellsNoReason(t *testing.T) {
	a := newAuthority(t)
	cfg := a.initiator(t)
	shows(clientAuth, ended)(t, &a, &cfg)
	o := run(t, cfg, a.guard(t))
	if text := o.initiatorErr.Error(); strings.Contains(text, "expired") && !strings.Contains(text, "tls:") {
		t.Error(text)
	}
	if o.claimed != "made" {
		t.Errorf("claimed %q", o.claimed)
	}
}

// An end that would not verify the other is not made.
func TestUnsafeConfigurations(t *testing.T) {
	a := newAuthority(t)
	for name, edit := range map[string]func(*tls.Config){
		"no certificate": func(c *tls.Config) { c.Certificates = nil },
		"no name":        func(c *tls.Config) { c.ServerName = "" },
		"no verification": func(c *tls.Config) {
			c.InsecureSkipVerify, c.VerifyConnection = true, nil
		},
	} {
		cfg := a.initiator(t)
		edit(cfg.TLS)
		if _, err := handshake.NewInitiator(cfg); err == nil {
			t.Errorf("initiator with %s", name)
		}
	}
	for name, edit := range map[string]func(*tls.Config){
		"no certificate":  func(c *tls.Config) { c.GetCertificate = nil },
		"no verification": func(c *tls.Config) { c.VerifyConnection = nil },
		"optional":        func(c *tls.Config) { c.ClientAuth = tls.VerifyClientCertIfGiven },
	} {
		g := a.guard(t)
		edit(g.TLS)
		if _, err := g.NewTarget("peer", nil); err == nil {
			t.Errorf("target with %s", name)
		}
	}
	if _, err := (&handshake.Guard{}).NewTarget("peer", nil); err == nil {
		t.Error("a target without a configuration")
	}
	if _, err := handshake.NewInitiator(handshake.Config{}); err == nil {
		t.Error("an initiator without a configuration")
	}
}
