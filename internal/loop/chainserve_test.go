//go:build !race

package loop_test

import (
	"fmt"
	"io"
	"net"
	"os"
	"runtime"
	"sync"

	"golang.org/x/sys/unix"
)

// serve is the process of the relay.
func (s chainShape) serve(socket string) error {
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: socket})
	if err != nil {
		return err
	}
	fd, err := unix.MemfdCreate("chain", 0)
	if err != nil {
		return err
	}
	memory, err := mapChainMemory(fd)
	if err != nil {
		return err
	}
	relays, files := make([]chainRelay, s.relays), []*os.File{os.NewFile(uintptr(fd), "memory")}
	for i := range 2 * s.relays { // two bells for each: the relay's, the worker's
		bell, err := unix.Eventfd(0, 0)
		if err != nil {
			return err
		}
		files = append(files, os.NewFile(uintptr(bell), "bell"))
		r := &relays[i/2]
		if i%2 == 1 {
			w := i / 2 % max(s.workers, 1)
			r.worker, r.sleeps = int(files[2+2*w].Fd()), &memory.pairs[w].workerSleeps
			continue
		}
		r.memory, r.pair, r.spin, r.told, r.spent = memory, &memory.pairs[i/2], s.spin, s.told, s.spent
		if r.set, err = unix.EpollCreate1(0); err != nil {
			return err
		}
		if err := unix.EpollCtl(r.set, unix.EPOLL_CTL_ADD, bell, &unix.EpollEvent{Events: unix.EPOLLIN | unix.EPOLLET, Fd: -1}); err != nil {
			return err
		}
	}
	end := func() {}
	if s.workers == 0 {
		disk := newDisk()
		for i := range relays {
			relays[i].disk, relays[i].spin = disk, 0
		}
	} else {
		worker, in, err := s.start("-", os.Stdout, files)
		if err != nil {
			return err
		}
		end = func() {
			_ = in.Close()
			_ = worker.Wait()
		}
	}
	for i := range relays {
		go relays[i].run()
	}
	go func() {
		for {
			c, err := l.AcceptUnix()
			if err != nil {
				return
			}
			go admit(c, relays)
		}
	}()
	fmt.Println("ready")
	_, err = io.Copy(io.Discard, os.Stdin)
	end()
	return err
}

// accepting makes one connection at a time choose its relay.
var accepting sync.Mutex

// admit gives a client to the relay with the fewest.
func admit(c *net.UnixConn, relays []chainRelay) {
	defer func() { _ = c.Close() }()
	if agree(c, chainDisk) != nil {
		return
	}
	f, err := c.File()
	if err != nil {
		return
	}
	defer func() { _ = f.Close() }()
	accepting.Lock()
	defer accepting.Unlock()
	var best *chainRelay
	taken, least := uint(0), chainLinks+1
	for i := range relays {
		r, n := &relays[i], 0
		r.mu.Lock()
		for k, l := range r.links {
			if l != nil {
				n++
				taken |= 1 << k
			}
		}
		r.mu.Unlock()
		if n < least {
			best, least = r, n
		}
	}
	l := &chainLink{relay: best, buffer: make([]byte, 64<<10), behind: 64 << 10, buffers: make([][]byte, 0, 2*chainDepth)}
	for taken>>l.index&1 != 0 {
		l.index++
	}
	for i := range chainDepth {
		l.free = append(l.free, uint8(i))
	}
	if l.fd, err = unix.Dup(int(f.Fd())); err != nil || int(l.index) >= chainLinks {
		return
	}
	_ = unix.SetNonblock(l.fd, true)
	_ = unix.SetsockoptInt(l.fd, unix.SOL_SOCKET, unix.SO_SNDBUF, 1<<20) // a speed-up
	best.mu.Lock()
	best.links[l.index] = l
	best.mu.Unlock()
	l.watch(unix.EPOLL_CTL_ADD, unix.EPOLLIN)
}

// work is the process of the worker.
func (s chainShape) work() error {
	memory, err := mapChainMemory(3)
	if err != nil {
		return err
	}
	disk := newDisk()
	for w := range s.workers {
		go func() {
			runtime.LockOSThread()
			heads, bell := make([]uint32, s.relays), 5+2*w
			for {
				if s.copyAll(memory, disk, heads, w) || spinFor(s.spin, func() bool { return s.pending(memory, heads, w) }) {
					continue
				}
				sleeps := &memory.pairs[w].workerSleeps
				sleeps.Store(true)
				if !s.pending(memory, heads, w) {
					waitBell(bell, s.told)
				}
				sleeps.Store(false)
			}
		}()
	}
	_, err = io.Copy(io.Discard, os.Stdin)
	return err
}

// copyAll does all requests that wait for thread w.
func (s chainShape) copyAll(memory *chainMemory, disk []byte, heads []uint32, w int) bool {
	worked := false
	for i := w; i < s.relays; i += s.workers {
		p, relay, bytes := &memory.pairs[i], 4+2*i, uint32(0)
		for tail := p.requests.tail.Load(); heads[i] != tail; heads[i]++ {
			at := heads[i] % uint32(len(p.requests.entries))
			e := p.requests.entries[at]
			data, place := memory.data[e.link][e.id][:e.length], disk[e.offset:][:e.length]
			if e.write {
				copy(place, data)
			} else {
				copy(data, place)
			}
			spend(s.spent)
			p.replies.entries[at] = e
			p.replies.tail.Store(heads[i] + 1)
			if bytes += e.length; bytes >= chainBatch {
				wake(&p.relaySleeps, relay)
				bytes = 0
			}
			worked = true
		}
		wake(&p.relaySleeps, relay)
	}
	return worked
}

// pending reports whether requests wait for thread w.
func (s chainShape) pending(memory *chainMemory, heads []uint32, w int) bool {
	for i := w; i < s.relays; i += s.workers {
		if memory.pairs[i].requests.tail.Load() != heads[i] {
			return true
		}
	}
	return false
}
