package target

import (
	"github.com/viablk/viablk/internal/carrier"
	"github.com/viablk/viablk/internal/seal"
	"github.com/viablk/viablk/internal/wire"
)

// In a sealed session a capsule covers inline payload. RDMA transfers other
// payload in records that the keys of its command seal: the tags are in the
// sealed command or reply, and the command's header is authenticated with each.
// Peers can write the memory that holds ciphertext, but not the pool in which
// the target opens and seals.

// protection is how the payload of a command is sealed.
type protection struct {
	payload seal.Payload
	header  [wire.HeaderSize]byte // of the command
	tags    []byte                // of a Write
}

// newProtections returns the protections of n slots, for the command in it and
// the one that waits behind it.
func newProtections(n int, maxIO uint32) []protection {
	p, size := make([]protection, 2*n), seal.TagsSize(maxIO)
	tags := make([]byte, 2*n*size)
	for i := range p {
		p[i].tags = tags[i*size : i*size : (i+1)*size]
	}
	return p
}

// claim readies the protection of the command that was opened last. The command
// may be longer than negotiated: one that is stashed is checked later.
func (p *protection) claim(o *seal.Opener, cmd *wire.Command, rc *carrier.Receive, tags []byte) error {
	if len(tags) > cap(p.tags) {
		return errTooLong
	}
	n := uint32(0)
	if cmd.Mode == wire.ModePull {
		n = cmd.Length
	}
	if err := seal.CheckTags(tags, n); err != nil {
		return err
	}
	if cmd.Mode != wire.ModePull && cmd.Mode != wire.ModePlace {
		return nil
	}
	p.tags = append(p.tags[:0], tags...)
	copy(p.header[:], rc.Head)
	return o.Payload(&p.payload)
}

// open opens a Write's payload in place.
func (p *protection) open(data []byte) error {
	return p.payload.OpenAll(data, data, p.header[:], p.tags)
}

// seal seals a Read's payload in place.
func (p *protection) seal(data, tags []byte) error {
	return p.payload.SealAll(data, data, p.header[:], tags)
}
