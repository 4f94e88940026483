package nbdkernel

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net"
	"slices"
	"sync"
	"time"
)

// Config says what becomes a device, and which one.
type Config struct {
	Settings
	Driver *Driver
	Device *Reservation // taken: released when Serve returns, and by Attach if it fails

	// Connections is how many connections the driver gets, at least 1, if there
	// are so many processors, more than which it does not use. With more than
	// one, the flags have to say that the server can take them. A device that
	// is taken over keeps the number of its connections.
	Connections int

	// Serve serves a connection, the NBD protocol's transmission phase with
	// simple replies, until it ends, and at the latest when ctx does. It takes
	// conn, and calls ready when it can serve requests. It returns nil if the
	// client disconnected in peace, and in any case when all requests are over.
	// It is called by a goroutine for each connection.
	Serve func(ctx context.Context, conn net.Conn, ready func()) error

	// Present returns the present size of the disk, in bytes, and whether the
	// disk answers requests now. A device whose size is another one gets it
	// when the disk answers, within a moment. nil means that the size never
	// changes, and that the disk answers.
	Present func() (size int64, answers bool)

	Log *slog.Logger // nil discards
}

// Attachment is a device that this process serves. Its methods are safe for
// concurrent use.
type Attachment struct {
	cfg Config

	serving    context.Context // of connections; its end cuts them off
	cut        context.CancelCauseFunc
	active     context.Context // its end means that no connection is replaced any more
	beginClose context.CancelFunc
	changed    chan struct{} // holds something after a connection has ended
	served     chan struct{} // closed when Serve has returned
	sized      chan struct{} // closed when no size is told any more

	mu sync.Mutex
	// +checklocks:mu
	links map[*link]struct{} // that are served, or have ended
	// +checklocks:mu
	replaced uint64
	// +checklocks:mu
	replacing bool
	// +checklocks:mu
	retransmitted time.Time // by then no request of an ended connection is left
}

// errEnded is the end of connections that are not needed any more.
var errEnded = errors.New("the device is given up")

// Attach makes a device, or takes one over, and begins to serve it: when it
// returns the kernel knows the device. The caller runs Serve.
func Attach(ctx context.Context, c Config) (*Attachment, error) {
	if c.Log == nil {
		c.Log = slog.New(slog.DiscardHandler)
	}
	if err := flushIO(); err != nil {
		c.Log.Debug("when memory is short, this process may have to wait for what it is to write", "event", "device_priority", "error", err)
	}
	a := &Attachment{
		cfg: c, links: make(map[*link]struct{}),
		changed: make(chan struct{}, 1), served: make(chan struct{}), sized: make(chan struct{}),
	}
	a.serving, a.cut = context.WithCancelCause(context.Background())
	a.active, a.beginClose = context.WithCancel(context.Background())
	timeout, cancel := context.WithTimeout(ctx, takeOverTimeout)
	defer cancel()
	if err := a.connect(timeout); err != nil {
		a.release(errEnded)
		return nil, err
	}
	return a, nil
}

// connect connects the device.
func (a *Attachment) connect(ctx context.Context) error {
	was := a.cfg.Device.state
	if !was.Attached {
		return a.create(ctx)
	}
	a.cfg.Connections = max(was.Connections, 1)
	if err := a.fill(ctx); !errors.Is(err, context.DeadlineExceeded) {
		return err
	}
	return fmt.Errorf("%s takes no connections, since it has some that work: %w", a.Node(), ErrBusy)
}

