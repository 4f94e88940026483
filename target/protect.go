package target

import (
	"errors"

	"github.com/viablk/viablk/internal/carrier"
	"github.com/viablk/viablk/internal/seal"
	"github.com/viablk/viablk/internal/wire"
)

// In a sealed session payload inside messages is sealed with them. Payload that
// RDMA moves is sealed by itself, in records, with keys of its command: the
// tags are in the sealed command or reply, and what is authenticated besides is
// the command's header. Peers can write the memory that holds ciphertext, but
// not the pool in which the target opens and seals.

// protection is how the payload of a command is sealed.
type protection struct {
	payload seal.Payload
	header  [wire.HeaderSize]byte // of the command
	tags    []byte                // of a Write
}

// maxSealedIO bounds the commands of sealed sessions, in bytes: their tags go
// in a message.
const maxSealedIO = 32 << 20

// tagBytes returns how long the tags of n bytes are.
func tagBytes(n uint32) int { return seal.Records(int(n)) * seal.TagSize }

var errTags = errors.New("other tags than the payload has records")

// newProtections returns the protections of n slots, for the command in it and
// the one that waits behind it.
func newProtections(n int, maxIO uint32) []protection {
	p, size := make([]protection, 2*n), tagBytes(maxIO)
	tags := make([]byte, 2*n*size)
	for i := range p {
		p[i].tags = tags[i*size : i*size : (i+1)*size]
	}
	return p
}

// claim readies the protection of the command that was opened last.
func (p *protection) claim(o *seal.Opener, cmd *wire.Command, rc *carrier.Receive, tags []byte) error {
	if cmd.Mode != wire.ModePull && cmd.Mode != wire.ModePlace {
		if len(tags) != 0 {
			return errTags
		}
		return nil
	}
	want := 0
	if cmd.Mode == wire.ModePull {
		want = tagBytes(cmd.Length)
	}
	if len(tags) != want || want > cap(p.tags) {
		return errTags
	}
	p.tags = append(p.tags[:0], tags...)
	copy(p.header[:], rc.Head)
	return o.Payload(&p.payload)
}

// records calls f for each record of a payload with its tag.
func records(data, tags []byte, f func(data []byte, record int, tag *[seal.TagSize]byte) error) error {
	for i := 0; len(data) > 0; i++ {
		n := min(len(data), seal.RecordSize)
		if err := f(data[:n], i, (*[seal.TagSize]byte)(tags[i*seal.TagSize:])); err != nil {
			return err
		}
		data = data[n:]
	}
	return nil
}

// open opens a Write's payload in place.
func (p *protection) open(data []byte) error {
	return records(data, p.tags, func(b []byte, i int, tag *[seal.TagSize]byte) error {
		return p.payload.Open(b, b, i, p.header[:], tag)
	})
}

// seal seals a Read's payload in place.
func (p *protection) seal(data, tags []byte) error {
	return records(data, tags, func(b []byte, i int, tag *[seal.TagSize]byte) error {
		return p.payload.Seal(b, b, i, p.header[:], tag)
	})
}
