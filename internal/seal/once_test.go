package seal_test

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/viablk/viablk/internal/seal"
)

// uses is every nonce under every key.
type uses struct {
	seen map[string]bool
	keys map[[8]byte]bool
	bad  int // sealed twice
}

func (u *uses) observe(key [8]byte, nonce [12]byte) {
	if u.seen == nil {
		u.seen, u.keys = map[string]bool{}, map[[8]byte]bool{}
	}
	at := fmt.Sprintf("%x %x", key, nonce)
	if u.seen[at] {
		u.bad++
	}
	u.seen[at], u.keys[key] = true, true
}

// No nonce is used twice under one key: on connections of one session, in both
// directions, over generations, with ends that retry what they have sealed.
func TestNoncesAreUsedOnce(t *testing.T) {
	var u uses
	session := newSession(t, seal.Limits{Capsules: 7, Observer: u.observe})
	r := rand.New(rand.NewPCG(3, 4))
	var tag [seal.TagSize]byte
	b := make([]byte, 100)
	retried := 0
	for c := range 8 {
		i, target := connect(t, session, uint16(c))
		for range 500 {
			p, q := command(t, i, target, 4*seal.RecordSize)
			for _, end := range []*seal.Payload{p, q} {
				for range r.IntN(6) {
					err := end.Seal(b, b, r.IntN(4), nil, &tag)
					if err != nil && !errors.Is(err, seal.ErrReused) {
						t.Fatal(err)
					}
					if err != nil {
						retried++
					}
				}
			}
			i.expect(t, target.capsule(t, b), b)
		}
	}
	if u.bad != 0 || retried == 0 {
		t.Errorf("%d of %d sealed twice, with %d retries", u.bad, len(u.seen), retried)
	}
	if len(u.keys) < 8*2*500/7 {
		t.Errorf("only %d keys", len(u.keys))
	}
}

// The observer finds an end that seals again: here two ends that play the same
// part, as an end would that began its counters again.
func TestObserverFindsReuse(t *testing.T) {
	var u uses
	session := newSession(t, seal.Limits{Observer: u.observe})
	for range 2 {
		i, _ := connect(t, session, 1)
		i.capsule(t, []byte("message"))
	}
	if u.bad != 1 {
		t.Errorf("%d found", u.bad)
	}
	i, target := connect(t, session, 2)
	command(t, i, target, 16)
	again, _ := connect(t, session, 2)
	var tag [seal.TagSize]byte
	for range 2 {
		var p seal.Payload
		b := make([]byte, 16)
		if err := again.Sealer.Payload(&p, 16); err != nil {
			t.Fatal(err)
		}
		if err := p.Seal(b, b, 0, nil, &tag); err != nil {
			t.Fatal(err)
		}
		again, _ = connect(t, session, 2)
	}
	if u.bad != 2 {
		t.Errorf("%d found", u.bad)
	}
}

// A command has one payload at each end, and only commands have.
func TestOnePayloadForACommand(t *testing.T) {
	i, target := connect(t, newSession(t, seal.Limits{}), 1)
	var p seal.Payload
	if err := target.Opener.Payload(&p); !errors.Is(err, seal.ErrReused) {
		t.Errorf("before a command: %v", err)
	}
	command(t, i, target, 16)
	if err := target.Opener.Payload(&p); !errors.Is(err, seal.ErrReused) {
		t.Errorf("the second of a command: %v", err)
	}
	if err := i.Sealer.Payload(&p, 16); err != nil {
		t.Fatal(err)
	}
	if err := i.Sealer.Payload(&p, 16); !errors.Is(err, seal.ErrReused) {
		t.Errorf("the second before a capsule: %v", err)
	}
	if err := target.Sealer.Payload(&p, 16); err == nil {
		t.Error("a command of the target")
	}
	i.expect(t, target.capsule(t, nil), nil)
	if err := i.Opener.Payload(&p); err == nil {
		t.Error("a command for the initiator")
	}
}
