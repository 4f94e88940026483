package initiator

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"math/bits"
	"sync"
	"sync/atomic"
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

	// LossTimeout is how long requests wait while the target is away, after which they
	// fail with EIO until it is back; Forever is no limit. With 0, a disk that lost its
	// target fails for good.
	LossTimeout    time.Duration
	ReconnectDelay time.Duration // the longest pause between two attempts to reach it; 1 s

	Log *slog.Logger // nil discards

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

// Forever is a LossTimeout without an end.
const Forever = time.Duration(math.MaxInt64)

const (
	defaultTimeout = 10 * time.Second
	defaultDelay   = time.Second
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
	if c.ReconnectDelay == 0 {
		c.ReconnectDelay = defaultDelay
	}
	if c.LossTimeout < 0 || c.ReconnectDelay < 0 || c.Timeout < 0 {
		return c, fmt.Errorf("loss timeout %v, reconnect delay %v or timeout %v out of range", c.LossTimeout, c.ReconnectDelay, c.Timeout)
	}
	if c.Log == nil {
		c.Log = slog.New(slog.DiscardHandler)
	}
	return c, nil
}

// lossLevel is how bad it is to lose a target: its keeper says so too.
func (c *Config) lossLevel() slog.Level {
	if c.LossTimeout > 0 {
		return slog.LevelInfo
	}
	return slog.LevelError
}

// Device is a disk at a target. It implements the device contract, and
// io.ReaderAt and io.WriterAt for callers that want a file. Its methods are safe
// for concurrent use.
type Device struct {
	cfg      Config
	first    *session
	keeper   *keeper // of later sessions; nil if there are none
	info     block.Info
	export   wire.OpenResponse // as it was at first
	verifier uint64            // the export's by now; of the keeper
	memory   memory
	durable  atomic.Uint64 // writes that a Flush covered

	mu         sync.Mutex
	disk       *block.Disk // of the file-like methods, opened at first use
	conns      map[uint16]*Queue
	last       uint16 // index that was given out last
	past       QueueStats
	pastWrites uint64 // of queues that are closed
	closed     bool
}

// Dial logs in at a target and opens an export.
func Dial(ctx context.Context, cfg Config) (*Device, error) {
	cfg, err := cfg.withDefaults()
	if err != nil {
		return nil, fmt.Errorf("attach: %w", err)
	}
	ctx, cancel := context.WithTimeout(ctx, cfg.Timeout)
	defer cancel()
	s, err := openDisk(ctx, cfg)
	if err != nil {
		return nil, fmt.Errorf("attach %s: %w", cfg.Host, err)
	}
	a := &s.export
	d := &Device{cfg: cfg, first: s, export: *a, verifier: a.Verifier, conns: make(map[uint16]*Queue), info: block.Info{
		Size: int64(a.Size), MinimumBlock: a.MinimumBlock, PreferredBlock: a.PreferredBlock,
		MaximumPayload: uint32(min(wire.MaxIO, cfg.PoolBytes)), Features: block.Features(a.Features) & block.KnownFeatures,
	}}
	if err := d.memory.open(&cfg); err != nil {
		return nil, errors.Join(fmt.Errorf("attach %s: %w", cfg.Host, err), s.close())
	}
	if cfg.LossTimeout > 0 {
		d.keeper = newKeeper(d, s)
		go d.keeper.routineKeep()
	}
	return d, nil
}

// session returns the present session, or the last.
func (d *Device) session() *session {
	if d.keeper == nil {
		return d.first
	}
	s, _ := d.keeper.current()
	return s
}

// Info returns the description of the disk, with the size that the target told last. A
// size that is no number of blocks is not taken.
func (d *Device) Info() block.Info {
	info, s := d.info, d.session()
	size := s.export.Size
	if v := s.resized.Load(); v != nil && v.Export == s.export.Export && v.UUID == s.export.ExportUUID {
		size = v.Size
	}
	if size%uint64(max(info.MinimumBlock, 1)) == 0 {
		info.Size = int64(size)
	}
	return info
}

// Name returns the export's name at the target.
func (d *Device) Name() string { return d.export.Name }

// Description returns the export's description.
func (d *Device) Description() string { return d.export.Description }

// UUID returns the disk's identity at the target.
func (d *Device) UUID() [16]byte { return d.export.ExportUUID }

// Err returns why the disk was lost for good, or nil while it is not and after Close.
func (d *Device) Err() error {
	if d.keeper != nil {
		_, err := d.keeper.current()
		return err
	}
	if !d.first.failed() {
		return nil
	}
	return d.first.err()
}

// Done returns a channel that is closed when the disk is lost for good, or closed.
func (d *Device) Done() <-chan struct{} {
	if d.keeper != nil {
		return d.keeper.ended
	}
	return d.first.ended
}

// NewQueue opens a queue: a VIA connection of its own.
func (d *Device) NewQueue(depth int) (block.Queue, error) {
	if depth < 1 || depth > wire.MaxDepth {
		return nil, fmt.Errorf("open queue of depth %d: not 1 to %d", depth, wire.MaxDepth)
	}
	for try := 1; ; try++ {
		s, err := d.living()
		if err != nil {
			return nil, fmt.Errorf("open queue: %w", err)
		}
		index, err := d.takeIndex(s.conns)
		if err != nil {
			return nil, err
		}
		q, err := openQueue(d, s, index, depth)
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

// living returns the session that a new queue belongs to; it waits for one as long as
// to connect may take.
func (d *Device) living() (*session, error) {
	if d.keeper == nil {
		return d.first, d.first.err()
	}
	ctx, cancel := context.WithTimeout(context.Background(), d.cfg.Timeout)
	defer cancel()
	return d.keeper.await(ctx, nil)
}

// indexTries is how many connection indexes are tried that the target still has
// in use.
const indexTries = 8

// takeIndex books a connection index: not the one of a queue that was closed just
// now, which the target may not have released.
func (d *Device) takeIndex(most uint16) (uint16, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.closed {
		return 0, fmt.Errorf("open queue: %w", errClosed)
	}
	for range most {
		d.last = d.last%most + 1
		if _, taken := d.conns[d.last]; !taken {
			d.conns[d.last] = nil
			return d.last, nil
		}
	}
	return 0, fmt.Errorf("open queue: all %d connections of the session are in use", most)
}

// forget gives a queue's index back.
func (d *Device) forget(q *Queue) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.past.add(q.snapshot())
	d.pastWrites += q.written.Load()
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
	if d.keeper != nil {
		d.keeper.stop()
	}
	return errors.Join(err, d.session().close(), d.memory.close())
}
