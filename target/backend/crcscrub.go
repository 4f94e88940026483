package backend

import (
	"errors"
	"os"
	"sync"
	"time"

	"github.com/viablk/viablk/internal/block"
)

// ScrubState says what a scrub does.
type ScrubState string

// The states of the last scrub.
const (
	ScrubNone     ScrubState = "none" // since the disk was opened
	ScrubRunning  ScrubState = "running"
	ScrubFinished ScrubState = "finished"
	ScrubStopped  ScrubState = "stopped" // before the end of the disk
	ScrubFailed   ScrubState = "failed"  // by a panic, or another process has the disk
)

// ScrubOptions are how a scrub runs.
type ScrubOptions struct {
	Rate  int64           // bytes per second at most; 0: unlimited
	Until <-chan struct{} // the scrub stops when it is closed; nil: never
}

// ScrubStatus is what a disk with checksums says of its scrubs: of the present
// one, or of the last since it was opened.
type ScrubStatus struct {
	State   ScrubState `json:"state"`
	Started time.Time  `json:"started,omitzero"`
	Ended   time.Time  `json:"ended,omitzero"`
	Error   string     `json:"error,omitempty"`
	Rate    int64      `json:"rate_limit"`       // bytes per second; 0: unlimited
	Speed   int64      `json:"bytes_per_second"` // checked
	Size    int64      `json:"size"`             // of the disk, in bytes
	Offset  int64      `json:"offset"`           // of the next block, in bytes
	Checked int64      `json:"bytes_checked"`    // of blocks with a sum

	Corrupt    uint64 `json:"corrupt_blocks"`    // not what was written
	Unreadable uint64 `json:"unreadable_blocks"` // the disk failed to read them
	Unchecked  uint64 `json:"unchecked_regions"` // their sums cannot be read, or are of no use

	// Offsets of the first [maximumPlaces] of these blocks, in bytes.
	CorruptAt    []int64 `json:"corrupt_offsets,omitempty"`
	UnreadableAt []int64 `json:"unreadable_offsets,omitempty"`

	Last ScrubResult `json:"last_complete"`
}

// Clean reports whether a scrub found every block that has a sum to be what was
// written.
func (s *ScrubStatus) Clean() bool { return s.Corrupt == 0 && s.Unreadable == 0 && s.Unchecked == 0 }

// ScrubResult is the result of the last scrub of the whole disk. The file of
// checksums keeps it.
type ScrubResult struct {
	Ended      time.Time `json:"ended,omitzero"` // zero: there was none
	Corrupt    uint64    `json:"corrupt_blocks"`
	Unreadable uint64    `json:"unreadable_blocks"`
}

// Why a scrub does not start.
var (
	ErrNoChecksums = errors.New("the disk has no checksums")
	ErrScrubbing   = errors.New("a scrub of the disk runs")
)

// StartScrub starts a scrub of a disk, as [Open] returned it: it reads each
// block that has a checksum, and compares them. The scrub goes on in the
// background until the end of the disk, [StopScrub], the end of options.Until,
// or Close of the disk, which waits for it. The error is [ErrNoChecksums],
// [ErrScrubbing], or [os.ErrClosed]. It is safe for concurrent use, as are
// StopScrub and [ScrubOf].
func StartScrub(d block.Device, options ScrubOptions) error {
	c := checked(d)
	if c == nil {
		return ErrNoChecksums
	}
	return c.scrubs.start(c, options)
}

// StopScrub stops the scrub of a disk behind the piece that it reads. The
// channel is closed when none runs. The error is [ErrNoChecksums].
func StopScrub(d block.Device) (ended <-chan struct{}, err error) {
	c := checked(d)
	if c == nil {
		return nil, ErrNoChecksums
	}
	return c.scrubs.stop(), nil
}

// ScrubOf returns the state of the scrubs of a disk, and whether it has
// checksums at all.
func ScrubOf(d block.Device) (status ScrubStatus, ok bool) {
	c := checked(d)
	if c == nil {
		return status, false
	}
	return c.scrubs.status(), true
}

// scrubs are those of a disk, one at a time.
type scrubs struct {
	clock func() time.Duration
	sleep func(d time.Duration, stop, until <-chan struct{}) // until one of them is closed

	mu sync.Mutex
	// +checklocks:mu
	latest *scrub // nil: none since the disk was opened
	// +checklocks:mu
	last ScrubResult
	// +checklocks:mu
	closed bool
}

// open prepares for scrubs of a disk. last is what the file of checksums says.
func (x *scrubs) open(last ScrubResult) {
	began := time.Now()
	x.clock = func() time.Duration { return time.Since(began) }
	x.sleep = func(d time.Duration, stop, until <-chan struct{}) {
		timer := time.NewTimer(d)
		defer timer.Stop()
		select {
		case <-timer.C:
		case <-stop:
		case <-until:
		}
	}
	x.mu.Lock()
	x.last = last
	x.mu.Unlock()
}

// start starts a scrub.
func (x *scrubs) start(c *crc, options ScrubOptions) error {
	x.mu.Lock()
	defer x.mu.Unlock()
	switch {
	case x.closed:
		return os.ErrClosed
	case x.latest != nil && !x.latest.hasEnded():
		return ErrScrubbing
	}
	x.latest = newScrub(c, options)
	go x.latest.routineScrub()
	return nil
}

// noScrub is the end of a scrub that was none.
var noScrub = func() chan struct{} {
	c := make(chan struct{})
	close(c)
	return c
}()

// stop stops the scrub that runs, and returns what is closed at its end.
func (x *scrubs) stop() <-chan struct{} {
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.latest == nil {
		return noScrub
	}
	x.latest.end()
	return x.latest.done
}

// close ends the scrub that runs, and waits for it. None starts any more.
func (x *scrubs) close() {
	x.mu.Lock()
	x.closed = true
	x.mu.Unlock()
	<-x.stop()
}

// keep notes the result of a scrub of the whole disk.
func (x *scrubs) keep(r ScrubResult) {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.last = r
}

// status returns the state of the latest scrub.
func (x *scrubs) status() ScrubStatus {
	x.mu.Lock()
	s, last := x.latest, x.last
	x.mu.Unlock()
	status := ScrubStatus{State: ScrubNone}
	if s != nil {
		status = s.now()
	}
	status.Last = last
	return status
}
