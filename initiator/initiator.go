package initiator

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/bits"
	"sync"
	"time"

	"github.com/viablk/viablk/internal/block"
	"github.com/viablk/viablk/internal/wire"
	"github.com/viablk/viablk/regcache"
	"github.com/viablk/viablk/via"
)

// Discriminator names the block protocol at a VIA address.
const Discriminator = "viablk/1"

// Config says what to attach. Zero fields take the defaults.
type Config struct {
	NIC       *via.NIC
	Host      string        // the target's host address, as the NIC's provider names it
	Export    string        // "" is the target's default export
	ReadOnly  bool          // open for reading only
	Depth     int           // commands in flight per connection; 0 leaves it to the target
	InlineMax int           // bytes of payload inside a message; 0 leaves it to the target
	MaxIO     int           // bytes of one command; 0 leaves it to the target
	Timeout   time.Duration // of connecting and logging in; 10 s
	Log       *slog.Logger  // nil discards

	// CopyMode says how payload in memory of the caller's moves; "" is auto.
	CopyMode regcache.CopyMode

	// RegisterMax limits what is registered of the memory of Alloc at a time, in
	// bytes, 1 MiB at least; 0 is 256 MiB or half of what the NIC takes, and less
	// than 0 registers nothing: then all payload is copied.
	RegisterMax int64

	Policy    regcache.Policy // which registrations stay; "" is what suits the NIC, see regcache.Config.SuitedTo
	PoolBytes int             // bounce memory of a queue, in bytes, sparse, 4 KiB at least; 0 is 128 MiB
	Chunk     int             // bytes in which a copied request overlaps with its transfer; 0 is 128 KiB
}

const (
	defaultTimeout = 10 * time.Second
	missedBeats    = 3 // heartbeats without an answer until the target is dead
	sessionConns   = 256
	pathEpoch      = 1

	// defaultPool is two of the longest requests, so that a queue with nothing
	// reserved grants any length, and small requests go on beside one.
	defaultPool = 2 * wire.MaxIO

	leastPool    = 4 << 10
	defaultChunk = 128 << 10
)

func (c Config) withDefaults() (Config, error) {
	if c.NIC == nil || c.Host == "" {
		return c, errors.New("no nic or no host")
	}
	if c.Depth < 0 || c.Depth > wire.MaxDepth || c.InlineMax < 0 || c.InlineMax > wire.MaxInline || c.MaxIO < 0 || c.MaxIO > wire.MaxIO {
		return c, fmt.Errorf("depth %d, inline maximum %d or longest transfer %d out of range", c.Depth, c.InlineMax, c.MaxIO)
	}
	if c.PoolBytes == 0 {
		c.PoolBytes = defaultPool
	}
	if c.Chunk == 0 {
		c.Chunk = defaultChunk
	}
	if c.PoolBytes < leastPool || c.PoolBytes > 1<<40 || c.Chunk < leastPool {
		return c, fmt.Errorf("bounce memory of %d bytes, copies in chunks of %d: %d are the least", c.PoolBytes, c.Chunk, leastPool)
	}
	c.PoolBytes = 1 << (bits.Len(uint(c.PoolBytes)) - 1) // it is one block of the buddy system
	c.Chunk = min(c.Chunk, c.PoolBytes)
	var err error
	if c.CopyMode, err = regcache.ParseCopyMode(string(c.CopyMode)); err != nil {
		return c, err
	}
	if c.Timeout == 0 {
		c.Timeout = defaultTimeout
	}
	if c.Log == nil {
		c.Log = slog.New(slog.DiscardHandler)
	}
	return c, nil
}

// Device is a disk at a target. It implements the device contract, and
// io.ReaderAt and io.WriterAt for callers that want a file. Its methods are safe
// for concurrent use.
type Device struct {
	session *session
	info    block.Info
	export  wire.OpenResponse
	memory  memory

	mu     sync.Mutex
	disk   *block.Disk // of the file-like methods, opened at first use
	conns  map[uint16]*Queue
	last   uint16 // index that was given out last
	past   QueueStats
	closed bool
}

