package seal_test

import (
	"bytes"
	"fmt"
	"testing"

	"github.com/viablk/viablk/internal/seal"
)

// rekeyed is both ends of a session, which rekeys replace at each.
type rekeyed struct {
	i, t *seal.Session
	n    byte // rekeys of each
	m    byte
}

func newRekeyed(t *testing.T, limits seal.Limits) *rekeyed {
	return &rekeyed{i: newSession(t, limits), t: newSession(t, limits)}
}

// next returns the session of a further handshake.
func next(t *testing.T, n byte) *seal.Session {
	t.Helper()
	s, err := seal.NewSession(pattern(seal.ExportSize, 100+n), nonce(2), nonce(3), [seal.NameSize]byte{4, n}, seal.Limits{})
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// target rekeys the target, which is the first to know, and initiator the
// other.
func (r *rekeyed) target(t *testing.T)    { r.n++; r.t.Rekey(next(t, r.n)) }
func (r *rekeyed) initiator(t *testing.T) { r.m++; r.i.Rekey(next(t, r.m)) }

// connect returns both ends of a connection of the latest keys.
func (r *rekeyed) connect(t *testing.T, conn uint16) (i, target end) {
	t.Helper()
	name := [seal.NameSize]byte{4, r.n}
	for _, x := range []struct {
		e    *end
		s    *seal.Session
		role seal.End
	}{{&i, r.i, seal.Initiator}, {&target, r.t, seal.Target}} {
		s := x.s.Named(name)
		if s == nil {
			t.Fatal("the keys are not known by their name")
		}
		var err error
		if x.e.Sealer, x.e.Opener, err = s.Conn(conn, 1, nonce(5), nonce(6), x.role); err != nil {
			t.Fatal(err)
		}
	}
	return i, target
}

var text = []byte("message")

// The initiator leads with its next capsule, the target follows with the next
// one of its own; what was sealed before still opens before, and not after. No
// nonce is used twice under a key.
func TestRekey(t *testing.T) {
	seen := map[string]bool{}
	r := newRekeyed(t, seal.Limits{Observer: func(key [8]byte, nonce [12]byte) {
		if use := fmt.Sprint(key, nonce); seen[use] {
			t.Error("a nonce is used twice under a key")
		} else {
			seen[use] = true
		}
	}})
	i, target := r.connect(t, 3)
	for era := range 3 {
		target.expect(t, i.capsule(t, text), text)
		i.expect(t, target.capsule(t, text), text)
		early, payload := i.capsule(t, text), new(seal.Payload)
		r.target(t)
		late := target.capsule(t, text)
		if late[2] != byte(era) {
			t.Fatal("the target leads, and the initiator may not have the keys")
		}
		target.expect(t, early, text)
		r.initiator(t)
		if int(i.Sealer.Era()) != era || !r.i.Confirmed() {
			t.Fatalf("era %d begins before a capsule", i.Sealer.Era())
		}
		if err := i.Sealer.Payload(payload, 10); err != nil {
			t.Fatal(err)
		}
		first := i.capsule(t, text)
		if int(i.Sealer.Era()) != era+1 || r.i.Confirmed() || !target.Behind() || first[2] != byte(era+1) {
			t.Fatalf("era %d, confirmed %v, target behind %v, prefix %x", i.Sealer.Era(), r.i.Confirmed(), target.Behind(), first[:8])
		}
		target.expect(t, first, text)
		if target.Behind() {
			t.Fatal("the target is behind after a capsule of the era")
		}
		i.expect(t, late, text)
		i.expect(t, target.capsule(t, text), text)
		if !r.i.Confirmed() {
			t.Fatal("the initiator waits for a target that has followed")
		}
		q := new(seal.Payload)
		target.expect(t, i.capsule(t, text), text)
		if err := target.Opener.Payload(q); err != nil {
			t.Fatal(err)
		}
		record := sealRecord(t, payload, text, 0, "header")
		if _, err := record.open(t, q); err == nil {
			t.Fatal("payload opens as that of another command")
		}
	}
	if n := i.Sealer.Generation(); n != 3 {
		t.Errorf("generation %d", n)
	}
}

// Payload of a command moves with the keys of its capsule, through any number
// of rekeys until it is opened.
func TestPayloadThroughRekeys(t *testing.T) {
	r := newRekeyed(t, seal.Limits{})
	i, target := r.connect(t, 1)
	sent, got := command(t, i, target, 100)
	write := sealRecord(t, sent, text, 0, "write")
	for range 2 {
		r.target(t)
		r.initiator(t)
		target.expect(t, i.capsule(t, text), text)
		i.expect(t, target.capsule(t, text), text)
	}
	if b, err := write.open(t, got); err != nil || !bytes.Equal(b, text) {
		t.Errorf("payload of the initiator: %v", err)
	}
	if b, err := sealRecord(t, got, text, 1, "read").open(t, sent); err != nil || !bytes.Equal(b, text) {
		t.Errorf("payload of the target: %v", err)
	}
}

// The keys of a payload that has the next capsule are those of the capsule: an
// era that is due waits for the capsule.
func TestRekeyAmidCommand(t *testing.T) {
	r := newRekeyed(t, seal.Limits{})
	i, target := r.connect(t, 1)
	p, q := new(seal.Payload), new(seal.Payload)
	if err := i.Sealer.Payload(p, 100); err != nil {
		t.Fatal(err)
	}
	r.target(t)
	r.initiator(t)
	target.expect(t, i.capsule(t, text), text)
	if err := target.Opener.Payload(q); err != nil {
		t.Fatal(err)
	}
	if _, err := sealRecord(t, p, text, 0, "").open(t, q); err != nil {
		t.Error("payload of a command amid a rekey:", err)
	}
	if target.expect(t, i.capsule(t, text), text); i.Sealer.Era() != 1 {
		t.Error("the era does not begin behind the command")
	}
}

// A connection that was idle for several rekeys begins the latest era.
func TestRekeysOfIdleConnection(t *testing.T) {
	for _, n := range []int{2, 300} {
		r := newRekeyed(t, seal.Limits{})
		i, target := r.connect(t, 1)
		for range n {
			r.target(t)
			r.initiator(t)
		}
		r.t.Retire()
		target.Retire()
		target.expect(t, i.capsule(t, text), text)
		i.expect(t, target.capsule(t, text), text)
		if int(i.Sealer.Era()) != n {
			t.Errorf("era %d", i.Sealer.Era())
		}
	}
}

// A capsule of an era that another rekey has followed meanwhile opens, until
// the target has retired that era.
func TestCapsuleOfPreviousEra(t *testing.T) {
	for _, retired := range []bool{false, true} {
		r := newRekeyed(t, seal.Limits{})
		i, target := r.connect(t, 1)
		r.target(t)
		r.initiator(t)
		b := i.capsule(t, text)
		r.target(t)
		if retired {
			r.t.Retire()
			target.refuse(t, b)
		} else {
			target.expect(t, b, text)
		}
	}
}

// The old keys are of no use when the switch has ended: not to seal for a
// target that has opened the new ones, nor for one that has retired the old,
// nor to join.
func TestOldKeysAfterRekey(t *testing.T) {
	follow := func(i, target end) {
		target.expect(t, i.capsule(t, text), text)
		i.expect(t, target.capsule(t, text), text)
	}
	for name, c := range map[string]struct {
		end   func(i, target end)
		after int // capsules
		by    seal.End
	}{
		"of the initiator": {follow, 1, seal.Initiator},
		"of the target":    {follow, 1, seal.Target},
		"retired":          {func(_, target end) { target.Retire() }, 0, seal.Initiator},
	} {
		t.Run(name, func(t *testing.T) {
			r := newRekeyed(t, seal.Limits{})
			i, target := r.connect(t, 1)
			thief, other := newRekeyed(t, seal.Limits{}).connect(t, 1) // with the old keys
			victim := target
			if c.by == seal.Target {
				thief, victim = other, i
			}
			r.target(t)
			r.initiator(t)
			c.end(i, target)
			for range c.after {
				thief.capsule(t, text)
			}
			victim.refuse(t, thief.capsule(t, text))
		})
	}
	r := newRekeyed(t, seal.Limits{})
	old := r.t.Named([seal.NameSize]byte{4})
	r.target(t)
	if r.t.Named([seal.NameSize]byte{4}) != old || !old.Same(r.t) {
		t.Error("a connection cannot join by the old name amid the switch")
	}
	r.t.Retire()
	if r.t.Named([seal.NameSize]byte{4}) != nil || r.t.Named([seal.NameSize]byte{4, 1}) == nil {
		t.Error("a connection joins by the old name, or not by the new one")
	}
	if _, _, err := old.Conn(1, 1, nonce(1), nonce(2), seal.Target); err != seal.ErrCleared {
		t.Errorf("a connection of the old keys: %v", err)
	}
	if _, err := old.Proof(seal.Target); err != seal.ErrCleared {
		t.Errorf("a proof by the old keys: %v", err)
	}
	r.target(t)
	latest := r.t.Named([seal.NameSize]byte{4, 2})
	r.t.Clear()
	for _, s := range []*seal.Session{latest, r.t} {
		if _, err := s.Proof(seal.Target); err != seal.ErrCleared {
			t.Errorf("a proof after the session: %v", err)
		}
	}
}

// A prefix that tells another era than the capsule has opens nothing, at either
// end, amid a rekey or not.
func TestForgedEras(t *testing.T) {
	for era := range 256 {
		for _, rekeys := range []int{0, 1} {
			r := newRekeyed(t, seal.Limits{})
			i, target := r.connect(t, 1)
			for range rekeys {
				r.target(t)
				r.initiator(t)
			}
			b := i.capsule(t, text)
			if int(b[2]) == era {
				continue
			}
			b[2] = byte(era)
			target.refuse(t, b)
			b = target.capsule(t, text)
			if b[2] = byte(era); era != 0 {
				i.refuse(t, b)
			}
		}
	}
}

// A connection that ends waits for its target no longer, and a session that has
// ended leaves its connections the keys that they have.
func TestEndAmidRekey(t *testing.T) {
	r := newRekeyed(t, seal.Limits{})
	i, _ := r.connect(t, 1)
	j, target := r.connect(t, 2)
	r.initiator(t)
	i.capsule(t, text)
	if r.i.Confirmed() {
		t.Fatal("confirmed amid a rekey")
	}
	i.Detach()
	i.Detach()
	if !r.i.Confirmed() {
		t.Error("not confirmed after the end of the connection")
	}
	r.i.Clear()
	target.expect(t, j.capsule(t, text), text)
	if !r.i.Confirmed() || j.Sealer.Era() != 0 {
		t.Error("a connection begins an era of a session that has ended")
	}
}

// A connection whose owner does not read the answers of the target begins each
// era all the same: the target may retire the one before. The answers open in
// order.
func TestRekeysWithoutReading(t *testing.T) {
	r := newRekeyed(t, seal.Limits{})
	i, target := r.connect(t, 1)
	answers := [][]byte{target.capsule(t, text)}
	for range 3 {
		r.target(t)
		r.initiator(t)
		target.expect(t, i.capsule(t, text), text)
		answers = append(answers, target.capsule(t, text), target.capsule(t, text))
		r.t.Retire()
		target.Retire()
	}
	for _, b := range answers {
		if r.i.Confirmed() {
			t.Error("confirmed before the answer is read")
		}
		i.expect(t, b, text)
		if n := i.Opener.Generation(); n > 3 {
			t.Fatalf("generation %d", n)
		}
		if i.Opener.Behind() == r.i.Confirmed() {
			t.Errorf("behind %v, confirmed %v", i.Opener.Behind(), r.i.Confirmed())
		}
		if r.i.Confirmed() {
			break
		}
	}
	i.expect(t, answers[len(answers)-1], text)
	if !r.i.Confirmed() {
		t.Error("not confirmed by the last answer")
	}
}
