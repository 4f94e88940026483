package seal

import (
	"crypto/aes"
	"crypto/cipher"
	"crypto/hkdf"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"sync"
)

// End is which end of a session seals or proves something.
type End string

// The ends.
const (
	Initiator End = "initiator"
	Target    End = "target"
)

// other returns the peer.
func (e End) other() End {
	if e == Initiator {
		return Target
	}
	return Initiator
}

const (
	// ExportSize is the length of what a handshake exports, in bytes.
	ExportSize = 64

	// NameSize is the length of the name of a session's keys, in bytes.
	NameSize = 16

	// NonceSize is the length of a nonce of a handshake, in bytes.
	NonceSize = 32

	// ProofSize is the length of a proof, in bytes.
	ProofSize = sha256.Size

	secretSize = 32 // bytes, of a secret and of a key
)

var (
	// ErrForged is the error for everything that the peer did not seal, or
	// did not seal as what it is received as.
	ErrForged = errors.New("forged message")

	// ErrCleared is the error for using a session that has ended.
	ErrCleared = errors.New("the keys of the session are gone")

	// ErrMode is the error in a process whose mode forbids AES-GCM with nonces
	// that a protocol counts.
	ErrMode = errors.New("sealed sessions need AES-GCM with counted nonces, which GODEBUG=fips140=only forbids: " +
		"run without it, or with GODEBUG=fips140=on")
)

// Limits are how much one generation of keys seals. Zero values mean the
// defaults. An end keeps its own; the peer follows.
type Limits struct {
	Blocks   uint64 // AES blocks of 16 bytes; 0 means 2^34
	Capsules uint64 // 0 means 2^32

	// Observer, if it is set, is told each nonce under which this end seals,
	// and the key by a hash that tells keys apart. It is for tests.
	Observer func(key [8]byte, nonce [12]byte)
}

const (
	maximumBlocks   = 1 << 34
	maximumCapsules = 1 << 32
)

// Session is the keys of one authenticated session, until a rekey: another one
// follows it then.
type Session struct {
	name   [NameSize]byte
	limits Limits
	ring   *ring
	era    uint64 // how many sessions it follows

	mu      sync.Mutex
	cleared bool             // +checklocks:mu
	prk     [secretSize]byte // +checklocks:mu
	join    [secretSize]byte // +checklocks:mu
}

// Available returns [ErrMode] if this process cannot seal.
func Available() error {
	var key [secretSize]byte
	block, err := aes.NewCipher(key[:])
	if err == nil {
		_, err = cipher.NewGCM(block)
	}
	if err != nil {
		return fmt.Errorf("%w (%w)", ErrMode, err)
	}
	return nil
}

// NewSession returns the session of a handshake: ekm is the ExportSize bytes
// that both ends exported, which stay the caller's to clear; the nonces are
// those of its first two messages, and name is the one that connections join it
// by. The error is [ErrMode].
func NewSession(ekm []byte, nonceI, nonceT [NonceSize]byte, name [NameSize]byte, limits Limits) (*Session, error) {
	if len(ekm) != ExportSize {
		return nil, fmt.Errorf("exported %d bytes, not %d", len(ekm), ExportSize)
	}
	if err := Available(); err != nil {
		return nil, err
	}
	if limits.Blocks == 0 {
		limits.Blocks = maximumBlocks
	}
	if limits.Capsules == 0 {
		limits.Capsules = maximumCapsules
	}
	prk, err := hkdf.Extract(sha256.New, ekm, append(nonceI[:], nonceT[:]...))
	if err != nil {
		return nil, fmt.Errorf("derive the keys of a session: %w", err)
	}
	s := &Session{name: name, limits: limits, prk: [secretSize]byte(prk)}
	s.ring = &ring{latest: s}
	clear(prk)
	expand(s.join[:], &s.prk, "viablk1 join")
	return s, nil
}

// expand fills out with HKDF's expansion of a secret.
func expand(out []byte, secret *[secretSize]byte, info string) {
	b, err := hkdf.Expand(sha256.New, secret[:], info, len(out))
	if err != nil { // Available has refused a mode that forbids it
		panic(err)
	}
	copy(out, b)
	clear(b)
}

// Name returns the name of the keys.
func (s *Session) Name() [NameSize]byte { return s.name }

// Proof returns the proof that the end knows the keys, over parts whose lengths
// are fixed. The error is [ErrCleared].
func (s *Session) Proof(end End, parts ...[]byte) (proof [ProofSize]byte, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.cleared {
		return proof, ErrCleared
	}
	return Proof(&s.join, end, parts...), nil
}

// VerifyProof reports in constant time whether a proof is that of the end.
func (s *Session) VerifyProof(proof *[ProofSize]byte, end End, parts ...[]byte) bool {
	want, err := s.Proof(end, parts...)
	return hmac.Equal(want[:], proof[:]) && err == nil
}

// Proof returns a proof under a key. A target makes one under a random key for
// a session that it does not know, so that this takes as long.
func Proof(key *[secretSize]byte, end End, parts ...[]byte) (proof [ProofSize]byte) {
	mac := hmac.New(sha256.New, key[:])
	mac.Write([]byte(end))
	for _, p := range parts {
		mac.Write(p)
	}
	mac.Sum(proof[:0])
	return proof
}

// Conn returns how an end seals and opens on a connection. The nonces are those
// of the join, or of the handshake for the control connection, which has the
// index 0. They are never twice the same. The error is [ErrCleared].
func (s *Session) Conn(conn uint16, epoch uint32, nonceI, nonceT [NonceSize]byte, end End) (*Sealer, *Opener, error) {
	info := []byte("viablk1 conn")
	info = binary.LittleEndian.AppendUint16(info, conn)
	info = binary.LittleEndian.AppendUint32(info, epoch)
	info = append(info, nonceI[:]...)
	info = append(info, nonceT[:]...)
	l := &link{ring: s.ring, info: string(info), end: end}
	sealing, opening, err := s.chains(l)
	if err != nil {
		return nil, nil, err
	}
	return &Sealer{chain: sealing, end: end, limits: s.limits, link: l}, &Opener{chain: opening, end: end, limits: s.limits, link: l}, nil
}

// Clear forgets the keys, and those of the sessions that it followed or that
// follow it. Connections go on with theirs; none begins.
func (s *Session) Clear() {
	s.Retire()
	s.ring.newest().forget()
}

// forget forgets the keys.
func (s *Session) forget() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.cleared = true
	clear(s.prk[:])
	clear(s.join[:])
}
