package main

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"sync"
	"time"

	"github.com/viablk/viablk/internal/metrics"
)

// statusCache computes the state of the process for many clients, in one
// goroutine at a time: read takes a state that is fresh enough, now one that is
// newer than the call. However many clients call, the computation takes a small
// part of a processor.
type statusCache struct {
	compute   func() processStatus
	translate func(*processStatus) *metrics.Snapshot // may be nil

	mu sync.Mutex
	// +checklocks:mu
	latest *statusDocument
	// +checklocks:mu
	running chan struct{} // closed at the end of the computation; nil without
	// +checklocks:mu
	resume time.Time // when the next computation may begin
	// +checklocks:mu
	closed bool
}

// statusDocument is the state of the process at one time.
type statusDocument struct {
	status  processStatus
	metrics *metrics.Snapshot
	begun   time.Time // no call that came later has seen it
	made    time.Time

	once    sync.Once
	encoded []byte // by encode
	failure error
}

// How long a state is good for, and how long it may take to compute.
const (
	statusFresh   = 100 * time.Millisecond
	statusTimeout = time.Second
)

// A computation is followed by a pause in which the processor is free: as many
// times its own time, up to the longest one.
const (
	statusPause        = 50
	longestStatusPause = time.Second / 5
)

// nowTimeout is how long an administrator waits for a state: less than
// askTimeout, so that there is an answer.
const nowTimeout = askTimeout - time.Second

// read returns a state that is not older than statusFresh.
func (c *statusCache) read(ctx context.Context) (*statusDocument, error) {
	came := time.Now()
	return c.await(ctx, statusTimeout, func(d *statusDocument) bool { return came.Sub(d.made) < statusFresh })
}

// now returns a state whose computation begins after the call, so that it has
// all changes before it. Calls that come meanwhile share the next one.
func (c *statusCache) now(ctx context.Context) (*statusDocument, error) {
	came := time.Now()
	return c.await(ctx, nowTimeout, func(d *statusDocument) bool { return d.begun.After(came) })
}

// await returns a state that will do, of the second computation from now on at
// the latest.
func (c *statusCache) await(ctx context.Context, timeout time.Duration, good func(*statusDocument) bool) (*statusDocument, error) {
	limit := time.NewTimer(timeout)
	defer limit.Stop()
	for {
		latest, running, err := c.begin(good)
		if running == nil {
			return latest, err
		}
		select {
		case <-running:
		case <-limit.C:
			return nil, fmt.Errorf("the process did not report its state within %v", timeout)
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		}
	}
}

// begin returns a state that will do, or the end of the computation of one.
func (c *statusCache) begin(good func(*statusDocument) bool) (*statusDocument, <-chan struct{}, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case c.closed:
		return nil, nil, errEnding
	case c.latest != nil && good(c.latest):
		return c.latest, nil, nil
	case c.running == nil:
		c.running = make(chan struct{})
		go c.refresh(time.Until(c.resume))
	}
	return nil, c.running, nil
}

// refresh computes a state after a pause.
func (c *statusCache) refresh(pause time.Duration) {
	time.Sleep(pause)
	begun := time.Now()
	d := &statusDocument{status: c.compute(), begun: begun}
	if c.translate != nil {
		d.metrics = c.translate(&d.status)
	}
	d.made = time.Now()
	c.mu.Lock()
	defer c.mu.Unlock()
	c.latest = d
	c.pauseLocked(d.made, d.made.Sub(begun))
	close(c.running)
	c.running = nil
}

// pauseLocked begins a pause after the process has spent time.
//
// +checklocks:c.mu
func (c *statusCache) pauseLocked(now time.Time, spent time.Duration) {
	if end := now.Add(min(statusPause*spent, longestStatusPause)); end.After(c.resume) {
		c.resume = end
	}
}

// close waits for the computation that runs. None begins afterwards.
func (c *statusCache) close() {
	c.mu.Lock()
	c.closed = true
	running := c.running
	c.mu.Unlock()
	if running != nil {
		<-running
	}
}

// encode returns a state as JSON, which it makes once.
func (c *statusCache) encode(d *statusDocument) ([]byte, error) {
	d.once.Do(func() {
		begun := time.Now()
		d.encoded, d.failure = json.Marshal(&d.status)
		c.mu.Lock()
		defer c.mu.Unlock()
		c.pauseLocked(time.Now(), time.Since(begun))
	})
	return d.encoded, d.failure
}

// answer answers with a state, as "viablk status" prints it, or with the error
// of its computation.
func (c *statusCache) answer(w http.ResponseWriter, d *statusDocument, err error) {
	var body []byte
	if err == nil {
		body, err = c.encode(d)
	}
	if err != nil {
		answerError(w, http.StatusServiceUnavailable, err)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	_, _ = w.Write(body) // an error is a client that went away
}

// scrapeFresh is how old a scrape may be: to translate and encode a state of a
// hundred exports takes 0.1 s.
const scrapeFresh = time.Second

// scrapes keeps a state for clients that scrape.
type scrapes struct {
	cache *statusCache

	mu sync.Mutex
	// +checklocks:mu
	held *statusDocument
}

// read returns a state that is not older than scrapeFresh.
func (s *scrapes) read(ctx context.Context) (*statusDocument, error) {
	s.mu.Lock()
	held := s.held
	s.mu.Unlock()
	if held != nil && time.Since(held.made) < scrapeFresh {
		return held, nil
	}
	d, err := s.cache.read(ctx)
	if err != nil {
		return nil, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.held == held {
		s.held = d
	}
	return s.held, nil
}
