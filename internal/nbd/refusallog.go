package nbd

import (
	"log/slog"
	"sync"
	"time"
)

// refusalLog logs what anybody who can connect may bring about as often as he likes:
// a line in a second at most, with the number of those that were left out before.
// Its method is safe for concurrent use.
type refusalLog struct {
	mu     sync.Mutex
	next   time.Time
	hidden int
}

// refusalPause is the time from one line to the next.
const refusalPause = time.Second

// log logs at level Warn, if a line is due.
func (r *refusalLog) log(log *slog.Logger, text string, args ...any) {
	if hidden, ok := r.due(time.Now()); ok {
		log.Warn(text, append(args, "not_logged", hidden)...)
	}
}

// due reports whether a line is due, and how many were left out before it.
func (r *refusalLog) due(now time.Time) (hidden int, ok bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if now.Before(r.next) {
		r.hidden++
		return 0, false
	}
	hidden, r.hidden = r.hidden, 0
	r.next = now.Add(refusalPause)
	return hidden, true
}
