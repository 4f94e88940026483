package seal

import (
	"encoding/binary"
	"errors"
)

const (
	// Opcode is the first byte of a capsule.
	Opcode = 0x90

	// PrefixSize is the room before a message, in bytes.
	PrefixSize = 8

	// Overhead is how much longer a capsule is than its message, in bytes.
	Overhead = PrefixSize + tagSize

	generationAt = 1 // modulo 256
	eraAt        = 2 // modulo 256
	reservedAt   = 3 // 0
	counterAt    = 4 // low 32 bits
)

var errRoom = errors.New("no room for the prefix and the tag of a capsule")

// Sealer seals what one end sends on a connection.
type Sealer struct {
	chain  chain
	end    End
	limits Limits
	link   *link

	counter  uint64 // of the next capsule
	capsules uint64 // of the generation
	blocks   uint64 // of the generation
	due      bool   // for the next generation
	claimed  bool   // a payload has the counter
	nonce    [ivSize]byte
}

// Capsule seals in place the message b[PrefixSize:PrefixSize+n], and returns
// the length of the capsule, which is at b, and its counter. It does not
// allocate, except when a generation ends with this capsule, or an era before
// it.
func (s *Sealer) Capsule(b []byte, n int) (total int, counter uint64, err error) {
	if n < 0 || len(b) < n+Overhead {
		return 0, 0, errRoom
	}
	s.follow()
	counter = s.counter
	b[0], b[generationAt], b[eraAt], b[reservedAt] = Opcode, byte(s.chain.generation), byte(s.chain.era), 0
	binary.LittleEndian.PutUint32(b[counterAt:], uint32(counter))
	key := &s.chain.keys.capsules
	key.nonce(&s.nonce, 0, counter)
	s.limits.observe(key, &s.nonce)
	key.gcm.Seal(b[PrefixSize:PrefixSize], s.nonce[:], b[PrefixSize:PrefixSize+n], b[:PrefixSize])
	s.counter, s.claimed = counter+1, false
	s.capsules++
	s.blocks += blocks(n)
	if s.due || s.blocks >= s.limits.Blocks || s.capsules >= s.limits.Capsules {
		s.chain.ratchet()
		s.capsules, s.blocks, s.due = 0, 0, false
	}
	return n + Overhead, counter, nil
}

// Ratchet ends the generation with the next capsule. The owner calls it when
// the generation has lived long enough.
func (s *Sealer) Ratchet() { s.due = true }

// Generation returns how many generations of keys the connection has sealed
// with before the present one, in all eras.
func (s *Sealer) Generation() uint64 { return s.chain.generations() }

// observe tells the observer what is sealed now.
func (l *Limits) observe(key *aead, nonce *[ivSize]byte) {
	if l.Observer != nil {
		l.Observer(key.id, *nonce)
	}
}

// Opener opens what the peer sends on a connection.
type Opener struct {
	chain   chain
	end     End // that opens
	limits  Limits
	link    *link
	retired bool // the era: the next capsule is of a later one

	counter   uint64 // of the next capsule
	claimable bool   // the payload of the capsule before it
	last      *keys  // of the capsule before it
	failed    bool
	nonce     [ivSize]byte
}

// Capsule opens the capsule b in place, and returns its message, which is in b,
// and its counter. No peer may write b meanwhile: b is private memory. The
// error is [ErrForged], and then for all that follow. Capsule does not
// allocate, except when a generation begins.
func (o *Opener) Capsule(b []byte) (message []byte, counter uint64, err error) {
	if o.failed {
		return nil, 0, ErrForged
	}
	o.failed, o.claimable = true, false // until it is opened
	if len(b) < Overhead || b[0] != Opcode || b[reservedAt] != 0 ||
		binary.LittleEndian.Uint32(b[counterAt:]) != uint32(o.counter) {
		return nil, 0, ErrForged
	}
	switch {
	case o.retired || b[eraAt] != byte(o.chain.era):
		message, err = o.openLater(b)
	case b[generationAt] == byte(o.chain.generation):
		message, err = o.open(o.chain.keys, b)
	case b[generationAt] == byte(o.chain.generation+1):
		next := o.chain.next()
		if message, err = o.open(next.keys, b); err == nil {
			clear(o.chain.secret[:])
			o.chain = next
		}
		clear(next.secret[:])
	default:
		err = ErrForged
	}
	if err != nil {
		return nil, 0, ErrForged
	}
	counter = o.counter
	o.counter, o.last, o.failed, o.claimable = counter+1, o.chain.keys, false, true
	return message, counter, nil
}

// open opens the next capsule with keys.
func (o *Opener) open(keys *keys, b []byte) ([]byte, error) {
	key := &keys.capsules
	key.nonce(&o.nonce, 0, o.counter)
	return key.gcm.Open(b[PrefixSize:PrefixSize], o.nonce[:], b[PrefixSize:], b[:PrefixSize])
}

// Generation returns how many generations of keys the peer has sealed with
// before the present one, in all eras.
func (o *Opener) Generation() uint64 { return o.chain.generations() }
