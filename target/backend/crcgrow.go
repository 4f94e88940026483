package backend

import (
	"errors"
	"fmt"
	"sync"

	"github.com/viablk/viablk/internal/block"
	"github.com/viablk/viablk/internal/contain"
	"github.com/viablk/viablk/target/backend/checksum"
)

// Info implements [block.Device]. A disk that has grown has its size of before
// until the file of checksums follows. One that has shrunk keeps its sums: the
// rest of a block that was cut is behind the end.
func (c *crc) Info() block.Info {
	info := c.info
	size, inside := c.size.Load(), c.inner.Info().Size
	switch {
	case inside > size:
		c.follow(inside)
	case inside < size:
		size = inside &^ (checksum.BlockSize - 1)
	}
	info.Size = size
	return info
}

// growing returns what makes the disk larger, or why it cannot become so. It
// may be larger inside, and the file of checksums lacks.
func (c *crc) growing(size int64) (grow func() error, fixed error) {
	if c.info.Features&block.ReadOnly != 0 {
		return nil, fmt.Errorf("checksums %q are open for reading only", c.file.path)
	}
	if err := errors.Join(checksum.CheckSize(size), c.latch.Err()); err != nil {
		return nil, err
	}
	inside := func() error { return nil }
	if c.inner.Info().Size < size {
		if inside, fixed = growing(c.inner, size); fixed != nil {
			return nil, fixed
		}
	}
	return func() error {
		return token(c.extending, func() error {
			if err := inside(); err != nil {
				return err
			}
			return c.extend(size)
		})
	}, nil
}

// extend has the file of checksums follow a disk that has grown, durably, and
// the disk have that size. New blocks, and the one that was the last and
// shorter than the others, have no sum. A crash leaves the size of before, and
// the next opening follows.
//
// The caller has the token of extending.
func (c *crc) extend(size int64) error {
	before := c.size.Load()
	if size <= before {
		return nil
	}
	if err := c.latch.Err(); err != nil {
		return err
	}
	release := func() {}
	if before%checksum.BlockSize != 0 {
		release = hold(c.ranges, before-1) // its requests go by its size
	}
	defer release()
	err := c.prepareExtend(before, size)
	if err == nil {
		err = token(c.marking, func() error { return c.storeSize(size) })
	}
	if err != nil {
		return fmt.Errorf("have checksums %q follow the disk to %d bytes: %w", c.file.path, size, err)
	}
	c.regions.extend(checksum.Regions(size))
	c.disk.Resize()
	c.size.Store(size) // requests behind the end of before begin
	return nil
}

// prepareExtend makes the file one of a larger disk but for its header,
// durably. Its last block is held if it is no whole one.
func (c *crc) prepareExtend(before, size int64) error {
	if last := before &^ (checksum.BlockSize - 1); last != before {
		if err := c.load(regionsOf(last, 1)); err != nil {
			return err
		}
		if c.sum(last).Load() != checksum.None {
			c.fill(last, before-last, false)
		}
		if err := c.save(); err != nil { // also what failed to be stored in an attempt before
			return err
		}
	}
	// A disk that has shrunk may have left something behind the end.
	for _, end := range []int64{checksum.End(before), checksum.End(size)} {
		if err := c.file.truncate(end); err != nil {
			return err
		}
	}
	if err := c.file.syncFile(); err != nil {
		return c.latch.Fail(err)
	}
	return nil
}

// storeSize keeps the size of the disk, durably.
//
// The caller has the token of marking.
func (c *crc) storeSize(size int64) error {
	if err := c.latch.Err(); err != nil {
		return err
	}
	before := c.header.Size
	c.intent.Grow(checksum.Regions(before), checksum.Regions(size))
	c.header.Size = size
	if err := c.storeHeader(); err != nil {
		c.header.Size = before
		return err
	}
	return nil
}

// follower has the file of checksums follow a disk that grew from outside, as a
// block device does.
type follower struct {
	mu sync.Mutex
	// +checklocks:mu
	done chan struct{} // closed at the end of the last attempt; nil without one
	// +checklocks:mu
	failed int64 // the size of an attempt that failed: it is not repeated
	// +checklocks:mu
	closed bool
}

// follow begins to follow the disk, if nothing does.
func (c *crc) follow(size int64) {
	if c.info.Features&block.ReadOnly != 0 || c.latch.Err() != nil {
		return
	}
	f := &c.follower
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.closed || f.failed == size || f.done != nil && !isClosed(f.done) {
		return
	}
	f.done = make(chan struct{})
	go c.routineFollow(size, f.done)
}

// isClosed reports whether a channel, on which nothing is sent, is closed.
func isClosed(c <-chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}

// routineFollow follows the disk to a size.
func (c *crc) routineFollow(size int64, done chan struct{}) {
	defer close(done)
	err := contain.Call(c.log, "panic: the checksums do not follow the size of the disk", func() error {
		if err := checksum.CheckSize(size); err != nil {
			return err
		}
		return token(c.extending, func() error { return c.extend(size) })
	})
	if err == nil {
		return
	}
	c.log.Error("the disk has grown, and its checksums cannot follow: it keeps its size until it grows again or is given its size",
		"event", "checksums_not_extended", "sums", c.file.path, "size", size, "error", err)
	c.follower.mu.Lock()
	c.follower.failed = size
	c.follower.mu.Unlock()
}

// close waits for an attempt. No further one begins.
func (f *follower) close() {
	f.mu.Lock()
	f.closed = true
	done := f.done
	f.mu.Unlock()
	if done != nil {
		<-done
	}
}
