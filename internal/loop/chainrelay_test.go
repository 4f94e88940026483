//go:build !race

package loop_test

import (
	"encoding/binary"
	"io"
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"
)

// chainRelay is one thread of the process between clients and worker. Without
// a worker it has the disk itself.
type chainRelay struct {
	disk    []byte // nil with a worker
	memory  *chainMemory
	pair    *chainPair
	set     int          // epoll: sockets, and the bell that the worker rings
	worker  int          // its bell
	sleeps  *atomic.Bool // the worker
	spin    time.Duration
	told    bool          // the Go scheduler, of each sleep
	spent   time.Duration // on a request
	mu      sync.Mutex    // links
	links   [chainLinks]*chainLink
	staged  uint32 // tail of requests
	bytes   uint32 // of staged requests
	replied uint32 // head of replies
}

// chainLink is a client's connection. The number of a request that was answered
// last is the next one that is taken.
type chainLink struct {
	relay    *chainRelay
	fd       int
	index    uint8
	in       []byte // received and not parsed
	buffer   []byte
	rest     []byte // of a large payload, to be received
	large    uint8  // the request that it is of
	behind   int    // bytes to receive behind it
	free     []uint8
	headers  [chainDepth][chainReply]byte
	requests [chainDepth]chainEntry
	out      [][]byte // of buffers, to be sent
	buffers  [][]byte
	sends    []uint8 // requests that are answered when out is sent
	blocked  bool
}

const (
	chainRequest = 28
	chainReply   = 16
	chainBatch   = 256 << 10 // bytes, after which the other side begins
	largeWrite   = 16 << 10
)

func (r *chainRelay) run() {
	runtime.LockOSThread()
	events := make([]unix.EpollEvent, 64)
	for {
		timeout := -1
		for r.reap() || spinFor(r.spin, func() bool { return r.pair.replies.tail.Load() != r.replied }) {
		}
		r.pair.relaySleeps.Store(true)
		if r.pair.replies.tail.Load() != r.replied {
			timeout = 0
		}
		n := waitEvents(r.set, events, timeout, r.told)
		r.pair.relaySleeps.Store(false)
		for _, e := range events[:n] {
			r.mu.Lock()
			l := r.links[e.Pad]
			r.mu.Unlock()
			if e.Fd < 0 || l == nil {
				continue // the bell: edge-triggered, so never read
			}
			if e.Events&unix.EPOLLOUT != 0 && l.blocked {
				l.blocked = false
				l.watch(unix.EPOLL_CTL_MOD, unix.EPOLLIN)
				l.send()
			}
			if !l.receive() {
				r.mu.Lock()
				r.links[e.Pad] = nil
				r.mu.Unlock()
				_ = unix.Close(l.fd)
				continue
			}
			l.send()
		}
		r.publish()
	}
}

// spinFor polls for some time.
func spinFor(d time.Duration, ready func() bool) bool {
	if d == 0 {
		return false
	}
	for began := time.Now(); time.Since(began) < d; {
		for range 50 {
			if ready() {
				return true
			}
		}
	}
	return false
}

// spend keeps the thread busy, as what the smallest chain does not do would.
func spend(d time.Duration) {
	spinFor(d, func() bool { return false })
}

// publish gives the worker what is staged, and wakes it if it sleeps.
func (r *chainRelay) publish() {
	if r.bytes == 0 {
		return
	}
	r.bytes = 0
	r.pair.requests.tail.Store(r.staged)
	wake(r.sleeps, r.worker)
}

// reap sends the replies of the worker.
func (r *chainRelay) reap() bool {
	tail := r.pair.replies.tail.Load()
	if tail == r.replied {
		return false
	}
	var all [chainLinks]*chainLink
	for ; r.replied != tail; r.replied++ {
		e := &r.pair.replies.entries[r.replied%uint32(len(r.pair.replies.entries))]
		l := r.links[e.link] // it has a request in flight
		spend(r.spent / 2)
		l.reply(e.id)
		all[e.link] = l
	}
	for _, l := range all {
		if l != nil {
			l.send()
		}
	}
	return true
}

func (l *chainLink) watch(operation int, events uint32) {
	_ = unix.EpollCtl(l.relay.set, operation, l.fd, &unix.EpollEvent{Events: events | unix.EPOLLET, Fd: int32(l.fd), Pad: int32(l.index)})
}

