// Package ratelog rate-limits the log lines that peers cause: refused
// connections, failed handshakes, and flushes that a target fails. NBD servers,
// targets and initiators log such lines through it, and it counts the lines
// that it leaves out.
package ratelog

import (
	"log/slog"
	"sync"
	"time"
)

// Log writes at most one line per second and adds the number of lines it
// suppressed before. The zero value is ready to use; its method is safe for
// concurrent use.
type Log struct {
	mu sync.Mutex
	// +checklocks:mu
	next time.Time
	// +checklocks:mu
	suppressed int
}

// interval is the minimum time between two lines.
const interval = time.Second

// Warn logs at level Warn unless the rate limit suppresses the line.
func (l *Log) Warn(log *slog.Logger, text string, args ...any) {
	if suppressed, ok := l.allow(time.Now()); ok {
		log.Warn(text, append(args, "not_logged", suppressed)...)
	}
}

// allow reports whether a line may be logged at now, and how many lines were
// suppressed since the last one.
func (l *Log) allow(now time.Time) (suppressed int, ok bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if now.Before(l.next) {
		l.suppressed++
		return 0, false
	}
	suppressed, l.suppressed = l.suppressed, 0
	l.next = now.Add(interval)
	return suppressed, true
}
