package main

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"
)

// hangingDisks is that disks did not answer in time. No client was told that
// what they still work on is done or durable.
type hangingDisks struct {
	while   string   // what the disks were to do
	exports []string // names
	cause   error    // may be nil
}

func (e *hangingDisks) Error() string {
	var names []string
	for _, name := range e.exports {
		names = append(names, fmt.Sprintf("%q", name))
	}
	text := fmt.Sprintf("%s: export %s does not answer", e.while, strings.Join(names, ", "))
	if e.cause != nil {
		return fmt.Sprintf("%v: %s", e.cause, text)
	}
	return text
}

func (e *hangingDisks) Unwrap() error { return e.cause }

// diskCall is what the disk of an export is to do.
type diskCall struct {
	export string
	do     func() error
}

// diskCalls is how many calls of disks are made at the same time: each may keep
// a thread in the kernel, and a target has up to ten thousand disks.
const diskCalls = 64

// doWithin makes the calls, some at the same time, then calls after, and
// returns their errors. If some are not done in time the error wraps
// hangingDisks, and they go on.
func doWithin(limit time.Duration, while string, calls []diskCall, after func()) error {
	var mu sync.Mutex
	errs, ended, begun := make([]error, len(calls)), make([]bool, len(calls)), min(1, len(calls))
	places, done := make(chan struct{}, diskCalls), make(chan struct{})
	go func() { // ends with the call that takes longest
		var all sync.WaitGroup
		for i, c := range calls {
			mu.Lock()
			begun = i + 1
			mu.Unlock()
			places <- struct{}{}
			all.Go(func() {
				err := c.do()
				mu.Lock()
				errs[i], ended[i] = err, true
				mu.Unlock()
				<-places
			})
		}
		all.Wait()
		after()
		close(done)
	}()
	timer := time.NewTimer(limit)
	defer timer.Stop()
	select {
	case <-done:
		return errors.Join(errs...)
	case <-timer.C:
	}
	mu.Lock()
	defer mu.Unlock()
	hang := &hangingDisks{while: while}
	for i, c := range calls[:begun] {
		if !ended[i] {
			hang.exports = append(hang.exports, c.export)
		}
	}
	if len(hang.exports) == 0 { // the last one has just ended
		<-done
		return errors.Join(errs...)
	}
	return errors.Join(append(slices.Clone(errs), hang)...)
}

// leftToDrain is how long the disks may take to close: what is left of the time
// to drain, and a while in any case.
func (s *service) leftToDrain() time.Duration {
	left := s.timeout
	if !s.drainBegan.IsZero() {
		left -= s.clock().Sub(s.drainBegan)
	}
	return max(left, releaseTimeout)
}

// timedOut is the error of a drain whose time is over.
func (s *service) timedOut() error {
	if s.busy != nil {
		if names := s.busy(); len(names) > 0 {
			return &hangingDisks{"drain", names, errDrainTimeout}
		}
	}
	return errDrainTimeout
}

// busy returns the exports with a request in the disk.
func (s *exportSet) busy() (names []string) {
	for _, d := range s.current() {
		if d.reservations != nil && d.reservations.Oldest() > 0 {
			names = append(names, d.Name)
		}
	}
	return names
}
