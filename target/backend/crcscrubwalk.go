package backend

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/viablk/viablk/internal/block"
	"github.com/viablk/viablk/internal/contain"
	"github.com/viablk/viablk/target/backend/checksum"
	"golang.org/x/sys/unix"
)

const (
	// scrubPiece is how much a scrub reads at a time, in bytes: requests that
	// write there wait for that long.
	scrubPiece = 1 << 20

	// maximumPlaces bounds the offsets that a scrub reports.
	maximumPlaces = 100
)

// scrub is a walk over the blocks of a disk with checksums. Of each piece
//
//  1. the rate is kept, without a range
//  2. its range is held for reading, as that of a request: no block of it is
//     half written, and its sums are those of its blocks
//  3. it is read from the disk below and compared
//
// A region whose marks are left of an unclean end has no sums of use: the scrub
// is its first request, and sums it.
type scrub struct {
	disk    *crc
	options ScrubOptions
	stop    chan struct{} // closed by end
	once    sync.Once     // of end
	done    chan struct{} // closed when the goroutine has ended

	// Of the goroutine.
	buffer  []byte
	granted chan struct{}  // the range is held
	due     time.Duration  // when the rate allows the next piece
	sums    *checksum.Sums // of the region copied, which is not in memory
	copied  int64
	began   time.Duration

	mu sync.Mutex
	// +checklocks:mu
	status ScrubStatus
	// +checklocks:mu
	ended time.Duration // of the clock
}

// errScrubStopped is the end of a scrub before that of the disk.
var errScrubStopped = errors.New("the scrub was stopped")

func newScrub(c *crc, options ScrubOptions) *scrub {
	now := c.scrubs.clock()
	return &scrub{
		disk: c, options: options, stop: make(chan struct{}), done: make(chan struct{}),
		buffer: make([]byte, scrubPiece), granted: make(chan struct{}, 1), copied: -1, began: now, due: now,
		status: ScrubStatus{State: ScrubRunning, Started: time.Now(), Rate: options.Rate, Size: c.size.Load()},
	}
}

// end has the scrub stop at its next piece.
func (s *scrub) end() { s.once.Do(func() { close(s.stop) }) }

// hasEnded reports whether the goroutine has ended.
func (s *scrub) hasEnded() bool {
	select {
	case <-s.done:
		return true
	default:
		return false
	}
}

// isStopped reports whether the scrub is to stop.
func (s *scrub) isStopped() bool {
	select {
	case <-s.stop:
		return true
	case <-s.options.Until:
		return true
	default:
		return false
	}
}

// now returns the state of the scrub.
func (s *scrub) now() ScrubStatus {
	ended := s.hasEnded() // a status that says so allows another scrub
	s.mu.Lock()
	defer s.mu.Unlock()
	status, elapsed := s.status, s.ended-s.began
	if !ended {
		status.State, status.Ended, elapsed = ScrubRunning, time.Time{}, s.disk.scrubs.clock()-s.began
	}
	if elapsed > 0 {
		status.Speed = int64(float64(status.Checked) / elapsed.Seconds())
	}
	status.CorruptAt, status.UnreadableAt = slices.Clone(status.CorruptAt), slices.Clone(status.UnreadableAt)
	return status
}

// routineScrub runs the scrub.
func (s *scrub) routineScrub() {
	defer close(s.done)
	log := s.disk.log
	log.Info("scrub started: blocks are read and compared with their checksums", "event", "scrub_started", "rate", s.options.Rate)
	err := contain.Call(log, "panic: the scrub of a disk ends", s.walk)
	status := s.finish(err)
	s.report(&status)
}

// report logs the end of the scrub.
func (s *scrub) report(r *ScrubStatus) {
	log, level := s.disk.log, slog.LevelInfo
	if !r.Clean() || r.Error != "" {
		level = slog.LevelWarn
	}
	if r.Error != "" {
		log = log.With("error", r.Error)
	}
	log.Log(context.Background(), level, "scrub ended", "event", "scrub_ended", "state", string(r.State),
		"bytes_checked", r.Checked, "corrupt_blocks", r.Corrupt, "unreadable_blocks", r.Unreadable,
		"unchecked_regions", r.Unchecked, "duration", r.Ended.Sub(r.Started))
}

// finish notes the end of the walk, durably if it went over the whole disk.
func (s *scrub) finish(err error) ScrubStatus {
	s.mu.Lock()
	status := s.status
	s.mu.Unlock()
	status.Ended = time.Now()
	switch {
	case err == nil:
		status.State = ScrubFinished
		last := ScrubResult{status.Ended, status.Corrupt, status.Unreadable}
		err = s.disk.keepScrub(last)
		s.disk.scrubs.keep(last)
	case errors.Is(err, errScrubStopped):
		status.State, err = ScrubStopped, nil
	default:
		status.State = ScrubFailed
	}
	if err != nil {
		status.Error = err.Error()
	}
	s.mu.Lock()
	s.status, s.ended = status, s.disk.scrubs.clock()
	s.mu.Unlock()
	return status
}

// walk goes over the regions, also those of a disk that grows meanwhile.
func (s *scrub) walk() error {
	for i := int64(0); i < s.disk.count(); i++ {
		if err := s.region(i); err != nil {
			return err
		}
		s.mu.Lock()
		s.status.Size = s.disk.size.Load()
		s.status.Offset = min((i+1)*checksum.RegionSize, s.status.Size)
		if s.disk.regions.at(i).lost.Load() {
			s.status.Unchecked++
		}
		s.mu.Unlock()
	}
	return nil
}

