// Package stranger logs what anybody who can connect may bring about as often as he
// likes: connections that are refused, handshakes that end early.
package stranger

import (
	"log/slog"
	"sync"
	"time"
)

// Log logs a line in a second at most, with the number of those that were left out
// before. The zero value is ready, and its method safe for concurrent use.
type Log struct {
	mu     sync.Mutex
	next   time.Time
	hidden int
}

// pause is the time from one line to the next.
const pause = time.Second

// Warn logs at level Warn, if a line is due.
func (l *Log) Warn(log *slog.Logger, text string, args ...any) {
	if hidden, ok := l.due(time.Now()); ok {
		log.Warn(text, append(args, "not_logged", hidden)...)
	}
}

// due reports whether a line is due, and how many were left out before it.
func (l *Log) due(now time.Time) (hidden int, ok bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if now.Before(l.next) {
		l.hidden++
		return 0, false
	}
	hidden, l.hidden = l.hidden, 0
	l.next = now.Add(pause)
	return hidden, true
}
