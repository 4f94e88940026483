package main

import (
	"errors"
	"io/fs"
	"net"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/viablk/viablk/internal/nbd"
	"github.com/viablk/viablk/internal/takeover"
	"github.com/viablk/viablk/target/backend"
	"github.com/viablk/viablk/via/roce"
)

// How the items of a takeover are called.
const (
	itemDisk   = "disk"
	itemMemory = "memory " // and the name of the export whose memory it is
	itemSHM    = "shm"     // a listener for VIA over shared memory
	itemRoCE   = "roce "   // and the address of a socket for VIA over RoCE
	itemURI    = "uri "    // and the URI of a listener that the configuration names
	itemSocket = "socket " // and the name that the service manager gave a listener

	itemAdmin   = "admin "   // and the path of the status socket, in full
	itemMetrics = "metrics " // and where the configuration has metrics listen
)

// handover is what a target starts with instead of opening it. One goroutine
// uses it.
type handover struct {
	*takeover.Inheritance
	shared *[]net.Listener // the predecessor goes on with them if this process fails
}

// newHandover returns what a target starts with, which may be nil.
func newHandover(from *takeover.Inheritance) handover { return handover{from, new([]net.Listener)} }

// lockWait is how long to wait for the locks of a predecessor that is still
// ending.
func (h handover) lockWait() time.Duration {
	if h.Ended() {
		return askTimeout
	}
	return 0
}

// disks returns the descriptors of disks. The caller owns them.
func (h handover) disks() (all []backend.Descriptor) {
	for _, fd := range h.descriptors(itemDisk) {
		all = append(all, backend.Descriptor{FD: fd})
	}
	for _, x := range h.Items() {
		if export, ok := strings.CutPrefix(x.Name, itemMemory); ok {
			all = append(all, backend.Descriptor{FD: h.Claim(x.Name), Memory: true, Export: export})
		}
	}
	return all
}

// descriptors returns those of all items of a name: files and block devices,
// or listeners for shared memory. The caller owns them.
func (h handover) descriptors(name string) (fds []int) {
	for fd := h.Claim(name); fd >= 0; fd = h.Claim(name) {
		fds = append(fds, fd)
	}
	return fds
}

// overRoCE returns the sockets for VIA over RoCE.
func (h handover) overRoCE() *roce.Sockets {
	var all []roce.Socket
	for _, x := range h.Items() {
		text, ok := strings.CutPrefix(x.Name, itemRoCE)
		if local, err := netip.ParseAddrPort(text); ok && err == nil {
			all = append(all, roce.Socket{Local: local, FD: h.Claim(x.Name)})
		}
	}
	return roce.NewSockets(all)
}

// keepRoCE returns descriptors of the sockets for VIA over RoCE.
func keepRoCE() (items []takeover.Item) {
	for _, p := range []*roce.Provider{overRoCE, plainRoCE} {
		all, _ := p.HandOver() // after an error the successor opens its own, once these are closed
		for _, x := range all {
			items = append(items, takeover.Item{Name: itemRoCE + x.Local.String(), FD: x.FD})
		}
	}
	return items
}

// discardInUse closes the items that this process still uses, and returns the
// others: of a connection that did not end, as after a panic, the socket stays
// here, and two processes would share its packets.
func discardInUse(items []takeover.Item) []takeover.Item {
	return slices.DeleteFunc(items, func(x takeover.Item) bool {
		text, ok := strings.CutPrefix(x.Name, itemRoCE)
		local, err := netip.ParseAddrPort(text)
		if !ok || err != nil || !overRoCE.InUse(local) && !plainRoCE.InUse(local) {
			return false
		}
		closeItems([]takeover.Item{x})
		return true
	})
}

// listener returns the listener of an item, nil if there is none, or if its
// socket was removed. Its socket stays if this process ends before it serves
// and another one goes on.
func (h handover) listener(name string) (net.Listener, error) {
	fd := h.Claim(name)
	if fd < 0 {
		return nil, nil
	}
	var l net.Listener
	var err error
	if path, ok := strings.CutPrefix(name, itemAdmin); ok {
		l, err = nbd.AdoptSocket(fd, path)
	} else {
		l, err = nbd.AdoptListener(fd, strings.HasPrefix(name, itemURI))
	}
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil, nil
	case err != nil:
		return nil, err
	case h.MayFail():
		nbd.ShareSocket(l, true)
		*h.shared = append(*h.shared, l)
	}
	return l, nil
}

// sockets returns the endpoints that the service manager gave the predecessor.
func (h handover) sockets() (all []endpoint, err error) {
	for _, x := range h.Items() {
		name, ok := strings.CutPrefix(x.Name, itemSocket)
		if !ok || name == monitorSocket {
			continue
		}
		l, err := h.listener(x.Name)
		if err != nil {
			return all, err
		}
		all = append(all, endpoint{uri: uriOf(l.Addr()), name: name, listener: l})
	}
	return all, nil
}

// serving says that the process serves. It closes what it does not serve, and
// removes the sockets of listeners that it does not have.
func (h handover) serving() {
	h.Serving()
	for _, l := range *h.shared {
		nbd.ShareSocket(l, false)
	}
	for _, x := range h.Items() {
		if !strings.HasPrefix(x.Name, itemURI) {
			continue
		}
		if l, err := h.listener(x.Name); l != nil && err == nil {
			l.Close()
		}
	}
	h.Close()
}