// region compares the blocks of a region.
func (s *scrub) region(i int64) error {
	c := s.disk
	if c.regions.at(i).stale.Load() {
		return s.renew(i)
	}
	off, end := i*checksum.RegionSize, min((i+1)*checksum.RegionSize, c.size.Load())
	sums := s.sumsOf(i)
	for off < end {
		if s.isStopped() {
			return errScrubStopped
		}
		var n int64
		if off, n = s.next(sums, off, end); n == 0 {
			return nil
		}
		if err := s.piece(i, off, n); err != nil {
			return err
		}
		off += n
		s.mu.Lock()
		s.status.Offset = off
		s.mu.Unlock()
	}
	return nil
}

// renew has a region summed that an unclean end left without sums of use, as
// its first request would.
func (s *scrub) renew(i int64) error {
	c := s.disk
	if c.info.Features&block.ReadOnly != 0 { // it has none as long as the disk is open
		s.mu.Lock()
		s.status.Unchecked++
		s.mu.Unlock()
		return nil
	}
	if !s.pace(checksum.RegionSize) {
		return errScrubStopped
	}
	return c.load(i, i)
}

// sumsOf returns the sums of a region that is not stale: those that requests
// use, or a copy that does not stay in memory. An element belongs to the holder
// of the range of its block.
func (s *scrub) sumsOf(i int64) *checksum.Sums {
	c := s.disk
	g := c.regions.at(i)
	if sums := g.sums.Load(); sums != nil || s.copied == i {
		if sums == nil {
			sums = s.sums // no request has changed a sum of the region
		}
		return sums
	}
	_ = token(c.loading, func() error {
		if g.sums.Load() == nil {
			s.sums, s.copied = new(checksum.Sums), i
			c.readRegion(i, s.sums)
		}
		return nil
	})
	if sums := g.sums.Load(); sums != nil {
		return sums
	}
	return s.sums
}

// sumIn returns the sum of the block at off in the sums of its region.
func sumIn(sums *checksum.Sums, off int64) *atomic.Uint32 {
	return &sums[off/checksum.BlockSize%checksum.RegionBlocks]
}

// next returns the next piece from off on: it begins and ends with a block that
// has a sum. n is 0 if there is none.
func (s *scrub) next(sums *checksum.Sums, off, end int64) (from, n int64) {
	for off < end && sumIn(sums, off).Load() == checksum.None {
		off += checksum.BlockSize
	}
	for at := off; at < min(off+scrubPiece, end); at += checksum.BlockSize {
		if sumIn(sums, at).Load() != checksum.None {
			n = min(at+checksum.BlockSize, end) - off
		}
	}
	return off, n
}

// piece reads a piece of a region and compares it. If the read fails, it reads
// block after block.
func (s *scrub) piece(i, off, n int64) error {
	if !s.pace(n) {
		return errScrubStopped
	}
	if err := s.compare(i, off, n); err == nil || errors.Is(err, unix.ESHUTDOWN) {
		return err // another process has the disk
	}
	for end := off + n; off < end; off += checksum.BlockSize {
		if s.isStopped() {
			return errScrubStopped
		}
		if sumIn(s.sumsOf(i), off).Load() == checksum.None {
			continue
		}
		if err := s.compare(i, off, s.disk.blockAt(off)); errors.Is(err, unix.ESHUTDOWN) {
			return err
		} else if err != nil {
			s.mu.Lock()
			s.status.Unreadable++
			s.status.UnreadableAt = addPlace(s.status.UnreadableAt, off)
			s.mu.Unlock()
		}
	}
	return nil
}

// pace waits until the rate allows to read n bytes. It returns false if the
// scrub is to stop.
func (s *scrub) pace(n int64) bool {
	if s.options.Rate == 0 {
		return !s.isStopped()
	}
	x := &s.disk.scrubs
	for {
		now := x.clock()
		if s.isStopped() {
			return false
		}
		if now >= s.due {
			cost := time.Duration(float64(n) / float64(s.options.Rate) * float64(time.Second))
			s.due = max(s.due, now-cost) + cost // a piece may be late, and the next one not
			return true
		}
		x.sleep(s.due-now, s.stop, s.options.Until)
	}
}

// compare reads a range of a region, while it holds it, and compares its blocks
// with their sums. The error is that of the read.
func (s *scrub) compare(i, off, n int64) error {
	c, p := s.disk, s.buffer[:n]
	w := block.Wait{Granted: func() { s.granted <- struct{}{} }}
	if !c.ranges.Acquire(&w, off, n, false) {
		<-s.granted
	}
	defer c.ranges.Release(off, n, false)
	if !c.whole(off, n) { // the last block has grown meanwhile, and its sum is new
		p = p[:n&^(checksum.BlockSize-1)]
	}
	if _, err := c.disk.ReadAt(p, off); err != nil {
		return err
	}
	sums := s.sumsOf(i)
	var checked int64
	var corrupt []int64
	for len(p) > 0 {
		n := c.blockAt(off)
		if sum := sumIn(sums, off); sum.Load() != checksum.None {
			if checked += n; !isOf(sum, p[:n]) {
				_ = c.corrupt(off)
				corrupt = append(corrupt, off)
			}
		}
		off, p = off+n, p[n:]
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.status.Checked += checked
	s.status.Corrupt += uint64(len(corrupt))
	for _, at := range corrupt {
		s.status.CorruptAt = addPlace(s.status.CorruptAt, at)
	}
	return nil
}

// addPlace adds an offset to a bounded list.
func addPlace(places []int64, off int64) []int64 {
	if len(places) < maximumPlaces {
		places = append(places, off)
	}
	return places
}
