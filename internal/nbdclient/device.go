package nbdclient

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/viablk/viablk/internal/block"
	"github.com/viablk/viablk/internal/nbd"
)

// Config is an export and how to reach it.
type Config struct {
	// Connect connects to the server and opens the export.
	Connect func(ctx context.Context) (*nbd.Opened, error)

	// Name is the export in messages.
	Name string

	// ReadOnly refuses everything that changes the disk.
	ReadOnly bool

	// Reconnect is how long requests wait for a lost server. 0: the disk fails.
	Reconnect time.Duration

	// Durable says that the server keeps what it has answered, whatever happens
	// to it, and drops what it has not when it loses the connection. Without it
	// the disk fails if the server is lost with writes that are not flushed.
	Durable bool

	// Release, if not nil, is called when the device is closed and has no
	// connection.
	Release func() error

	// Timeout bounds one attempt to connect. 0 means 10 s.
	Timeout time.Duration

	// Log gets what a person should know. Nil discards it.
	Log *slog.Logger
}

// Device is an export of a server. It implements [block.Device].
type Device struct {
	cfg         Config
	opened      nbd.ExportInfo // at first
	info        block.Info
	size        atomic.Int64
	pieces      pieces
	ranges      *block.Ranges
	generations generations

	// One of these is nil: the connection that all queues share, or what opens
	// one for each queue.
	shared    *shared
	connector *connector
}

// Open opens an export.
func Open(ctx context.Context, cfg Config) (*Device, error) {
	if cfg.Timeout == 0 {
		cfg.Timeout = 10 * time.Second
	}
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.DiscardHandler)
	}
	d := &Device{cfg: cfg, ranges: block.NewRanges()}
	d.generations.durable = cfg.Durable
	c, err := d.dial(ctx)
	if err != nil {
		return nil, err
	}
	d.opened = c.opened.ExportInfo
	if d.info, d.pieces, err = describe(c.opened, cfg.ReadOnly); err != nil {
		disconnect(c.opened.Stream, c.opened.Extended)
		return nil, fmt.Errorf("open %s: %w", cfg.Name, err)
	}
	d.size.Store(d.info.Size)
	if c.opened.CanMultiConn {
		d.connector = newConnector(d)
		err = d.connector.keep(c)
	} else {
		d.shared, err = newShared(d, c)
	}
	if err != nil {
		return nil, err
	}
	return d, nil
}

// dial opens a connection.
func (d *Device) dial(ctx context.Context) (*connection, error) {
	generation, failure := d.generations.current()
	if failure != nil {
		return nil, failed(failure)
	}
	ctx, cancel := context.WithTimeout(ctx, d.cfg.Timeout)
	defer cancel()
	opened, err := d.cfg.Connect(ctx)
	if err != nil {
		return nil, fmt.Errorf("open %s: %w", d.cfg.Name, err)
	}
	return &connection{opened, generation}, nil
}

// reconnect opens another connection to the export that was opened first.
func (d *Device) reconnect(ctx context.Context) (*connection, error) {
	c, err := d.dial(ctx)
	if err != nil {
		return nil, err
	}
	if err := d.checkSame(c.opened); err != nil {
		disconnect(c.opened.Stream, c.opened.Extended)
		return nil, d.fail(err)
	}
	d.generations.found(c.generation)
	return c, nil
}

// connect opens a connection for a queue that lost its own.
func (d *Device) connect(ctx context.Context) (*connection, error) {
	if d.connector != nil {
		return d.connector.connect(ctx)
	}
	return d.reconnect(ctx)
}

