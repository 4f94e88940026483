package shm

import (
	"fmt"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/viablk/viablk/via"
)

// A queue with many links would look at many tails to find the few that moved.
// Its owner asks the peers of its links to keep journals instead: for each of
// their own queues one, in which they enter which link they published what at.
//
//	journal = position u64 │ … │ entries
//	entry   = lap u16, name of the link u48 │ what it published u64
//
// The lap counts how often the journal was written through, so that the next
// entry itself says whether it is there. It is 0 while the entry is written.
//
// A journal is memory that its keeper alone writes, as a segment is. Its reader
// believes an entry only of links whose peer passed that very journal, and no
// more than it believes a tail. It may fall behind by as many entries as there
// are: then it looks at the tails of the journal's links, once.
const (
	manyLinks = 8 // with more, the owner of a queue asks for journals

	journalEntries = 4096
	journalEntry   = 16 // bytes
	offPosition    = 0  // u64, entries made, known at steps of positionStep
	offEntries     = 64
	offEntryName   = 0 // u64: lap << lapShift | number << nameShift | slot
	offEntryTail   = 8 // u64, as in the segment's offTail
	journalSize    = (offEntries + journalEntries*journalEntry + 4095) &^ 4095

	nameShift = 16 // a name has the link's slot below and is never given again
	maxNamed  = 1 << nameShift

	lapShift     = 48
	nameMask     = 1<<lapShift - 1
	maxLap       = 1 << 15
	positionStep = 64
)

// lapOf returns the lap of an entry; it is not 0.
func lapOf(position uint64) uint64 { return position/journalEntries%maxLap + 1 }

// journal is kept by this process, for one queue of a peer, about the links of
// one of its own.
type journal struct {
	mem      []byte
	fd       int
	position uint64 // of the goroutine that drives the queue
	links    int    // that it is about; guarded by the queue's binding
}

// mention is the part of a link in a journal.
type mention struct {
	*journal
	name uint64 // as the reader calls the link
}

// enter says that a link has published something, before what is loaded next.
func (m *mention) enter(word uint64) {
	at := offEntries + int(m.position%journalEntries)*journalEntry
	publishWord(m.mem, at+offEntryName, 0)
	publishWord(m.mem, at+offEntryTail, word)
	storeWord(m.mem, at+offEntryName, lapOf(m.position)<<lapShift|m.name)
	if m.position++; m.position%positionStep == 0 {
		publishWord(m.mem, offPosition, m.position)
	}
}

// keep begins to mention a link in the journal for a queue of its peer, which it
// then passes. The agent goroutine calls it.
func (l *link) keep(token, name uint64) error {
	if l.mention.Load() != nil || name > nameMask {
		return fmt.Errorf("%w: a journal is asked for twice, or under the name %#x", errMalformed, name)
	}
	j, err := l.sendCQ.keep(token)
	if err != nil {
		return nil // the peer goes on watching the link
	}
	l.keeps = token
	l.mention.Store(&mention{j, name})
	// What was published before this is seen by the peer that has the journal.
	l.adapter.mu.Lock()
	defer l.adapter.mu.Unlock()
	l.tell(control{kind: controlJournal, fds: []int{j.fd}})
	return nil
}

// keep returns the journal for a queue of a peer.
func (c *cq) keep(token uint64) (*journal, error) {
	c.binding.Lock()
	defer c.binding.Unlock()
	j := c.kept[token]
	if j == nil {
		mem, fd, err := mapMemfd("viablk-journal", journalSize, unix.F_SEAL_FUTURE_WRITE)
		if err != nil {
			return nil, err
		}
		j = &journal{mem: mem, fd: fd}
		c.kept[token] = j
	}
	j.links++
	return j, nil
}

// forsake ends what keep began. The agent goroutine has ended.
func (c *cq) forsake(l *link) {
	m := l.mention.Load()
	if m == nil {
		return
	}
	c.binding.Lock()
	defer c.binding.Unlock()
	if m.links--; m.links == 0 {
		delete(c.kept, l.keeps)
		_ = unix.Munmap(m.mem)
		_ = unix.Close(m.fd)
	}
}

// journalID tells memfds apart.
type journalID struct{ device, inode uint64 }

// peerJournal is a journal of a peer, mapped here.
type peerJournal struct {
	id    journalID
	mem   []byte
	links int // that it was passed for; guarded by the queue's binding

	// Of the goroutine that drives the queue.
	position uint64 // entries read
	adopted  int    // links that are not watched because of it
	latest   int    // slot of the link that it spoke of
}

