package backend

import (
	"log/slog"
	"sync/atomic"
	"time"
)

// fullInterval is the least time between two warnings that a disk has no room.
const fullInterval = time.Minute

// fullWarning says that the file system of a disk is full: its clients see
// ENOSPC, and those who run the target would see nothing.
type fullWarning struct {
	log  *slog.Logger // nil discards
	next atomic.Int64 // ns since 1970, before which no warning is due
}

// warn logs that a request of the disk at path failed with err, for want of
// room.
func (w *fullWarning) warn(path string, err error) {
	now, next := time.Now(), w.next.Load()
	if w.log == nil || now.UnixNano() < next || !w.next.CompareAndSwap(next, now.Add(fullInterval).UnixNano()) {
		return
	}
	w.log.Warn("no space for writes to the disk: free some in its file system", "event", "disk_full", "path", path, "error", err)
}
