package shm

import (
	"fmt"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/viablk/viablk/internal/memfd"
)

// A queue with many links would load many tails to find the few that advanced.
// Instead it asks the peers of its links to keep ready logs. A ready log
// belongs to a pair of queues: the peer appends an entry for each link that it
// publishes records on.
//
//	ready log = position u64 │ … │ entries
//	entry     = lap u16, name of the link u48 │ published position u64
//
// The lap counts how often the writer wrapped around, so that the reader can
// tell a new entry from an old one. It is 0 while the writer changes the entry.
//
// Like a segment, a ready log is memory that only its writer can change. The
// reader accepts an entry only for links whose peer passed this ready log, and
// validates the position as it does a tail. A reader that fell behind by more
// than logEntries loads the tails of all links of the ready log once. The
// steps:
//
//  1. requestLogs asks the peers of the watched links
//  2. the peer's startLog makes the ready log of the pair, or finds it, and
//     passes it
//  3. acceptLog maps it and alerts the queue, whose switchToLog ends the watch
//  4. the peer's publish appends an entry at each doorbell
//  5. readLog reads the entries in each pass; arrived puts their links into
//     cq.arriving
const (
	manyLinks = 8 // a queue with more links asks for ready logs

	logEntries   = 4096
	logEntry     = 16 // bytes
	offPosition  = 0  // u64, entries written, in steps of positionStep
	offEntries   = 64
	offEntryName = 0 // u64: lap << lapShift | number << nameShift | entry
	offEntryTail = 8 // u64, as in the segment's offTail
	logSize      = (offEntries + logEntries*logEntry + 4095) &^ 4095

	nameShift = 16 // below it, the index of the link; a name is never reused
	maxNamed  = 1 << nameShift

	lapShift     = 48
	nameMask     = 1<<lapShift - 1
	maxLap       = 1 << 15
	positionStep = 64
)

// lapOf returns the lap of an entry; it is never 0.
func lapOf(position uint64) uint64 { return position/logEntries%maxLap + 1 }

// readyLog is a ready log that this process writes: for one queue of a peer,
// about the links of one local queue.
type readyLog struct {
	token    uint64 // of the peer's queue
	mem      []byte
	fd       int
	position uint64 // entries written; the goroutine that drives the queue owns it
	links    int    // that append to it; guarded by the queue's binding
}

// logRef is the place of a link in a ready log.
type logRef struct {
	*readyLog
	name uint64 // of the link at the reader
}

// append adds an entry for a link. The store is visible before the next load.
func (m *logRef) append(word uint64) {
	at := offEntries + int(m.position%logEntries)*logEntry
	publishWord(m.mem, at+offEntryName, 0)
	publishWord(m.mem, at+offEntryTail, word)
	storeWord(m.mem, at+offEntryName, lapOf(m.position)<<lapShift|m.name)
	if m.position++; m.position%positionStep == 0 {
		publishWord(m.mem, offPosition, m.position)
	}
}

// openLog returns the ready log for a queue of a peer and adds a reference.
func (c *cq) openLog(token uint64) (*readyLog, error) {
	c.binding.Lock()
	defer c.binding.Unlock()
	j := c.localLogs[token]
	if j == nil {
		mem, fd, err := memfd.Create("viablk-readylog", logSize, unix.F_SEAL_FUTURE_WRITE)
		if err != nil {
			return nil, err
		}
		j = &readyLog{token: token, mem: mem, fd: fd}
		c.localLogs[token] = j
	}
	j.links++
	return j, nil
}

// releaseLog releases the reference of openLog. The agent goroutine has ended.
func (c *cq) releaseLog(m *logRef) {
	if m == nil {
		return
	}
	c.binding.Lock()
	defer c.binding.Unlock()
	if m.links--; m.links == 0 {
		delete(c.localLogs, m.token)
		_ = unix.Munmap(m.mem)
		_ = unix.Close(m.fd)
	}
}

// logID identifies a memfd.
type logID struct{ device, inode uint64 }

// peerLog is a ready log of a peer, mapped here.
type peerLog struct {
	id    logID
	mem   []byte
	links int // that it was passed for; guarded by the queue's binding

	// The goroutine that drives the queue owns the rest.
	position uint64 // entries read
	adopted  int    // links that it names, which are not watched
	latest   int    // index of the link that its last entry named
}

// requestLogs asks the peers of the watched links for ready logs, if the queue
// has many links.
//
// The links of a queue of a have agents of a.
// +checklocksignore
func (c *cq) requestLogs(a *adapter) {
	c.binding.Lock()
	var ask []*link
	if c.links > manyLinks {
		for _, l := range c.watched {
			if !l.recvAt.asked && l.receiver.name != 0 {
				l.recvAt.asked = true
				ask = append(ask, l)
			}
		}
	}
	c.binding.Unlock()
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, l := range ask {
		l.agent.post(control{kind: controlRequestLog, value: c.token, size: l.receiver.name})
	}
}