// checkSame returns an error unless an export is what was opened first, as far
// as that can be told. It may have become longer.
func (d *Device) checkSame(o *nbd.Opened) error {
	info, p, err := describe(o, d.cfg.ReadOnly)
	size := d.size.Load()
	switch {
	case err != nil:
		return err
	case info.Size < size:
		return fmt.Errorf("the server is back, but the export has %d bytes and had %d", info.Size, size)
	case info.MinimumBlock != d.info.MinimumBlock || p.payload < d.pieces.payload:
		return fmt.Errorf("the server is back, but the export has blocks of %d to %d bytes and had those of %d to %d",
			info.MinimumBlock, p.payload, d.info.MinimumBlock, d.pieces.payload)
	case info.Features&^block.Rotational != d.info.Features&^block.Rotational || o.CanMultiConn != d.opened.CanMultiConn:
		return fmt.Errorf("the server is back, but the export can do other things than before: features %#x were %#x",
			uint32(info.Features), uint32(d.info.Features))
	}
	d.size.CompareAndSwap(size, info.Size)
	return nil
}

// lost notes the loss of a connection. It returns why the disk failed, or nil:
// then the queue connects again.
func (d *Device) lost(generation uint64, writes bool, cause error) error {
	failure, first := d.generations.lose(generation, writes, cause)
	var lie *errProtocol
	if failure == nil && (d.cfg.Reconnect == 0 || errors.As(cause, &lie)) {
		failure = d.generations.fail(cause)
	}
	switch {
	case !first:
	case failure != nil:
		d.cfg.Log.Error("the server is lost: requests fail with EIO", "event", "disk_failed", "server", d.cfg.Name, "error", failure)
	default:
		d.cfg.Log.Warn("the server is lost: requests wait for it", "event", "server_lost", "server", d.cfg.Name, "error", cause, "timeout", d.cfg.Reconnect)
	}
	return failure
}

// fail makes the disk fail for good, and returns why it has.
func (d *Device) fail(cause error) error {
	failure := d.generations.fail(cause)
	if errors.Is(failure, cause) {
		d.cfg.Log.Error("the disk has failed: requests fail with EIO", "event", "disk_failed", "server", d.cfg.Name, "error", failure)
	}
	return failure
}

// failure returns why the disk has failed, or nil.
func (d *Device) failure() error {
	_, failure := d.generations.current()
	return failure
}

// Info implements [block.Device].
func (d *Device) Info() block.Info {
	i := d.info
	i.Size = d.size.Load()
	return i
}

// State is whether a device has its server.
type State struct {
	Away    error         // why the server is lost; nil while it is there
	For     time.Duration // how long it has been away
	Late    bool          // that is longer than requests wait for it: they fail
	Failure error         // why the disk has failed for good; nil otherwise
	Losses  uint64        // of the server, ever
}

// State returns whether the device has its server. It is safe for concurrent
// use.
func (d *Device) State() State {
	s := d.generations.state()
	s.Late = s.Away != nil && s.For >= d.cfg.Reconnect
	return s
}

// Description returns what the server says of the export.
func (d *Device) Description() string { return d.opened.Description }

// NewQueue implements [block.Device]. It connects. Requests of a queue that is
// opened while the server is away wait for it as those of others do.
func (d *Device) NewQueue(depth int) (block.Queue, error) {
	if depth < 1 || depth > block.MaximumDepth {
		return nil, fmt.Errorf("open a queue of %d requests: %w", depth, syscall.EINVAL)
	}
	if d.shared != nil {
		return d.shared.newQueue(depth)
	}
	c, err := d.connector.connect(context.Background())
	switch {
	case err == nil:
		return newQueue(d, depth, c)
	case d.cfg.Reconnect == 0 || d.failure() != nil:
		return nil, err
	}
	q, made := newQueue(d, depth, nil)
	if made != nil {
		return nil, made
	}
	d.generations.miss(err)
	q.redial.begin(q, err)
	return q, nil
}

// Close implements [block.Device].
func (d *Device) Close() (err error) {
	if d.shared != nil {
		err = d.shared.close()
	} else {
		err = d.connector.release()
	}
	if d.cfg.Release != nil {
		err = errors.Join(err, d.cfg.Release())
	}
	return err
}
