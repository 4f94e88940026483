package carrier

import (
	"errors"
	"fmt"
	"time"

	"github.com/viablk/viablk/internal/seal"
	"github.com/viablk/viablk/via"
)

// A sealed message has a prefix and a tag. Behind the data of a receive is room
// for both: where it was posted for a message in clear, a sealed one begins
// later by the prefix.
const (
	prefix   = seal.PrefixSize
	sealTail = seal.Overhead
)

// Errors of sealed connections.
var (
	errInClear = errors.New("nothing leaves a sealed connection in clear")
	errLong    = errors.New("the message is longer than any that was negotiated")
)

// Seal has every message from now on sealed, in both directions. The carrier is
// Sealable. The owner calls Open for whatever arrives, in order.
func (c *Carrier) Seal(s *seal.Sealer, o *seal.Opener) {
	c.sealer, c.opener, c.began = s, o, time.Time{}
}

// detachKeys ends what a rekey of the session waits for.
func (c *Carrier) detachKeys() {
	if c.sealer != nil {
		c.sealer.Detach()
	}
}

// Sealed reports whether messages are sealed.
func (c *Carrier) Sealed() bool { return c.sealer != nil }

// Sealer returns what seals messages, or nil.
func (c *Carrier) Sealer() *seal.Sealer { return c.sealer }

// Opener returns what opens messages, or nil.
func (c *Carrier) Opener() *seal.Opener { return c.opener }

// maximumAge is how long one generation of keys seals.
const maximumAge = time.Hour

// Age has the next message begin another generation of keys when the present
// one is old. The owner of a sealed carrier calls it now and then.
func (c *Carrier) Age(now time.Time) {
	switch {
	case c.sealer == nil:
	case c.began.IsZero() || c.sealer.Generation() != c.generation:
		c.began, c.generation = now, c.sealer.Generation()
	case now.Sub(c.began) >= maximumAge:
		c.sealer.Ratchet()
	}
}

// Generation returns which generation of keys seals, counted from 1, or 0 while
// messages are in clear.
func (c *Carrier) Generation() uint64 {
	if c.sealer == nil {
		return 0
	}
	return c.sealer.Generation() + 1
}

// Open opens a message that arrived in length bytes, and returns its length; it
// is in Head and Data only then. After an error the connection has to end.
func (c *Carrier) Open(r *Receive, length uint32) (uint32, error) {
	if !c.sealable {
		return length, nil
	}
	return c.openMessage(r, length)
}

func (c *Carrier) openMessage(r *Receive, length uint32) (uint32, error) {
	if c.opener == nil {
		if int(length) > HeadSize+len(r.Data) {
			return 0, errLong
		}
		return length, nil
	}
	if r.clear {
		copy(r.region, r.region[prefix:prefix+int(length)])
		r.clear = false
	}
	message, _, err := c.opener.Capsule(r.region[:length])
	if err != nil {
		c.forged++
		return 0, fmt.Errorf("open message of %d bytes: %w", length, err)
	}
	if len(message) > HeadSize+len(r.Data) {
		return 0, errLong
	}
	c.sealedBytes += uint64(length)
	return uint32(len(message)), nil
}

// openSegment adds the segment of a receive that is Sealable.
func (c *Carrier) openSegment(r *Receive) {
	r.clear = c.opener == nil
	skip := 0
	if r.clear {
		skip = prefix
	}
	r.desc.AddSegment(r.headAddr-prefix+uint64(skip), r.handle, uint32(len(r.region)-skip))
}

// stageSealed seals the first n bytes of the head and stages them.
func (c *Carrier) stageSealed(s *Send, n int, payload Span) error {
	if payload.Length > 0 {
		return errInClear
	}
	total, _, err := c.sealer.Capsule(s.room[:n+seal.Overhead], n)
	if err != nil {
		return fmt.Errorf("seal message: %w", err)
	}
	c.sealedBytes += uint64(total)
	d := s.desc
	d.Reset(via.OpSend)
	d.AddSegment(s.headAddr-prefix, s.handle, uint32(total))
	return c.vi.StageSend(d)
}

// CountSealed counts payload that the owner sealed or opened.
func (c *Carrier) CountSealed(n int) { c.sealedBytes += uint64(n) }

// CountForged counts payload that the owner could not open.
func (c *Carrier) CountForged() { c.forged++ }
