package handshake_test

import (
	"bytes"
	"crypto/tls"
	"errors"
	"net"
	"testing"

	"github.com/viablk/viablk/internal/handshake"
	"github.com/viablk/viablk/internal/seal"
	"github.com/viablk/viablk/internal/wire"
)

// clientHello returns what a client of a configuration sends first.
func clientHello(t *testing.T, c *tls.Config) []byte {
	t.Helper()
	client, end := net.Pipe()
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = tls.Client(client, c).Handshake()
	}()
	b := make([]byte, 1<<14)
	n, err := end.Read(b)
	must(t, err)
	must(t, end.Close())
	<-done
	must(t, client.Close())
	return b[:n]
}

// established returns both ends of a session, and a guard that knows it.
func established(t *testing.T) (i, target *handshake.Result, g *handshake.Guard) {
	t.Helper()
	a := newAuthority(t)
	g = a.guard(t)
	o := run(t, a.initiator(t), g)
	must(t, errors.Join(o.initiatorErr, o.targetErr))
	session := o.target.Session
	g.Session = func(name [seal.NameSize]byte) *seal.Session {
		if name == session.Name() {
			return session
		}
		return nil
	}
	return o.initiator, o.target, g
}

// answer returns what a target makes of a message that is its first.
func answer(t *testing.T, g *handshake.Guard, m *wire.Auth) (*wire.Auth, *handshake.Result, error) {
	t.Helper()
	target, err := g.NewTarget("peer", nil)
	must(t, err)
	defer target.Close()
	out, done, err := target.Step(travel(t, m, 0, nil))
	if done != (err == nil) {
		t.Fatalf("done %v, %v", done, err)
	}
	return travel(t, out, 1, nil), target.Result(), err
}

func TestJoin(t *testing.T) {
	i, _, g := established(t)
	for conn := range uint16(3) {
		j, err := handshake.NewJoin(i.Session, conn+1, 9)
		must(t, err)
		out, theirs, err := answer(t, g, j.Request())
		must(t, err)
		ours, err := j.Receive(out)
		must(t, err)
		if !agree(t, ours, theirs) || theirs.Conn != conn+1 || theirs.Epoch != 9 {
			t.Errorf("%+v, %+v", ours, theirs)
		}
	}
}

// A recorded join is answered, for it is well made, and opens nothing: with
// another nonce of the target the recorded login is forged. Nor does the
// recorded answer convince another join.
func TestRecordedJoin(t *testing.T) {
	i, _, g := established(t)
	j, err := handshake.NewJoin(i.Session, 1, 9)
	must(t, err)
	recorded, theirs, err := answer(t, g, j.Request())
	must(t, err)
	ours, err := j.Receive(recorded)
	must(t, err)
	sealer, _, err := ours.Keys(seal.Initiator)
	must(t, err)
	login := make([]byte, 100+seal.Overhead)
	_, _, err = sealer.Capsule(login, 100)
	must(t, err)
	open := func(r *handshake.Result) error {
		_, opener, err := r.Keys(seal.Target)
		must(t, err)
		_, _, err = opener.Capsule(bytes.Clone(login))
		return err
	}
	must(t, open(theirs))
	for range 3 {
		_, again, err := answer(t, g, j.Request())
		must(t, err)
		if err := open(again); !errors.Is(err, seal.ErrForged) {
			t.Fatalf("the recorded login: %v", err)
		}
	}
	other, err := handshake.NewJoin(i.Session, 1, 9)
	must(t, err)
	if _, err := other.Receive(recorded); !errors.Is(err, handshake.ErrRejected) {
		t.Errorf("the recorded answer: %v", err)
	}
}

