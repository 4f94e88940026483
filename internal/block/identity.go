package block

import (
	"crypto/rand"
	"fmt"
	"io"
	"sync"
)

// Identity tells who a disk is, whether it may have lost writes, and who wrote
// it last. A client that comes back to a disk compares all three with what it
// knew. Its methods are safe for concurrent use.
type Identity interface {
	// UUID returns the UUID of the disk, the same during the device's life.
	UUID() [16]byte

	// Verifier returns a number that changes when writes that were answered and
	// not flushed may have been lost (as the write verifier of NFS, RFC 8881
	// section 18.32.3). It changes before the failed Flush is answered.
	Verifier() uint64

	// Writer returns the writer of the disk.
	Writer() Writer

	// SetWriter makes id the writer before it writes, and advances the
	// generation, durably: it may block, and the caller starts no write before
	// it returned. The caller leaves it out while the writer stays the same and
	// no other one has the disk in between.
	SetWriter(id [16]byte) (Writer, error)

	// Persistent reports whether the identity is kept with the disk. Every
	// other identity ends with the process.
	Persistent() bool
}

// Writer is who wrote a disk last.
type Writer struct {
	ID         [16]byte // zero: none yet, or a program that is not viablk
	Generation uint64   // advances whenever a writer takes over
}

// Revocable is the Identity of a disk that another process can take over.
type Revocable interface {
	Identity

	// Revoked returns why the disk has ended for this process, for good, or
	// nil. The error has errno ESHUTDOWN, as that of every later request.
	Revoked() error
}

// Revoked returns why a disk has ended for this process, or nil.
func Revoked(i Identity) error {
	if r, ok := i.(Revocable); ok {
		return r.Revoked()
	}
	return nil
}

// Identified is a Device that has an identity.
type Identified interface {
	Device

	// Identity returns the same during the device's life, or nil if the device
	// has none, as a wrapper of such a device.
	Identity() Identity
}

// IdentityOf returns the identity of a device, or nil if it has none.
func IdentityOf(d Device) Identity {
	if i, ok := d.(Identified); ok {
		return i.Identity()
	}
	return nil
}

// processIdentity is the identity of a disk that ends with the process.
type processIdentity struct {
	uuid     [16]byte
	verifier uint64

	mu sync.Mutex
	// +checklocks:mu
	writer Writer
}

// NewIdentity returns a random identity that ends with the process, for disks
// that have no place for one.
func NewIdentity() Identity {
	i := &processIdentity{uuid: NewUUID()}
	for _, b := range NewUUID() {
		i.verifier = i.verifier<<8 | uint64(b)
	}
	return i
}

// NewUUID returns a random UUID (RFC 9562, version 4).
func NewUUID() (u [16]byte) {
	u, _ = NewUUIDFrom(rand.Reader) // never fails
	return u
}

// NewUUIDFrom returns a UUID of bytes of r.
func NewUUIDFrom(r io.Reader) (u [16]byte, err error) {
	_, err = io.ReadFull(r, u[:])
	u[6] = u[6]&0x0f | 0x40
	u[8] = u[8]&0x3f | 0x80
	return u, err
}

func (i *processIdentity) UUID() [16]byte   { return i.uuid }
func (i *processIdentity) Verifier() uint64 { return i.verifier }
func (i *processIdentity) Persistent() bool { return false }

func (i *processIdentity) Writer() Writer {
	i.mu.Lock()
	defer i.mu.Unlock()
	return i.writer
}

func (i *processIdentity) SetWriter(id [16]byte) (Writer, error) {
	i.mu.Lock()
	defer i.mu.Unlock()
	i.writer = Writer{id, i.writer.Generation + 1}
	return i.writer, nil
}

// FormatUUID returns a UUID as text, in the form of RFC 9562.
func FormatUUID(u [16]byte) string {
	return fmt.Sprintf("%x-%x-%x-%x-%x", u[:4], u[4:6], u[6:8], u[8:10], u[10:])
}