// create connects a device that is not connected.
func (a *Attachment) create(ctx context.Context) error {
	a.cfg.Connections = usefulConnections(a.cfg.Device.sysfs, a.cfg.Connections)
	sockets, err := a.addLinks(ctx, a.cfg.Connections)
	if err != nil {
		return err
	}
	n, err := a.cfg.Driver.connect(a.cfg.Device.index, a.cfg.Device.backend, a.cfg.Settings, sockets)
	a.resolveOffers()
	if err != nil {
		return err
	}
	if err := a.cfg.Device.lockChosen(ctx, n); err != nil {
		return errors.Join(err, a.cfg.Driver.Disconnect(n))
	}
	if err := n.announce(a.cfg.Device.sysfs); err != nil {
		a.cfg.Log.Warn("links to the device may be missing", "event", "device_links_missing", "error", err)
	}
	return nil
}

// fill gives the driver connections until it has all that the device can have.
// It fails when ctx ends.
func (a *Attachment) fill(ctx context.Context) error {
	for {
		missing := a.cfg.Connections - a.Connections()
		sockets, err := a.addLinks(ctx, missing)
		if err != nil {
			return err
		}
		err = a.cfg.Driver.reconnect(a.Node(), a.cfg.Device.backend, a.cfg.Settings, sockets)
		refused := a.resolveOffers()
		if err == nil && refused == 0 {
			a.noteReplaced()
		}
		if err != nil || refused == 0 {
			return err
		}
		select {
		case <-time.After(fillPause):
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// noteReplaced notes that the driver has all connections again.
func (a *Attachment) noteReplaced() {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.replacing, a.retransmitted = false, time.Now().Add(a.retransmission())
}

// fillPause is between two offers of connections to the driver, which takes
// them when it has noticed that those before have ended.
const fillPause = 20 * time.Millisecond

// addLinks makes connections, waits until they are served, and returns the
// kernel's ends of them.
func (a *Attachment) addLinks(ctx context.Context, n int) (sockets []int, err error) {
	var added []*link
	for range n {
		l, err := newLink()
		if err != nil {
			return nil, fmt.Errorf("make a connection for the kernel: %w", err)
		}
		a.mu.Lock()
		a.links[l] = struct{}{}
		a.mu.Unlock()
		added = append(added, l)
		go a.serveLink(l)
	}
	for _, l := range added {
		select {
		case <-l.ready:
			sockets = append(sockets, l.far)
		case <-l.done:
			return nil, l.err
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		}
	}
	return sockets, nil
}

// serveLink serves a connection of the kernel's.
func (a *Attachment) serveLink(l *link) {
	l.serve(a.serving, a.cfg.Serve)
	select {
	case a.changed <- struct{}{}:
	default: // it is known that something changed
	}
}

// resolveOffers closes the kernel's ends of connections that were offered to
// the driver, releases those that it did not take, and returns how many they
// were.
func (a *Attachment) resolveOffers() (refused int) {
	for _, l := range a.list() {
		if l.far < 0 {
			continue
		}
		if l.closeFar(); l.disconnected() {
			l.shutdown()
			a.remove(l)
			refused++
		}
	}
	return refused
}

// list returns the connections.
func (a *Attachment) list() []*link {
	a.mu.Lock()
	defer a.mu.Unlock()
	return slices.Collect(maps.Keys(a.links))
}

// remove releases a connection, when it has ended.
func (a *Attachment) remove(l *link) {
	<-l.done
	a.mu.Lock()
	defer a.mu.Unlock()
	delete(a.links, l)
	l.close()
}

// release cuts off and releases all connections, and the device with them.
func (a *Attachment) release(cause error) {
	a.beginClose()
	a.cut(cause)
	for _, l := range a.list() {
		a.remove(l)
	}
	a.cfg.Device.Release()
}

// Node returns the device.
func (a *Attachment) Node() Node { return a.cfg.Device.node() }

// Connections returns how many connections the driver has.
func (a *Attachment) Connections() int {
	a.mu.Lock()
	defer a.mu.Unlock()
	n := 0
	for l := range a.links {
		select {
		case <-l.done:
		default:
			n++
		}
	}
	return n
}

// Replaced returns how many connections were replaced since the device is
// served.
func (a *Attachment) Replaced() uint64 {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.replaced
}
