package main

import (
	"net"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/viablk/viablk/internal/nbd"
	"github.com/viablk/viablk/internal/takeover"
	"github.com/viablk/viablk/target/backend"
)

// How the items of a takeover are called.
const (
	itemDisk   = "disk"
	itemMemory = "memory " // and the name of the export whose memory it is
	itemSHM    = "shm"     // a listener for VIA over shared memory
	itemURI    = "uri "    // and the URI of a listener that the configuration names
	itemSocket = "socket " // and the name that the service manager gave a listener
)

// handover is what a target starts with instead of opening it: what another
// target served, or this one before a takeover that failed. One goroutine uses
// it.
type handover struct {
	from  *takeover.Predecessor // nil: this process itself
	ended bool                  // the predecessor ended before it gave everything
	items []takeover.Item
}

// receive has the predecessor stop, and takes what it served.
func (h *handover) receive() (err error) {
	if h == nil || h.from == nil {
		return nil
	}
	h.items, h.ended, err = h.from.Commit()
	return err
}

// lockWait is how long to wait for the locks of a predecessor that is still
// ending.
func (h *handover) lockWait() time.Duration {
	if h == nil || !h.ended {
		return 0
	}
	return askTimeout
}

// disks returns the descriptors of disks. The caller owns them.
func (h *handover) disks() (all []backend.Descriptor) {
	for _, fd := range h.descriptors(itemDisk) {
		all = append(all, backend.Descriptor{FD: fd})
	}
	if h == nil {
		return all
	}
	for i := range h.items {
		x := &h.items[i]
		if export, ok := strings.CutPrefix(x.Name, itemMemory); ok && x.FD >= 0 {
			all = append(all, backend.Descriptor{FD: x.FD, Memory: true, Export: export})
			x.FD = -1
		}
	}
	return all
}

// descriptors returns those of all items of a name: files and block devices,
// or listeners for shared memory. The caller owns them.
func (h *handover) descriptors(name string) (fds []int) {
	if h == nil {
		return nil
	}
	for i := range h.items {
		if x := &h.items[i]; x.Name == name && x.FD >= 0 {
			fds = append(fds, x.FD)
			x.FD = -1
		}
	}
	return fds
}

// listener returns the listener of an item, nil if there is none.
func (h *handover) listener(name string) (net.Listener, error) {
	if h == nil {
		return nil, nil
	}
	for i := range h.items {
		if x := &h.items[i]; x.Name == name && x.FD >= 0 {
			fd := x.FD
			x.FD = -1
			return nbd.AdoptListener(fd, strings.HasPrefix(name, itemURI))
		}
	}
	return nil, nil
}

// sockets returns the endpoints that the service manager gave the predecessor.
func (h *handover) sockets() (all []endpoint, err error) {
	if h == nil {
		return nil, nil
	}
	for i := range h.items {
		name, ok := strings.CutPrefix(h.items[i].Name, itemSocket)
		if !ok || name == monitorSocket || h.items[i].FD < 0 {
			continue
		}
		l, err := h.listener(h.items[i].Name)
		if err != nil {
			return all, err
		}
		all = append(all, endpoint{uri: uriOf(l.Addr()), name: name, listener: l})
	}
	return all, nil
}

// resumes reports whether the process has served before.
func (h *handover) resumes() bool { return h != nil && h.from == nil }

// mayFail reports whether another process goes on if this one does not serve.
func (h *handover) mayFail() bool { return h != nil && h.from != nil && !h.ended }

// opened waits until the process may serve.
func (h *handover) opened() error {
	if h == nil || h.from == nil {
		return nil
	}
	return h.from.Opened()
}

// serving says that the process serves. It closes what it does not serve, and
// removes the sockets of listeners that it does not have.
func (h *handover) serving() {
	if h == nil {
		return
	}
	if h.from != nil {
		h.from.Serving()
		h.from = nil
	}
	for _, x := range h.items {
		if !strings.HasPrefix(x.Name, itemURI) {
			continue
		}
		if l, err := h.listener(x.Name); l != nil && err == nil {
			l.Close()
		}
	}
	h.close()
}

// fail says why the process does not serve.
func (h *handover) fail(cause error) {
	if h != nil && h.from != nil {
		h.from.Fail(cause)
	}
}

// close closes descriptors that have no other owner.
func (h *handover) close() {
	for i := range h.items {
		if x := &h.items[i]; x.FD >= 0 {
			_ = unix.Close(x.FD)
			x.FD = -1
		}
	}
}
