package backend

import (
	"fmt"
	"time"

	"github.com/viablk/viablk/internal/block"
	"golang.org/x/sys/unix"
)

// storeHeader makes the header durable.
func (c *crc) storeHeader() error {
	if err := c.header.Store(overlayFile{c.file}); err != nil {
		return err
	}
	if err := c.file.syncFile(); err != nil {
		return c.latch.Fail(err)
	}
	return nil
}

// findStale finds the regions whose marks are left of a process that did not
// end well: those of all regions of a disk that ended with it.
func (c *crc) findStale(readOnly, all bool) error {
	for i := range c.count() {
		if !all && !c.intent.Marked(i) {
			continue
		}
		c.regions.at(i).stale.Store(true)
		c.regions.at(i).state.Store(isMarked)
		c.marked = append(c.marked, i)
	}
	if len(c.marked) == 0 || readOnly {
		return nil
	}
	c.log.Warn("the disk was not closed, or writes failed: regions that were written to get new checksums at their first request",
		"event", "checksums_renewed", "sums", c.file.path, "regions", len(c.marked))
	c.intent.Renew()
	return c.storeMarks()
}

// crcIdentity is the identity of the disk, whose file of checksums knows the
// last writer who kept them.
type crcIdentity struct {
	block.Identity
	disk *crc
}

// SetWriter implements [block.Identity]. The file knows a writer before the
// disk does: a disk with a later one was written to without the checksums.
func (i crcIdentity) SetWriter(id [16]byte) (block.Writer, error) {
	if err := i.disk.expect(i.Writer().Generation + 1); err != nil {
		return i.Writer(), err
	}
	return i.Identity.SetWriter(id)
}

// Revoked implements [block.Revocable].
func (i crcIdentity) Revoked() error { return block.Revoked(i.Identity) }

// expect keeps the generation of the writer, durably.
func (c *crc) expect(generation uint64) error {
	return token(c.marking, func() error {
		if err := c.latch.Err(); err != nil {
			return err
		}
		if generation <= c.header.Generation {
			return nil
		}
		c.header.Generation = generation
		if err := c.storeHeader(); err != nil {
			return fmt.Errorf("keep the writer in checksums %q: %w", c.file.path, err)
		}
		return nil
	})
}

// keepScrub keeps what a scrub of the whole disk has found, durably.
func (c *crc) keepScrub(r ScrubResult) error {
	if c.info.Features&block.ReadOnly != 0 {
		return nil
	}
	return token(c.marking, func() error {
		if err := c.latch.Err(); err != nil {
			return err
		}
		c.header.Scrubbed, c.header.Corrupt, c.header.Unreadable = r.Ended.Unix(), r.Corrupt, r.Unreadable
		if err := c.storeHeader(); err != nil {
			return fmt.Errorf("keep the scrub in checksums %q: %w", c.file.path, err)
		}
		return nil
	})
}

// Close ends a scrub, makes durable what was written, clears all marks, and
// closes the disk.
func (c *crc) Close() error {
	if c.file.fd < 0 {
		return nil
	}
	c.follower.close()
	c.scrubs.close()
	c.executor.Close()
	err := c.end()
	for _, close := range []func() error{c.disk.Close, c.inner.Close} {
		if e := close(); err == nil {
			err = e
		}
	}
	c.file.held.remove(c.file.fd)
	if e := unix.Close(c.file.fd); err == nil {
		err = e
	}
	c.file.fd = -1
	if err != nil {
		return fmt.Errorf("close the disk with checksums %q: %w", c.file.path, err)
	}
	return nil
}

// end makes the sums those of the disk, without marks.
func (c *crc) end() error {
	if c.info.Features&block.ReadOnly != 0 {
		return nil
	}
	if err := c.flush(); err != nil {
		return err
	}
	return c.clearIdle(time.Now().Add(time.Second))
}