// mapPeerLog maps a ready log, or returns the present mapping. It closes fd.
func (c *cq) mapPeerLog(fd int) (*peerLog, error) {
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		closeAll(fd)
		return nil, fmt.Errorf("stat ready log: %w", err)
	}
	id := logID{st.Dev, st.Ino}
	c.binding.Lock()
	defer c.binding.Unlock()
	j := c.peerLogs[id]
	if j != nil {
		closeAll(fd)
	} else {
		mem, err := memfd.MapPeer(fd, logSize, unix.PROT_READ)
		if err != nil {
			return nil, fmt.Errorf("map the peer's ready log: %w", err)
		}
		j = &peerLog{id: id, mem: mem}
		c.peerLogs[id] = j
	}
	j.links++
	return j, nil
}

// switchToLog removes a link from watched: its ready log names it from now on.
func (c *cq) switchToLog(l *link, j *peerLog) {
	c.unlist(l.recvAt)
	if j.adopted == 0 {
		j.position = loadWord(j.mem, offPosition)
		c.followed = append(c.followed, j)
	}
	j.adopted++
	l.receiver.peerLog = j
	if err := l.receiver.loadTail(); err != nil {
		l.fail(err)
	}
}

// releasePeerLog releases the reference of mapPeerLog. The agent's goroutine
// has ended. adopted is whether the ready log names the link.
func (c *cq) releasePeerLog(j *peerLog, adopted bool) {
	if j == nil {
		return
	}
	if adopted {
		if j.adopted--; j.adopted == 0 {
			c.followed = slices.DeleteFunc(c.followed, func(o *peerLog) bool { return o == j })
		}
	}
	c.binding.Lock()
	defer c.binding.Unlock()
	if j.links--; j.links == 0 {
		delete(c.peerLogs, j.id)
		_ = unix.Munmap(j.mem)
	}
}

// readLog reads up to logQuantum new entries of a ready log.
func (c *cq) readLog(j *peerLog) {
	if l := c.predictNext(j, j.latest); l != nil {
		l.receiver.in.prefetch() // with the entry, not after it
	}
	for n := logQuantum; n > 0 && c.arriving.Len() < maxArriving; n-- {
		at := offEntries + int(j.position%logEntries)*logEntry
		name, lap := loadWord(j.mem, at+offEntryName), lapOf(j.position)
		if name>>lapShift != lap {
			if name != 0 && name>>lapShift != lapOf(j.position-logEntries) {
				c.catchUp(j)
			}
			return
		}
		word := loadWord(j.mem, at+offEntryTail)
		if loadWord(j.mem, at+offEntryName) != name { // overwritten meanwhile
			c.catchUp(j)
			return
		}
		c.arrived(j, name&nameMask, word)
		j.position++
	}
}

// catchUp skips the overwritten entries and loads the tails of all links that
// the ready log names.
func (c *cq) catchUp(j *peerLog) {
	j.position = loadWord(j.mem, offPosition)
	for i := range c.entries {
		if l := c.entries[i].link; l != nil && l.receiver.peerLog == j {
			l.checkTail()
		}
	}
}

// Bounds of a pass. A link that publishes often must not delay links that the
// ready log names later.
const (
	logQuantum  = 512 // entries to read of each ready log
	maxArriving = 64  // links in cq.arriving that stop the reading
)

// arrived applies an entry. A stale one changes nothing.
func (c *cq) arrived(j *peerLog, name, word uint64) {
	i := int(name % maxNamed)
	if i >= len(c.entries) {
		return
	}
	l := c.entries[i].link
	if l == nil || l.receiver.name != name || l.receiver.peerLog != j {
		return
	}
	if err := l.receiver.acceptTail(word); err != nil {
		l.fail(err)
	}
	if before := c.entries[j.latest].link; before != nil {
		before.receiver.predicted = uint32(i)
	}
	j.latest = i
	l.scheduleReceive()
}

// acceptTail takes the position in an entry of a ready log, unless it is old.
func (r *receiver) acceptTail(word uint64) error {
	if new := word&^lapMask - r.in.head; new <= ringSize && new > r.in.tail-r.in.head {
		return r.in.setWord(word)
	}
	return nil
}

// predictNext returns the link that the ready log is likely to name after the
// one at entries[place]: the one that followed it the last time. It returns nil
// without such a link.
func (c *cq) predictNext(j *peerLog, place int) *link {
	l := c.entries[place].link
	if l == nil || int(l.receiver.predicted) >= len(c.entries) {
		return nil
	}
	if l = c.entries[l.receiver.predicted].link; l == nil || l.receiver.peerLog != j {
		return nil
	}
	return l
}
