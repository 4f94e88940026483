package main

import (
	"context"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/viablk/viablk/config"
	"github.com/viablk/viablk/internal/nbd"
	"github.com/viablk/viablk/internal/takeover"
)

// callListeners are where those come in who look after a process. They move at
// a takeover if the successor listens at the same places: calls that arrive
// meanwhile wait in the kernel.
type callListeners struct {
	admin net.Listener // of the status socket; nil: none
	moves bool         // it is of the predecessor, perhaps at another path

	monitor   net.Listener // for metrics, that the configuration asks for; nil: none
	monitorAt string       // as the configuration says it

	// may is closed when this process may answer calls: the predecessor may still
	// go on, and would not know of changes. Nil is at once.
	may chan struct{}
}

// await waits until this process may answer calls, or ctx ends.
func (c *callListeners) await(ctx context.Context) {
	if c.may == nil {
		return
	}
	select {
	case <-c.may:
	case <-ctx.Done():
	}
}

// begin has this process answer calls.
func (c *callListeners) begin() {
	if c.may != nil {
		close(c.may)
	}
}

// place gives the status socket the path of this process, when the predecessor
// has ended.
func (c *callListeners) place(ctx context.Context, path string) error {
	if !c.moves {
		return nil
	}
	return nbd.MoveSocket(ctx, c.admin, path)
}

// keep returns descriptors of the listeners for a successor. The status socket
// is at a path.
func (c *callListeners) keep(path string, by claim) (items []takeover.Item) {
	keep := func(name string, l net.Listener) {
		if fd, err := nbd.CopyListener(l); err == nil { // else the successor listens anew
			items = append(items, takeover.Item{Name: name, FD: fd})
		}
	}
	if c.admin != nil && becomes(path, by.Status) {
		keep(itemAdmin+path, c.admin)
	}
	if c.monitor != nil && c.monitorAt == by.Metrics {
		keep(itemMetrics+c.monitorAt, c.monitor)
	}
	return items
}

// becomes reports whether the status socket of a process is that of its
// successor: it has the same path, or each has the usual one.
func becomes(path, next string) bool {
	return path == next || isUsual(path) && isUsual(next) && filepath.Dir(path) == filepath.Dir(next)
}

// isUsual reports whether a status socket has the name that a process gives it.
func isUsual(path string) bool {
	pid, isSocket := strings.CutSuffix(filepath.Base(path), ".sock")
	_, err := strconv.Atoi(pid)
	return isSocket && err == nil
}

// usualAdmin is the path of a status socket that has no other.
func usualAdmin() string {
	return filepath.Join(runtimeFolder(), strconv.Itoa(os.Getpid())+".sock")
}

// adminPathOf returns the path of the status socket that a configuration asks
// for, in full; empty is none.
func adminPathOf(c config.Config) string {
	path := c.Admin
	switch path {
	case adminNone:
		return ""
	case "":
		path = usualAdmin()
	}
	full, err := filepath.Abs(path)
	if err != nil {
		return "" // opening it fails, which is said then
	}
	return full
}

// adoptAdmin returns the status socket that the predecessor gave, and where it
// is for now. The listener is nil if it gave none.
func (h handover) adoptAdmin() (l net.Listener, path string, err error) {
	for _, x := range h.Items() {
		if path, ok := strings.CutPrefix(x.Name, itemAdmin); ok {
			l, err := h.listener(x.Name)
			return l, path, err
		}
	}
	return nil, "", nil
}
