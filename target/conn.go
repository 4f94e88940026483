package target

import (
	"context"
	"log/slog"
	"time"

	"github.com/viablk/viablk/internal/access"
	"github.com/viablk/viablk/internal/contain"
	"github.com/viablk/viablk/via"
)

// conn is a VIA connection as the server sees it. Any goroutine may use it. The
// state of the protocol is in its worker, which no other goroutine can reach.
type conn struct {
	server  *Server
	workers *workers // of the ServeRequests that admitted it
	log     *slog.Logger
	peer    string // its address, or its process
	origin  string // of the peer; see via.ConnRequest.Origin

	// counted is what limits count the connection by: an identity, or the origin.
	// It is empty of a peer without limits. Guarded by Server.mu.
	counted   string
	opened    bool     // an export; guarded by Server.mu
	session   *session // once it has logged in; guarded by Sessions.mu
	signals   signals
	published publishedStats
}

func newConn(s *Server, workers *workers, peer, origin string) *conn {
	return &conn{server: s, workers: workers, log: s.cfg.Log.With("peer", peer), peer: peer, origin: origin, counted: origin}
}

// countAs counts the connection by who its peer is instead of by its origin. It
// returns why the peer may have no connection more.
func (c *conn) countAs(i access.Identity) (refusal string) {
	defer contain.Shared()
	key := i.Key()
	c.server.mu.Lock()
	defer c.server.mu.Unlock()
	if key == "" || c.origin == "" || key == c.counted {
		return ""
	}
	a := &c.server.admission
	a.release(c.counted, c.opened)
	if refusal = a.begin(key); refusal != "" {
		key = c.counted // until it ends
		a.restore(key)
	}
	c.counted = key
	if c.opened {
		a.opened(key)
	}
	return refusal
}

// countedBy returns what limits count the connection by.
func (c *conn) countedBy() string {
	c.server.mu.Lock()
	defer c.server.mu.Unlock()
	return c.counted
}

// markOpened counts the connection as one that opened an export.
func (c *conn) markOpened() {
	defer contain.Shared()
	c.server.mu.Lock()
	defer c.server.mu.Unlock()
	if !c.opened {
		c.opened = true
		c.server.admission.opened(c.counted)
	}
}

// mustOpen reports whether the connection ends because it has opened no export
// since it logged in. A host that uses a disk needs the place more.
func (c *conn) mustOpen(since time.Duration) bool {
	c.server.mu.Lock()
	defer c.server.mu.Unlock()
	return c.origin != "" && !c.opened && since >= openTimeout
}

// logCaused logs a line that the peer causes, within the rate limit of its
// identity or origin.
func (c *conn) logCaused(log *slog.Logger, level slog.Level, text string, args ...any) {
	c.server.caused.Log(c.server.cfg.Scheduler.Now(), c.countedBy(), log, level, text, args...)
}

// routineServe is the worker: it accepts the connection, serves it, and
// releases everything.
func (c *conn) routineServe(ctx context.Context, r *via.ConnRequest, attrs via.ViAttributes) {
	defer c.server.removeConn(c)
	newWorker(c).serve(ctx, r, attrs)
}
