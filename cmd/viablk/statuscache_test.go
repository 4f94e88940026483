package main

import (
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// TestStateIsNewerThanCall: an administrator sees what changed before the call,
// also if another computation runs meanwhile; a scrape may be older.
func TestStateIsNewerThanCall(t *testing.T) {
	var version atomic.Int64
	computing, proceed := make(chan struct{}, 1), make(chan struct{}, 1)
	c := &statusCache{compute: func() processStatus {
		p := processStatus{PID: int(version.Load())}
		computing <- struct{}{}
		<-proceed
		return p
	}}
	defer c.close()
	first := make(chan *statusDocument)
	go func() {
		d, err := c.now(t.Context())
		if err != nil {
			t.Error(err)
		}
		first <- d
	}()
	<-computing
	version.Store(1)
	second := make(chan *statusDocument)
	go func() {
		d, err := c.now(t.Context())
		if err != nil {
			t.Error(err)
		}
		second <- d
	}()
	proceed <- struct{}{}
	if d := <-first; d.status.PID != 0 {
		t.Errorf("the first call waits for computation %d", d.status.PID)
	}
	<-computing
	c.mu.Lock()
	c.latest.made = time.Now().Add(time.Minute) // fresh, however slow this is
	c.mu.Unlock()
	if d, err := c.read(t.Context()); err != nil || d.status.PID != 0 {
		t.Errorf("a scrape does not take the state that is there: %v", err)
	}
	proceed <- struct{}{}
	if d := <-second; d.status.PID != 1 {
		t.Errorf("the second call got the state of before")
	}
}

// TestStatesAreShared: however many administrators ask, the process computes no
// more states than its pauses allow.
func TestStatesAreShared(t *testing.T) {
	var computed atomic.Int64
	c := &statusCache{compute: func() processStatus {
		computed.Add(1)
		time.Sleep(time.Millisecond)
		return processStatus{}
	}}
	defer c.close()
	begin := time.Now()
	var all sync.WaitGroup
	for range 1000 {
		all.Go(func() {
			for range 3 {
				if _, err := c.now(t.Context()); err != nil {
					t.Error(err)
				}
			}
		})
	}
	all.Wait()
	if n, most := computed.Load(), 1+int64(time.Since(begin)/(statusPause*time.Millisecond)); n < 3 || n > most {
		t.Errorf("%d states were computed, at most %d are allowed", n, most)
	}
}
