package seal

import "errors"

// RecordSize is the length of a record of payload, in bytes; only the last one
// of a command is shorter.
const RecordSize = 128 << 10

// TagSize is the length of a record's tag, in bytes.
const TagSize = tagSize

// MaxPayload bounds the payload of a command, in bytes: its tags go in a
// message.
const MaxPayload = 32 << 20

// Records returns how many records n bytes of payload are.
func Records(n int) int { return (n + RecordSize - 1) / RecordSize }

// TagsSize returns how long the tags of n bytes of payload are.
func TagsSize(n uint32) int { return Records(int(n)) * TagSize }

// CheckTags checks that tags of a peer are as long as those of n bytes of
// payload.
func CheckTags(tags []byte, n uint32) error {
	if len(tags) != TagsSize(n) {
		return errTags
	}
	return nil
}

// ErrReused is the error for sealing a record a second time, which would tell
// an attacker what both have in common.
var ErrReused = errors.New("a record of payload is sealed once")

var (
	errRecord = errors.New("a record of payload has 1 to 131072 bytes")
	errTags   = errors.New("other tags than the payload has records")
	errEnd    = errors.New("only commands have payload, which an initiator sends and a target receives")
)

// scratch is private memory of a connection for one record and its tag.
type scratch struct {
	b     []byte // made with the first payload
	nonce [ivSize]byte
}

func (s *scratch) bytes() []byte {
	if s.b == nil {
		s.b = make([]byte, RecordSize+tagSize)
	}
	return s.b
}

// Payload is the keys of the payload of one command. The owner of the command
// keeps it by value beside the command and does not copy it. The zero value is
// of no command.
type Payload struct {
	_       noCopy
	keys    *keys
	scratch *scratch
	observe func(key [8]byte, nonce [ivSize]byte)
	counter uint64
	end     End
	next    uint32 // record that may be sealed
}

// noCopy has go vet find copies: a copy could seal a record again.
type noCopy struct{}

func (*noCopy) Lock()   {}
func (*noCopy) Unlock() {}

// Payload readies p for the command whose capsule is sealed next, and counts
// the bytes of its payload, of either direction. It returns [ErrReused] the
// second time before a capsule. Only an initiator has commands.
func (s *Sealer) Payload(p *Payload, bytes int) error {
	if s.claimed {
		return ErrReused
	}
	if s.end != Initiator {
		return errEnd
	}
	s.follow()
	s.claimed = true
	s.blocks += uint64(bytes+15)/16 + 2*uint64(Records(bytes))
	p.start(s.chain.keys, &s.link.scratch, s.limits.Observer, s.counter, s.end)
	return nil
}

// Payload readies p for the command whose capsule was opened last. It returns
// [ErrReused] the second time, and before a capsule was opened. Only a target
// has commands.
func (o *Opener) Payload(p *Payload) error {
	if !o.claimable {
		return ErrReused
	}
	if o.end != Target {
		return errEnd
	}
	o.claimable = false
	p.start(o.last, &o.link.scratch, o.limits.Observer, o.counter-1, o.end)
	return nil
}

func (p *Payload) start(keys *keys, s *scratch, observe func([8]byte, [ivSize]byte), counter uint64, end End) {
	p.keys, p.scratch, p.observe, p.counter, p.end, p.next = keys, s, observe, counter, end, 0
}

// Clear forgets the command.
func (p *Payload) Clear() { p.start(nil, nil, nil, 0, "") }

// Seal seals src as a record into dst, which has the same length and may be
// src, and its tag into tag. header is what says what the payload is for: it is
// authenticated. Seal reads src once, and dst not at all: it may be memory that
// a peer can write. GCM that seals into dst itself may read back what it
// authenticates, as that of Go without assembly does, and so make a valid tag
// for what a peer has written there meanwhile.
//
// Records are sealed in ascending order and each once; the error is [ErrReused]
// otherwise. Seal does not allocate.
func (p *Payload) Seal(dst, src []byte, record int, header []byte, tag *[TagSize]byte) error {
	n := len(src)
	switch {
	case n == 0 || n > RecordSize || len(dst) != n || record < 0:
		return errRecord
	case p.keys == nil || uint32(record) < p.next:
		return ErrReused
	}
	p.next = uint32(record) + 1
	key := p.keys.of(p.end)
	b, nonce := p.scratch.bytes(), &p.scratch.nonce
	key.nonce(nonce, uint32(record), p.counter)
	if p.observe != nil {
		p.observe(key.id, *nonce)
	}
	key.gcm.Seal(b[:0], nonce[:], src, header)
	copy(dst, b[:n])
	copy(tag[:], b[n:n+tagSize])
	return nil
}

// Open opens src as a record of the peer into dst, which has the same length
// and may be src. It reads src once: a peer may write it meanwhile, and what is
// in dst is what was authenticated. dst is private memory; with an error, which
// is [ErrForged], it is cleared. Open does not allocate.
func (p *Payload) Open(dst, src []byte, record int, header []byte, tag *[TagSize]byte) error {
	n := len(src)
	if n == 0 || n > RecordSize || len(dst) != n || record < 0 || p.keys == nil {
		clear(dst)
		return ErrForged
	}
	key := p.keys.of(p.end.other())
	b, nonce := p.scratch.bytes(), &p.scratch.nonce
	copy(b, src)
	copy(b[n:], tag[:])
	key.nonce(nonce, uint32(record), p.counter)
	if _, err := key.gcm.Open(dst[:0:n], nonce[:], b[:n+tagSize], header); err != nil {
		clear(dst)
		return ErrForged
	}
	return nil
}

// SealAll seals src, the whole payload, into dst, and its tags into the
// beginning of tags, see [Payload.Seal]. dst is as long as src or longer.
func (p *Payload) SealAll(dst, src, header, tags []byte) error {
	return all(dst, src, header, tags, p.Seal)
}

// OpenAll opens src, the whole payload, into dst, see [Payload.Open]. dst is as
// long as src or longer. With an error the records before the one that is
// forged are in dst.
func (p *Payload) OpenAll(dst, src, header, tags []byte) error {
	return all(dst, src, header, tags, p.Open)
}

// all calls do for each record of src.
func all(dst, src, header, tags []byte, do func(dst, src []byte, record int, header []byte, tag *[TagSize]byte) error) error {
	if len(dst) < len(src) {
		return errRecord
	}
	if len(tags) < Records(len(src))*TagSize {
		return errTags
	}
	for i := 0; len(src) > 0; i++ {
		n := min(len(src), RecordSize)
		if err := do(dst[:n], src[:n], i, header, (*[TagSize]byte)(tags)); err != nil {
			return err
		}
		dst, src, tags = dst[n:], src[n:], tags[TagSize:]
	}
	return nil
}

// of returns the key of payload from an end.
func (k *keys) of(end End) *aead {
	if end == Initiator {
		return &k.fromI
	}
	return &k.fromT
}
