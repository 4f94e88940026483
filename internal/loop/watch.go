package loop

import (
	"errors"
	"fmt"

	"golang.org/x/sys/unix"
)

// fileAt returns what the loop watches at a descriptor, nil if nothing.
func (l *Loop) fileAt(fd int32) *watched {
	if int(fd) < len(l.files) {
		return l.files[fd]
	}
	return nil
}

// watch has the loop watch these files of a task, and no others. Without a
// change it makes no system call.
func (l *Loop) watch(e *entry, files []*File) error {
	e.list++
	missing := 0
	for _, f := range files {
		w := l.fileAt(int32(max(f.FD, 0)))
		if f.FD >= 0 && w != nil && w.entry == e && w.file == f && w.version == f.Version {
			w.seen = e.list
			if w.write != f.Write || w.edge != f.Edge {
				if err := l.control(unix.EPOLL_CTL_MOD, f); err != nil {
					return err
				}
				w.write, w.edge = f.Write, f.Edge
			}
		} else if f.FD >= 0 {
			missing++
		}
	}
	if missing == 0 && e.watchesAll() {
		return nil
	}
	// First those that are gone: their descriptors may be those of others now.
	kept := e.files[:0]
	for _, w := range e.files {
		if w.seen == e.list {
			kept = append(kept, w)
		} else {
			l.unwatchFile(w)
		}
	}
	clear(e.files[len(kept):])
	e.files = kept
	for _, f := range files {
		w := l.fileAt(int32(max(f.FD, 0)))
		if f.FD < 0 || w != nil && w.seen == e.list && w.entry == e {
			continue
		}
		if err := l.watchFile(e, f); err != nil {
			return err
		}
	}
	return nil
}

// watchesAll reports whether all that is watched is in the latest list.
func (e *entry) watchesAll() bool {
	for _, w := range e.files {
		if w.seen != e.list {
			return false
		}
	}
	return true
}

// watchFile adds a file to the epoll set. One that is ready by now has changed.
func (l *Loop) watchFile(e *entry, f *File) error {
	err := l.control(unix.EPOLL_CTL_ADD, f)
	if errors.Is(err, unix.EEXIST) {
		err = l.control(unix.EPOLL_CTL_MOD, f)
	}
	if err != nil {
		return err
	}
	for len(l.files) <= f.FD {
		l.files = append(l.files, nil)
	}
	w := &watched{entry: e, file: f, fd: int32(f.FD), version: f.Version, edge: f.Edge, write: f.Write, seen: e.list}
	l.files[f.FD] = w // one that was there is of a descriptor that was closed
	e.files = append(e.files, w)
	return nil
}

// control adds or changes a file of the epoll set.
func (l *Loop) control(operation int, f *File) error {
	event := unix.EpollEvent{Events: unix.EPOLLIN, Fd: int32(f.FD)}
	if f.Edge {
		event.Events |= unix.EPOLLRDHUP | unix.EPOLLET
	}
	if f.Write {
		event.Events |= unix.EPOLLOUT
	}
	if err := unix.EpollCtl(l.epoll, operation, f.FD, &event); err != nil {
		return fmt.Errorf("watch descriptor %d: %w", f.FD, err)
	}
	return nil
}

// unwatchFile takes a file out of the epoll set, unless its descriptor is that
// of another one now. It fails if the descriptor is closed: the kernel has
// taken it out.
func (l *Loop) unwatchFile(w *watched) {
	if l.files[w.fd] == w {
		l.files[w.fd] = nil
		_ = unix.EpollCtl(l.epoll, unix.EPOLL_CTL_DEL, int(w.fd), nil)
	}
}