// receive takes what the socket has: many small requests, or the rest of a
// large payload. It is false when the client has left.
func (l *chainLink) receive() bool {
	for {
		n := copy(l.buffer, l.in)
		room := l.buffer[n:min(len(l.buffer), n+l.behind)]
		got, err := unix.Readv(l.fd, [][]byte{l.rest, room})
		if err == unix.EAGAIN || err == unix.EINTR {
			return true
		}
		if err != nil || got == 0 {
			return false
		}
		short := got < len(l.rest)+len(room)
		if k := min(got, len(l.rest)); k > 0 {
			got -= k
			if l.rest = l.rest[k:]; len(l.rest) == 0 {
				l.submit(l.large)
			}
		}
		l.in = l.buffer[:n+got]
		if !l.parse() {
			return false
		}
		if short {
			return true
		}
	}
}

// parse begins requests. Behind a large payload, only the header of another
// one is received.
func (l *chainLink) parse() bool {
	for len(l.rest) == 0 && len(l.in) >= chainRequest {
		h := l.in[:chainRequest]
		length, kind := binary.BigEndian.Uint32(h[24:]), binary.BigEndian.Uint16(h[6:])
		write := kind == 1
		if kind > 1 || length > chainBytes { // DISC
			return false
		}
		if write && length < largeWrite && len(l.in) < chainRequest+int(length) {
			l.behind = len(l.buffer)
			return true
		}
		id := l.free[len(l.free)-1]
		l.free = l.free[:len(l.free)-1]
		l.requests[id] = chainEntry{binary.BigEndian.Uint64(h[16:]), length, l.index, id, write}
		binary.BigEndian.PutUint32(l.headers[id][:], 0x67446698)
		copy(l.headers[id][8:], h[8:16])
		l.in = l.in[chainRequest:]
		l.behind = len(l.buffer)
		if write {
			data := l.place(id)
			k := copy(data, l.in)
			l.in = l.in[k:]
			if k < len(data) {
				l.rest, l.large, l.behind = data[k:], id, chainRequest
				return true
			}
		}
		l.submit(id)
	}
	return true
}

// place is where the payload of a request lies: shared with the worker, or in
// the disk.
func (l *chainLink) place(id uint8) []byte {
	e := &l.requests[id]
	if l.relay.disk != nil {
		return l.relay.disk[e.offset:][:e.length]
	}
	return l.relay.memory.data[l.index][id][:e.length]
}

func (l *chainLink) submit(id uint8) {
	r := l.relay
	if r.disk != nil {
		l.reply(id)
		return
	}
	r.pair.requests.entries[r.staged%uint32(len(r.pair.requests.entries))] = l.requests[id]
	spend(r.spent / 2)
	r.staged++
	if r.bytes += max(l.requests[id].length, 1); r.bytes >= chainBatch {
		r.publish()
	}
}

func (l *chainLink) reply(id uint8) {
	l.out, l.sends = append(l.out, l.headers[id][:]), append(l.sends, id)
	if !l.requests[id].write {
		l.out = append(l.out, l.place(id))
	}
}

// send sends all replies in one call, if the socket takes them.
func (l *chainLink) send() {
	for len(l.out) > 0 && !l.blocked {
		n, err := unix.Writev(l.fd, l.out)
		if err == unix.EAGAIN {
			l.blocked = true
			l.watch(unix.EPOLL_CTL_MOD, unix.EPOLLIN|unix.EPOLLOUT)
		} else if err != nil && err != unix.EINTR {
			l.out = nil // the client has left
		}
		for len(l.out) > 0 && n >= len(l.out[0]) {
			n -= len(l.out[0])
			l.out = l.out[1:]
		}
		if n > 0 {
			l.out[0] = l.out[0][n:]
		}
	}
	if len(l.out) == 0 {
		l.free, l.sends, l.out = append(l.free, l.sends...), l.sends[:0], l.buffers[:0]
	}
}

// agree agrees with a client that every option is unknown but the first one.
func agree(c io.ReadWriter, size int) error {
	if _, err := c.Write([]byte("NBDMAGICIHAVEOPT\x00\x03")); err != nil {
		return err
	}
	flags := make([]byte, 4)
	if _, err := io.ReadFull(c, flags); err != nil {
		return err
	}
	for {
		h := make([]byte, 16)
		if _, err := io.ReadFull(c, h); err != nil {
			return err
		}
		if _, err := io.CopyN(io.Discard, c, int64(binary.BigEndian.Uint32(h[12:]))); err != nil {
			return err
		}
		var answer []byte
		if export := binary.BigEndian.Uint32(h[8:]) == 1; export {
			answer = binary.BigEndian.AppendUint64(answer, uint64(size))
			_, err := c.Write(append(answer, 1, 1)) // CAN_MULTI_CONN, HAS_FLAGS
			return err
		}
		answer = binary.BigEndian.AppendUint64(answer, 0x3e889045565a9)
		answer = append(append(answer, h[8:12]...), 0x80, 0, 0, 1, 0, 0, 0, 0)
		if _, err := c.Write(answer); err != nil {
			return err
		}
	}
}
