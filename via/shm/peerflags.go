package shm

import (
	"fmt"
	"sync"
	"sync/atomic"

	"golang.org/x/sys/unix"

	"github.com/viablk/viablk/internal/memfd"
	"github.com/viablk/viablk/internal/sleepflag"
)

// A thread that drives many queues sleeps for all of them at once. Its peers
// then go by its sleep flag: a peer that has published rings, over any of the
// links, and the thread polls all queues when it wakes. The steps:
//
//  1. passFlags passes the page of this process, once the link is live, to a
//     peer that knows what it is
//  2. acceptFlags maps the page of the peer's process and says so
//  3. shareFlags lets cq.Share put a flag into the wants of the link
//  4. wakeThread loads that flag of the peer after it published, and rings if
//     the thread sleeps and no link of this process has rung in that sleep
//
// A peer that writes anything into its page, or passes the page of another
// process, spoils its own wake-ups alone: the sleep that was rung is kept for
// each page and process at the other end of the control socket.

// flagsID identifies the page of a process.
type flagsID struct {
	page logID
	pid  int32
}

// peerFlags is the page of a peer's process, mapped here.
type peerFlags struct {
	id    flagsID
	mem   []byte
	links int                            // that it was passed for; guarded by flagPages.mu
	rung  [sleepflag.Flags]atomic.Uint64 // the flag in the sleep that was rung last
}

// flagPages are the pages of peers that links of this process have, of any
// device: a peer's thread is rung once for all of them.
var flagPages struct {
	mu sync.Mutex
	// +checklocks:mu
	pages map[flagsID]*peerFlags
}

// passFlags passes the page of this process. Without it the peer rings for each
// link, so that an error does no harm.
func (a *controlAgent) passFlags() {
	if !a.peerShares {
		return
	}
	page, err := sleepflag.Process()
	if err != nil {
		return
	}
	_ = postControl(a.conn, control{kind: controlPassFlags, fds: []int{page.FD()}})
}

// acceptFlags maps the page that the peer passed. There is no descriptor if
// this process had none left to receive it with.
func (a *controlAgent) acceptFlags(fds []int) error {
	if a.flags.Load() != nil {
		closeAll(fds...)
		return fmt.Errorf("%w: a second page of sleep flags", errMalformed)
	}
	cred, err := credentials(a.conn)
	if len(fds) == 0 || err != nil || cred.Pid <= 0 { // a process of another namespace
		closeAll(fds...)
		return nil
	}
	f, err := mapFlags(fds[0], cred.Pid)
	if err != nil {
		return err
	}
	a.flags.Store(f)
	_ = postControl(a.conn, control{kind: controlMappedFlags}) // without it the peer shares none
	return nil
}

// shareFlags notes that the peer goes by the sleep flags of this process.
func (a *controlAgent) shareFlags() error {
	if !a.peerShares || a.signals.shares.Swap(true) {
		return fmt.Errorf("%w: sleep flags mapped by a peer that does not know them, or twice", errMalformed)
	}
	return nil
}

// mapFlags maps the page of a process, or returns the present mapping, and adds
// a reference. It closes fd.
func mapFlags(fd int, pid int32) (*peerFlags, error) {
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		closeAll(fd)
		return nil, fmt.Errorf("stat page of sleep flags: %w", err)
	}
	id := flagsID{logID{st.Dev, st.Ino}, pid}
	flagPages.mu.Lock()
	defer flagPages.mu.Unlock()
	f := flagPages.pages[id]
	if f != nil {
		closeAll(fd)
	} else {
		mem, err := memfd.MapPeer(fd, sleepflag.Size, unix.PROT_READ)
		if err != nil {
			return nil, fmt.Errorf("map the peer's sleep flags: %w", err)
		}
		f = &peerFlags{id: id, mem: mem}
		if flagPages.pages == nil {
			flagPages.pages = make(map[flagsID]*peerFlags)
		}
		flagPages.pages[id] = f
	}
	f.links++
	return f, nil
}

// release releases the reference of mapFlags, if there is one.
func (f *peerFlags) release() {
	if f == nil {
		return
	}
	flagPages.mu.Lock()
	defer flagPages.mu.Unlock()
	if f.links--; f.links == 0 {
		delete(flagPages.pages, f.id)
		_ = unix.Munmap(f.mem)
	}
}

// Share implements [via.SleepSharer].
func (c *cq) Share(flag int) bool {
	if !c.armed || flag >= sleepflag.Flags || flag >= 0 && !c.shareable() {
		return false
	}
	for i := range c.entries {
		if l := c.entries[i].link; l != nil && !l.broken {
			l.sleep.share(flag)
		}
	}
	return true
}

// shareable reports whether all peers can go by a sleep flag. Pending looks at
// each link, so there are few.
func (c *cq) shareable() bool {
	if c.links == 0 || c.links > manyLinks {
		return false
	}
	for i := range c.entries {
		if l := c.entries[i].link; l != nil && !l.shareable() {
			return false
		}
	}
	return true
}

// Pending implements [via.SleepSharer].
func (c *cq) Pending() bool {
	if !c.empty() || c.alerts.some.Load() {
		return true
	}
	for i := range c.entries {
		if l := c.entries[i].link; l != nil && l.hasWork(c) {
			return true
		}
	}
	return false
}

// wakeThread rings if the thread of the peer's flag sleeps and was not rung in
// this sleep. Only a ring that the thread watches for ends the sleep, and it
// may have left the link to another thread since the wants were loaded: so the
// ring counts for the other links if the wants still name the flag. If they do
// again, the thread was awake meanwhile, and the sleep is over.
func (b *peerBell) wakeThread(wants uint64) {
	f, i := b.flags.Load(), wants&^wantShared>>wantShift
	if f == nil || i >= sleepflag.Flags {
		return // no honest peer's wants
	}
	flag := sleepflag.Load(f.mem, int(i))
	if !sleepflag.Asleep(flag) || f.rung[i].Load() == flag {
		return
	}
	if b.ring() && loadWord(b.peer.mem, offWants) == wants {
		f.rung[i].Store(flag)
	}
}
