package seal_test

import (
	"bytes"
	"crypto/aes"
	"crypto/cipher"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"testing"

	"github.com/viablk/viablk/internal/seal"
)

func mac(key []byte, parts ...[]byte) []byte {
	h := hmac.New(sha256.New, key)
	for _, p := range parts {
		h.Write(p)
	}
	return h.Sum(nil)
}

// expand is HKDF-Expand of RFC 5869 for at most 32 bytes.
func expand(secret []byte, info string, n int) []byte {
	return mac(secret, []byte(info), []byte{1})[:n]
}

// gcm seals with the keys called what of a secret.
func gcm(t *testing.T, secret []byte, what string, record, counter byte, plain, header []byte) []byte {
	t.Helper()
	block, err := aes.NewCipher(expand(secret, "viablk1 "+what+" key", 32))
	if err != nil {
		t.Fatal(err)
	}
	a, err := cipher.NewGCM(block)
	if err != nil {
		t.Fatal(err)
	}
	iv := expand(secret, "viablk1 "+what+" iv", 12)
	iv[0] ^= record
	iv[4] ^= counter
	return a.Seal(nil, iv, plain, header)
}

// The schedule is that of the package comment, computed here by other means,
// and the bytes stay what they are.
func TestGoldenSchedule(t *testing.T) {
	nI, nT, cI, cT := nonce(2), nonce(3), nonce(5), nonce(6)
	prk := mac(append(nI[:], nT[:]...), pattern(64, 1))
	conn := expand(prk, "viablk1 conn\x03\x00\x01\x00\x00\x00"+string(cI[:])+string(cT[:]), 32)
	fromI, fromT := expand(conn, "viablk1 from initiator", 32), expand(conn, "viablk1 from target", 32)
	next := expand(fromI, "viablk1 next", 32)

	session := newSession(t, seal.Limits{})
	i, target := connect(t, session, 3)
	message, header := []byte("sixteen byte msg"), pattern(64, 9)
	var digest []byte
	check := func(what string, got, want []byte) {
		t.Helper()
		if !bytes.Equal(got, want) {
			t.Errorf("%s:\n%x, want\n%x", what, got, want)
		}
		digest = mac([]byte(what), digest, got)
	}
	prefixed := func(prefix string, sealed []byte) []byte { return append([]byte(prefix), sealed...) }

	for c := range byte(2) { // two capsules, of which the second ends the generation
		if c == 1 {
			i.Ratchet()
		}
		prefix := "\x90\x00\x00\x00" + string(c) + "\x00\x00\x00"
		b := i.capsule(t, message)
		check("capsule", b, prefixed(prefix, gcm(t, fromI, "capsule", 0, c, message, []byte(prefix))))
		target.expect(t, b, message)
	}
	var p, q seal.Payload
	if err := i.Sealer.Payload(&p, len(message)); err != nil {
		t.Fatal(err)
	}
	b := i.capsule(t, message)
	const prefix = "\x90\x01\x00\x00\x02\x00\x00\x00"
	check("capsule of the next generation", b, prefixed(prefix, gcm(t, next, "capsule", 0, 2, message, []byte(prefix))))
	target.expect(t, b, message)
	if err := target.Opener.Payload(&q); err != nil {
		t.Fatal(err)
	}
	for what, end := range map[string]*seal.Payload{"data": &p, "read": &q} {
		r := sealRecord(t, end, message, 5, string(header))
		check(what, append(r.b, r.tag[:]...), gcm(t, next, what, 5, 2, message, header))
		digest = nil
	}
	const reply = "\x90\x00\x00\x00\x00\x00\x00\x00"
	b = target.capsule(t, message)
	check("reply", b, prefixed(reply, gcm(t, fromT, "capsule", 0, 0, message, []byte(reply))))
	i.expect(t, b, message)

	proof, err := session.Proof(seal.Target, []byte("a"), []byte("bc"))
	if err != nil {
		t.Fatal(err)
	}
	check("proof", proof[:], mac(expand(prk, "viablk1 join", 32), []byte("targetabc")))
	if got, want := hex.EncodeToString(digest), "7d0ae65ab13c985e059081790237729a5085767344e5d51168b1789293b0eac8"; got != want {
		t.Errorf("the bytes of version 1 have changed: %s", got)
	}
}