// Every field of a join and of its answer is proved, and an unknown session is
// answered as a wrong proof is.
func TestChangedJoins(t *testing.T) {
	i, _, g := established(t)
	var unknown, wrong *wire.Auth
	for name, edit := range map[string]func(*wire.Auth){
		"proof":    func(m *wire.Auth) { m.Proof[31] ^= 1 },
		"no proof": func(m *wire.Auth) { m.Proof = [32]byte{} },
		"session":  func(m *wire.Auth) { m.Session[0] ^= 1 },
		"conn":     func(m *wire.Auth) { m.Conn++ },
		"epoch":    func(m *wire.Auth) { m.PathEpoch++ },
		"nonce":    func(m *wire.Auth) { m.Nonce[0] ^= 1 },
		"seals":    func(m *wire.Auth) { m.Seals = 2 },
		"last":     func(m *wire.Auth) { m.Last = true },
	} {
		j, err := handshake.NewJoin(i.Session, 1, 9)
		must(t, err)
		m := *j.Request()
		edit(&m)
		out, result, err := answer(t, g, &m)
		if !errors.Is(err, handshake.ErrRejected) || result != nil || out.Status != wire.StatusAuth || out.Proof != [32]byte{} {
			t.Errorf("%s: %+v, %v", name, out, err)
		}
		out.ID, out.PathEpoch = 1, 9
		if _, err := j.Receive(out); !errors.Is(err, handshake.ErrRejected) {
			t.Errorf("%s: the initiator: %v", name, err)
		}
		out.Nonce = [32]byte{}
		switch name {
		case "session":
			unknown = out
		case "proof":
			wrong = out
		}
	}
	if b, c := encode(t, unknown), encode(t, wrong); !bytes.Equal(b, c) {
		t.Errorf("unknown sessions are told apart:\n%x\n%x", b, c)
	}
	for name, edit := range map[string]func(*wire.Auth){
		"proof": func(m *wire.Auth) { m.Proof[0] ^= 1 },
		"nonce": func(m *wire.Auth) { m.Nonce[0] ^= 1 },
		"kind":  func(m *wire.Auth) { m.Kind = wire.AuthHello },
		"id":    func(m *wire.Auth) { m.ID++ },
	} {
		j, err := handshake.NewJoin(i.Session, 1, 9)
		must(t, err)
		out, _, err := answer(t, g, j.Request())
		must(t, err)
		edit(out)
		if _, err := j.Receive(out); err == nil {
			t.Errorf("an answer with another %s", name)
		}
	}
}

func encode(t *testing.T, m *wire.Auth) []byte {
	t.Helper()
	b := make([]byte, wire.MaxControlSize)
	n, err := m.Encode(b)
	must(t, err)
	return b[:n]
}

// A session that ended is unknown, at both ends.
func TestJoinOfAnEndedSession(t *testing.T) {
	i, target, g := established(t)
	j, err := handshake.NewJoin(i.Session, 1, 9)
	must(t, err)
	target.Session.Clear()
	if _, _, err := answer(t, g, j.Request()); !errors.Is(err, handshake.ErrRejected) {
		t.Errorf("%v", err)
	}
	i.Session.Clear()
	if _, err := handshake.NewJoin(i.Session, 1, 9); !errors.Is(err, seal.ErrCleared) {
		t.Errorf("%v", err)
	}
}

// The target does not take its own answer for a join, nor a join for a flight.
func TestReflectedMessages(t *testing.T) {
	i, _, g := established(t)
	j, err := handshake.NewJoin(i.Session, 1, 9)
	must(t, err)
	out, _, err := answer(t, g, j.Request())
	must(t, err)
	if _, _, err := answer(t, g, out); !errors.Is(err, handshake.ErrProtocol) {
		t.Errorf("its own answer: %v", err)
	}
	out.Answer = false
	if _, _, err := answer(t, g, out); !errors.Is(err, handshake.ErrRejected) {
		t.Errorf("its own answer as a request: %v", err)
	}
	target, err := g.NewTarget("peer", &handshake.Result{})
	must(t, err)
	if _, _, err := target.Step(j.Request()); !errors.Is(err, handshake.ErrProtocol) {
		t.Errorf("a join in a rekey: %v", err)
	}
}
