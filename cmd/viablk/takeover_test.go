package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/viablk/viablk/config"
	"github.com/viablk/viablk/internal/block"
)

// flushedDisk counts flushes.
type flushedDisk struct {
	*block.Executor
	features block.Features
	flushes  atomic.Int32
}

func newFlushedDisk(features block.Features) *flushedDisk {
	d := &flushedDisk{features: features}
	d.Executor = block.NewExecutor(d, 0)
	return d
}

func (d *flushedDisk) Info() block.Info {
	return block.Info{Size: 1 << 20, MinimumBlock: 1, PreferredBlock: 4096, MaximumPayload: block.PayloadLimit, Features: d.features}
}

func (d *flushedDisk) NewQueue(depth int) (block.Queue, error) {
	return d.Executor.NewQueue(depth, block.PayloadLimit)
}

func (d *flushedDisk) Close() error {
	d.Executor.Close()
	return nil
}

func (d *flushedDisk) Attempt(*block.Request) bool { return false }

func (d *flushedDisk) Execute(r *block.Request) error {
	if r.Op == block.Flush {
		d.flushes.Add(1)
	}
	return nil
}

// TestFlushBeforeTakeover: each disk that can be written is flushed, a bounded
// number of times, and none while a change may close it.
func TestFlushBeforeTakeover(t *testing.T) {
	plain, readOnly := newFlushedDisk(block.CanFlush), newFlushedDisk(block.CanFlush|block.ReadOnly)
	defer plain.Close()
	defer readOnly.Close()
	set := newExportSet(slog.New(slog.DiscardHandler), config.Effective{}, []disk{{device: plain}, {device: readOnly}}, make(chan struct{}))
	if err := set.flush(t.Context(), waitTimeout); err != nil {
		t.Fatal(err)
	}
	if n := plain.flushes.Load(); n < 1 || n > flushes || readOnly.flushes.Load() != 0 {
		t.Errorf("%d flushes, and %d of a disk that is read-only", n, readOnly.flushes.Load())
	}
	for range 100 { // as keep, which does not wait
		if err := set.flush(t.Context(), waitTimeout); err != nil || len(set.changing) != 0 {
			t.Fatalf("after a flush %d changes are in progress: %v", len(set.changing), err)
		}
	}
	before := plain.flushes.Load()
	end, err := set.begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := set.flush(ctx, waitTimeout); err != nil {
		t.Fatal(err)
	}
	end()
	if plain.flushes.Load() != before {
		t.Error("flushed amid a change")
	}
}

// TestSuccessorOfManyExports: the claim of a target with ten thousand exports
// is read, and what it lacks is found.
func TestSuccessorOfManyExports(t *testing.T) {
	s := newTestService(t, waitTimeout)
	mux := http.NewServeMux()
	s.handleTakeover(mux)
	var asked claim
	s.mayHandOver = func(by claim) error {
		asked = by
		return errors.New("it was asked")
	}
	var c config.Config
	for i := range 10_000 {
		c.Target.Exports = append(c.Target.Exports, config.Export{Name: fmt.Sprintf("disk-with-a-long-name-%05d", i)})
	}
	document, err := json.Marshal(claimOf(c))
	if err != nil {
		t.Fatal(err)
	}
	for _, x := range []struct {
		body string
		want int
	}{{string(document), http.StatusConflict}, {strings.Repeat(" ", maximumClaim+1), http.StatusRequestEntityTooLarge}} {
		w := httptest.NewRecorder()
		q := httptest.NewRequest(http.MethodPost, "/v1/takeover", strings.NewReader(x.body))
		q.Header.Set("Upgrade", takeoverProtocol)
		if mux.ServeHTTP(w, q); w.Code != x.want {
			t.Errorf("%d bytes: got %d, want %d: %s", len(x.body), w.Code, x.want, w.Body)
		}
	}
	if len(asked.Exports) != len(c.Target.Exports) {
		t.Errorf("%d exports are known, not %d", len(asked.Exports), len(c.Target.Exports))
	}
}
