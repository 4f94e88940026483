//go:build rbd && cgo

package rbd

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"syscall"

	"github.com/viablk/viablk/internal/block"
	"github.com/viablk/viablk/target/identity"
)

// recordKey is the key of the identity in the metadata of an image.
const recordKey = "viablk.identity"

// identify reads or makes the identity of the disk, which is locked. Answered
// writes outlive a target and its machine, so that all the starts of all the
// machines are one: a disk that was not closed has lost nothing.
func (d *Device) identify() (err error) {
	cluster, image, err := d.connection.identifier(d.cfg.Snapshot)
	if err != nil {
		return fmt.Errorf("identifier of the image: %w", err)
	}
	d.record, err = identity.Open(identity.Options{
		Path: d.name, ReadOnly: d.cfg.ReadOnly, Flush: d.connection.flush, Log: d.cfg.Log, Boot: digest("ceph " + cluster),
		Kept: &identity.Kept{
			Place: place{d.connection, d.name}, Binding: digest("rbd " + image),
			Renew: fmt.Sprintf("rbd image-meta remove %s/%s %s", d.cfg.Pool, d.cfg.Image, recordKey),
		},
	})
	if err != nil {
		return err
	}
	if d.record.Failed() && !d.cfg.ReadOnly {
		_ = d.latch.Fail(identity.ErrFailed)
	}
	d.latch.Lost = func(cause error) { _ = d.record.Lost(cause) } // logged by the identity
	return nil
}

// digest returns 16 bytes that stand for a name.
func digest(name string) [16]byte {
	h := sha256.Sum256([]byte(name))
	return [16]byte(h[:16])
}

// place keeps the record in the metadata of the image, whose values are texts.
type place struct {
	connection *connection
	name       string
}

func (p place) String() string { return fmt.Sprintf("metadata %s of %s", recordKey, p.name) }

func (p place) Load() ([]byte, error) {
	value, err := p.connection.metadata(recordKey)
	if err != nil {
		return nil, err // ENOENT is fs.ErrNotExist
	}
	b, err := hex.DecodeString(value)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", identity.ErrDamaged, err)
	}
	return b, nil
}

func (p place) Store(b []byte) error {
	return p.connection.setMetadata(recordKey, hex.EncodeToString(b))
}

// owned is the identity of a disk that another client can take over.
type owned struct {
	*identity.Disk
	device *Device
}

var _ block.Revocable = owned{}

// Identity implements [block.Identified].
func (d *Device) Identity() block.Identity { return owned{d.record, d} }

// Revoked implements [block.Revocable].
func (o owned) Revoked() error { return o.device.Revoked() }

// SetWriter implements [block.Identity].
func (o owned) SetWriter(id [16]byte) (block.Writer, error) {
	w, err := o.Disk.SetWriter(id)
	if errors.Is(err, syscall.ESHUTDOWN) {
		err = o.device.revoke(syscall.ESHUTDOWN)
	}
	return w, err
}