// Dial logs in at a target and opens an export.
func Dial(ctx context.Context, cfg Config) (*Device, error) {
	cfg, err := cfg.withDefaults()
	if err != nil {
		return nil, fmt.Errorf("attach: %w", err)
	}
	ctx, cancel := context.WithTimeout(ctx, cfg.Timeout)
	defer cancel()
	s, err := openSession(ctx, cfg)
	if err != nil {
		return nil, fmt.Errorf("attach %s: %w", cfg.Host, err)
	}
	mode := wire.OpenReadWrite
	if cfg.ReadOnly {
		mode = wire.OpenReadOnly
	}
	var a wire.OpenResponse
	if err := s.request(ctx, &wire.OpenRequest{PathEpoch: pathEpoch, OpenID: 1, Mode: mode, Name: cfg.Export}, &a); err != nil {
		return nil, errors.Join(fmt.Errorf("attach %s: open export %q: %w", cfg.Host, cfg.Export, err), s.close())
	}
	if a.Status != wire.StatusOK {
		return nil, errors.Join(fmt.Errorf("attach %s: open export %q: %s: %w", cfg.Host, cfg.Export, a.Reason, a.Status.Errno()), s.close())
	}
	d := &Device{session: s, export: a, conns: make(map[uint16]*Queue), info: block.Info{
		Size: int64(a.Size), MinimumBlock: a.MinimumBlock, PreferredBlock: a.PreferredBlock,
		MaximumPayload: uint32(min(wire.MaxIO, cfg.PoolBytes)), Features: block.Features(a.Features) & block.KnownFeatures,
	}}
	if err := d.memory.open(&cfg); err != nil {
		return nil, errors.Join(fmt.Errorf("attach %s: %w", cfg.Host, err), s.close())
	}
	return d, nil
}

// Info returns the description of the disk.
func (d *Device) Info() block.Info { return d.info }

// Name returns the export's name at the target.
func (d *Device) Name() string { return d.export.Name }

// Description returns the export's description.
func (d *Device) Description() string { return d.export.Description }

// UUID returns the disk's identity at the target.
func (d *Device) UUID() [16]byte { return d.export.ExportUUID }

// Err returns why the session was lost, or nil while it lives and after Close.
func (d *Device) Err() error {
	if !d.session.failed() {
		return nil
	}
	return d.session.err()
}

// Done returns a channel that is closed when the session has ended.
func (d *Device) Done() <-chan struct{} { return d.session.ended }

// NewQueue opens a queue: a VIA connection of its own.
func (d *Device) NewQueue(depth int) (block.Queue, error) {
	if depth < 1 || depth > wire.MaxDepth {
		return nil, fmt.Errorf("open queue of depth %d: not 1 to %d", depth, wire.MaxDepth)
	}
	for try := 1; ; try++ {
		index, err := d.takeIndex()
		if err != nil {
			return nil, err
		}
		q, err := openQueue(d, index, depth)
		d.mu.Lock()
		if err == nil {
			d.conns[index] = q
			d.mu.Unlock()
			return q, nil
		}
		delete(d.conns, index)
		d.mu.Unlock()
		var refused *refusedError
		if taken := errors.As(err, &refused) && refused.answer.Reason == wire.ReasonConn; !taken || try == indexTries {
			return nil, fmt.Errorf("open queue: %w", err)
		}
	}
}

// indexTries is how many connection indexes are tried that the target still has
// in use.
const indexTries = 8

// takeIndex books a connection index: not the one of a queue that was closed just
// now, which the target may not have released.
func (d *Device) takeIndex() (uint16, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.closed {
		return 0, fmt.Errorf("open queue: %w", errClosed)
	}
	for range d.session.conns {
		d.last = d.last%d.session.conns + 1
		if _, taken := d.conns[d.last]; !taken {
			d.conns[d.last] = nil
			return d.last, nil
		}
	}
	return 0, fmt.Errorf("open queue: all %d connections of the session are in use", d.session.conns)
}

// forget gives a queue's index back.
func (d *Device) forget(q *Queue) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.past.add(q.snapshot())
	delete(d.conns, q.index)
}

// Close logs out and releases the session. Every queue has been closed. While
// buffers of Alloc are not freed it returns an error that wraps regcache.ErrInUse:
// they stay valid, and Close is called again when they are freed.
func (d *Device) Close() error {
	d.mu.Lock()
	if d.closed {
		d.mu.Unlock()
		return d.memory.close()
	}
	d.closed = true
	disk := d.disk
	d.mu.Unlock()
	var err error
	if disk != nil {
		err = disk.Close()
	}
	return errors.Join(err, d.session.close(), d.memory.close())
}
