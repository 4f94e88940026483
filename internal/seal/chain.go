package seal

import (
	"crypto/aes"
	"crypto/cipher"
	"crypto/sha256"
	"encoding/binary"
)

const (
	ivSize  = 12
	tagSize = 16 // bytes
)

// chain is the secrets of one direction of a connection, of which only the
// latest is kept.
type chain struct {
	from       End
	era        uint64
	secret     [secretSize]byte
	generation uint64 // of the era
	before     uint64 // generations of earlier eras
	keys       *keys
}

// keys are those of one generation. Payloads hold them for as long as they are
// in flight.
type keys struct {
	capsules aead
	fromI    aead // payload of commands; only in the initiator's direction
	fromT    aead
}

// aead is a key and its iv.
type aead struct {
	gcm cipher.AEAD
	iv  [ivSize]byte
	id  [8]byte // tells keys apart
}

func newChain(secret *[secretSize]byte, from End, era uint64) chain {
	c := chain{from: from, era: era}
	expand(c.secret[:], secret, "viablk1 from "+string(from))
	c.keys = c.derive()
	return c
}

// derive returns the keys of the generation.
func (c *chain) derive() *keys {
	k := &keys{capsules: c.deriveAEAD("capsule")}
	if c.from == Initiator {
		k.fromI, k.fromT = c.deriveAEAD("data"), c.deriveAEAD("read")
	}
	return k
}

func (c *chain) deriveAEAD(what string) (a aead) {
	var key [secretSize]byte
	defer clear(key[:])
	expand(key[:], &c.secret, "viablk1 "+what+" key")
	expand(a.iv[:], &c.secret, "viablk1 "+what+" iv")
	block, err := aes.NewCipher(key[:])
	if err == nil {
		a.gcm, err = cipher.NewGCM(block)
	}
	if err != nil { // Available has refused a mode that forbids it
		panic(err)
	}
	sum := sha256.Sum256(key[:])
	a.id = [8]byte(sum[:])
	return a
}

// next returns the chain of the next generation.
func (c *chain) next() chain {
	n := chain{from: c.from, era: c.era, generation: c.generation + 1, before: c.before}
	expand(n.secret[:], &c.secret, "viablk1 next")
	n.keys = n.derive()
	return n
}

// ratchet forgets the generation.
func (c *chain) ratchet() {
	n := c.next()
	clear(c.secret[:])
	*c = n
	clear(n.secret[:])
}

// succeed replaces the chain by one of a later era, which it clears.
func (c *chain) succeed(next *chain) {
	next.before = c.generations() + 1
	clear(c.secret[:])
	*c = *next
	clear(next.secret[:])
}

// generations returns how many generations there were before.
func (c *chain) generations() uint64 { return c.before + c.generation }

// nonce writes the nonce of a record to n.
func (a *aead) nonce(n *[ivSize]byte, record uint32, counter uint64) {
	low, high := binary.LittleEndian.Uint32(a.iv[:]), binary.LittleEndian.Uint64(a.iv[4:])
	binary.LittleEndian.PutUint32(n[:], low^record)
	binary.LittleEndian.PutUint64(n[4:], high^counter)
}

// blocks returns how many AES blocks n sealed bytes count for: one more hides
// the tag, and one holds what is authenticated only.
func blocks(n int) uint64 { return uint64(n+15)/16 + 2 }