func TestProof(t *testing.T) {
	s := newSession(t, seal.Limits{})
	proof, err := s.Proof(seal.Initiator, []byte("part"))
	if err != nil || !s.VerifyProof(&proof, seal.Initiator, []byte("part")) {
		t.Fatalf("own proof refused, %v", err)
	}
	if s.VerifyProof(&proof, seal.Target, []byte("part")) || s.VerifyProof(&proof, seal.Initiator, []byte("parT")) {
		t.Error("the proof of something else accepted")
	}
	for bit := range 8 * len(proof) {
		changed := proof
		changed[bit/8] ^= 1 << (bit % 8)
		if s.VerifyProof(&changed, seal.Initiator, []byte("part")) {
			t.Fatalf("accepted with bit %d flipped", bit)
		}
	}
	s.Clear()
	var zero [32]byte
	for _, p := range [][32]byte{proof, zero, seal.Proof(&zero, seal.Initiator, []byte("part"))} {
		if s.VerifyProof(&p, seal.Initiator, []byte("part")) {
			t.Error("accepted after the keys were cleared")
		}
	}
	if _, _, err := s.Conn(1, 1, nonce(1), nonce(2), seal.Target); err != seal.ErrCleared {
		t.Errorf("a connection after the keys were cleared: %v", err)
	}
}

// Other inputs give other keys: the connection opens nothing.
func TestOtherKeysOpenNothing(t *testing.T) {
	type conn struct {
		ekm, nonceI, nonceT, joinI, joinT byte
		conn                              uint16
		epoch                             uint32
	}
	same := conn{ekm: 1, nonceI: 2, nonceT: 3, joinI: 5, joinT: 6, conn: 1, epoch: 1}
	open := func(c conn, role seal.End) (e end) {
		s, err := seal.NewSession(pattern(64, c.ekm), nonce(c.nonceI), nonce(c.nonceT), [16]byte{}, seal.Limits{})
		if err != nil {
			t.Fatal(err)
		}
		if e.Sealer, e.Opener, err = s.Conn(c.conn, c.epoch, nonce(c.joinI), nonce(c.joinT), role); err != nil {
			t.Fatal(err)
		}
		return e
	}
	b := open(same, seal.Initiator).capsule(t, []byte("message"))
	open(same, seal.Target).expect(t, b, []byte("message"))
	for i, other := range []conn{
		{9, 2, 3, 5, 6, 1, 1},
		{1, 9, 3, 5, 6, 1, 1},
		{1, 2, 9, 5, 6, 1, 1},
		{1, 3, 2, 5, 6, 1, 1},
		{1, 2, 3, 9, 6, 1, 1},
		{1, 2, 3, 5, 9, 1, 1},
		{1, 2, 3, 6, 5, 1, 1},
		{1, 2, 3, 5, 6, 2, 1},
		{1, 2, 3, 5, 6, 1, 2},
	} {
		t.Run(fmt.Sprint(i), func(t *testing.T) { open(other, seal.Target).refuse(t, b) })
	}
	open(same, seal.Initiator).refuse(t, b) // reflected to who sealed it
}

// An era has the schedule of a session's keys, with the nonces of the
// connection, and goes on with its counters; the bytes stay what they are.
func TestGoldenEra(t *testing.T) {
	nI, nT, cI, cT := nonce(2), nonce(3), nonce(5), nonce(6)
	prk := mac(append(nI[:], nT[:]...), pattern(64, 101))
	conn := expand(prk, "viablk1 conn\x03\x00\x01\x00\x00\x00"+string(cI[:])+string(cT[:]), 32)
	r := newRekeyed(t, seal.Limits{})
	i, target := r.connect(t, 3)
	target.expect(t, i.capsule(t, text), text)
	i.Ratchet()
	target.expect(t, i.capsule(t, text), text)
	r.target(t)
	r.initiator(t)
	var digest []byte
	for _, c := range []struct {
		from, to end
		secret   string
		prefix   string
		counter  byte
	}{
		{i, target, "viablk1 from initiator", "\x90\x00\x01\x00\x02\x00\x00\x00", 2},
		{target, i, "viablk1 from target", "\x90\x00\x01\x00\x00\x00\x00\x00", 0},
	} {
		b := c.from.capsule(t, text)
		want := append([]byte(c.prefix), gcm(t, expand(conn, c.secret, 32), "capsule", 0, c.counter, text, []byte(c.prefix))...)
		if !bytes.Equal(b, want) {
			t.Errorf("%s: %x, want %x", c.secret, b, want)
		}
		c.to.expect(t, b, text)
		digest = mac([]byte(c.secret), digest, b)
	}
	if got, want := hex.EncodeToString(digest), "1fc8f4fa08c1c2ec8b8c6272ee4230533a2be9aaebb1675f87dec5e503bbb858"; got != want {
		t.Errorf("the bytes of an era have changed: %s", got)
	}
}