// ask asks the peers of links that are watched for journals, if they are many.
func (c *cq) ask(a *adapter) {
	c.binding.Lock()
	var ask []*link
	if c.links > manyLinks {
		for _, l := range c.watched {
			if !l.asked && l.name != 0 {
				l.asked = true
				ask = append(ask, l)
			}
		}
	}
	c.binding.Unlock()
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, l := range ask {
		l.tell(control{kind: controlAsk, value: c.token, size: l.name})
	}
}

// offer takes over a journal that the peer passed for a link. The agent goroutine
// calls it.
func (l *link) offer(fd int) error {
	if l.offered.Load() != nil {
		closeAll(fd)
		return fmt.Errorf("%w: a second journal", errMalformed)
	}
	j, err := l.recvCQ.open(fd)
	if err != nil {
		return err
	}
	l.offered.Store(j)
	l.recvCQ.alert(l)
	return nil
}

// open maps a journal, once. It closes fd.
func (c *cq) open(fd int) (*peerJournal, error) {
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		closeAll(fd)
		return nil, fmt.Errorf("stat journal: %w", err)
	}
	id := journalID{st.Dev, st.Ino}
	c.binding.Lock()
	defer c.binding.Unlock()
	j := c.read[id]
	if j != nil {
		closeAll(fd)
	} else {
		mem, err := mapPeer(fd, journalSize, unix.PROT_READ)
		if err != nil {
			return nil, fmt.Errorf("map the peer's journal: %w", err)
		}
		j = &peerJournal{id: id, mem: mem}
		c.read[id] = j
	}
	j.links++
	return j, nil
}

// adopt stops to watch a link: its journal speaks of everything from now on.
func (c *cq) adopt(l *link, j *peerJournal) {
	c.unlist(l)
	if j.adopted == 0 {
		j.position = loadWord(j.mem, offPosition)
		c.journals = append(c.journals, j)
	}
	j.adopted++
	l.journal = j
	l.see()
}

// abandonJournal ends what offer began. The agent goroutine has ended.
func (c *cq) abandonJournal(l *link) {
	j := l.offered.Load()
	if j == nil {
		return
	}
	if l.journal != nil {
		if j.adopted--; j.adopted == 0 {
			c.journals = slices.DeleteFunc(c.journals, func(o *peerJournal) bool { return o == j })
		}
	}
	c.binding.Lock()
	defer c.binding.Unlock()
	if j.links--; j.links == 0 {
		delete(c.read, j.id)
		_ = unix.Munmap(j.mem)
	}
}

// follow reads what is new in a journal, up to a turn's worth.
func (c *cq) follow(j *peerJournal) {
	if l := c.following(j, j.latest); l != nil {
		l.in.fetch() // with the entry, not after it
	}
	for n := journalTurn; n > 0 && c.arriving.len() < arrivalLine; n-- {
		at := offEntries + int(j.position%journalEntries)*journalEntry
		name, lap := loadWord(j.mem, at+offEntryName), lapOf(j.position)
		if name>>lapShift != lap {
			if name != 0 && name>>lapShift != lapOf(j.position-journalEntries) {
				c.catchUp(j)
			}
			return
		}
		word := loadWord(j.mem, at+offEntryTail)
		if loadWord(j.mem, at+offEntryName) != name { // it was written again meanwhile
			c.catchUp(j)
			return
		}
		c.arrived(j, name&nameMask, word)
		j.position++
	}
}

// catchUp passes entries that are lost, and looks at the tails of all links that
// the journal is about instead.
func (c *cq) catchUp(j *peerJournal) {
	j.position = loadWord(j.mem, offPosition)
	for i := range c.slots {
		if l := c.slots[i].link; l != nil && l.journal == j {
			l.notice()
		}
	}
}

// A poll reads so many entries of a journal, and no more while so many links are
// in line: what is far ahead in a journal is not to wait for what came often.
const (
	journalTurn = 512
	arrivalLine = 64
)

// arrived takes over an entry. A stale one says nothing new.
func (c *cq) arrived(j *peerJournal, name, word uint64) {
	i := int(name % maxNamed)
	if i >= len(c.slots) {
		return
	}
	l := c.slots[i].link
	if l == nil || l.name != name || l.journal != j {
		return
	}
	if new := word&^lapMask - l.in.head; new <= ringSize && new > l.in.tail-l.in.head {
		if err := l.in.setWord(word); err != nil {
			l.fail(via.AsyncConnectionLost, err)
		}
	}
	if before := c.slots[j.latest].link; before != nil {
		before.after = uint32(i)
	}
	j.latest = i
	l.arrives()
}

// following guesses which link a journal speaks of after the one in a slot: which
// it was the last time. It returns nil if it does not know.
func (c *cq) following(j *peerJournal, slot int) *link {
	l := c.slots[slot].link
	if l == nil || int(l.after) >= len(c.slots) {
		return nil
	}
	if l = c.slots[l.after].link; l == nil || l.journal != j {
		return nil
	}
	return l
}
