package initiator

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math"
	"math/bits"
	"sync"
	"sync/atomic"
	"time"

	"github.com/viablk/viablk/internal/block"
	"github.com/viablk/viablk/internal/handshake"
	"github.com/viablk/viablk/internal/ratelog"
	"github.com/viablk/viablk/internal/sched"
	"github.com/viablk/viablk/internal/wire"
	"github.com/viablk/viablk/regcache"
	"github.com/viablk/viablk/via"
)

// Discriminator names the block protocol at a VIA address.
const Discriminator = "viablk/1"

// Config says what to attach. Zero fields take the defaults.
type Config struct {
	NIC        *via.NIC
	Host       string        // the target's host address, as the NIC's provider names it
	OtherHosts []string      // more of the same target: further paths, at most 7
	PathPolicy PathPolicy    // of several hosts; "" is fail-over
	Export     string        // "" is the target's default export
	ReadOnly   bool          // open for reading only
	Exclusive  bool          // be the only client of the disk
	Preempt    bool          // end other clients that are in the way, when attaching
	Depth      int           // commands in flight per connection; 0 leaves it to the target
	InlineMax  int           // bytes of payload inside a message; 0 leaves it to the target
	MaxIO      int           // bytes of one command; 0 leaves it to the target
	Timeout    time.Duration // of connecting and logging in; 10 s

	// LossTimeout is how long requests wait for a lost target, since it was
	// there last: a slow or busy disk is no absence of the target. After it
	// they fail with EIO until the target is back. Forever is no limit. With 0,
	// a disk that lost its target fails for good.
	LossTimeout    time.Duration
	ReconnectDelay time.Duration // the longest pause between two attempts to reach it; 1 s

	// OnConflict says what happens when the target is back and another client
	// wrote to the disk meanwhile; "" is ConflictFail.
	OnConflict ConflictPolicy

	// Continues is the life of the process before, nil to begin one. Dial fails
	// with a ContinueError if its users cannot go on.
	Continues *Life
	// KeepLife is called with the life of the device, before it is used and when
	// it changes: by Dial, and later by one goroutine. It may be nil.
	KeepLife func(Life)

	Log *slog.Logger // nil discards

	// CopyMode is how payload in memory of the caller's moves; "" is auto.
	CopyMode regcache.CopyMode

	// RegisterMax limits the registered memory of Alloc, in bytes, 1 MiB at
	// least. 0 is 256 MiB, or half of the NIC's limit if that is less. A
	// negative value registers nothing: the device copies all payload.
	RegisterMax int64

	// Policy is the eviction policy of registrations; "" suits the NIC, see
	// regcache.Config.SuitedTo.
	Policy regcache.Policy
	// PoolBytes is the bounce memory of a queue, in bytes, sparse, 4 KiB at
	// least; 0 is 128 MiB.
	PoolBytes int
	// Chunk is the piece, in bytes, in which a queue overlaps copy and
	// transfer; 0 is 128 KiB.
	Chunk int

	// Security, if it is set, has sessions sealed, and their ends authenticate
	// each other with certificates. Each session calls it anew, so that renewed
	// certificates count. Payload is then sealed in place of a copy: CopyMode is
	// bounce.
	Security func() (handshake.Config, error)

	// Digest has a CRC32C travel with the payload of each request, which the end
	// that gets the payload compares. In a sealed session it does nothing: the
	// seal protects more.
	Digest bool

	targets *hosts // from Host and OtherHosts on; shared by copies

	RekeyInterval time.Duration // of the keys of a sealed session; 24 h

	// Scheduler is the clock, the waits and the goroutines of the device; nil is
	// sched.Real.
	Scheduler sched.Scheduler
	// Random is the source of identities and pauses; nil is crypto/rand.
	Random io.Reader
}

// ConflictPolicy says what becomes of a disk that another client wrote to while
// its target was lost.
type ConflictPolicy string

// The policies.
const (
	// ConflictFail fails every request with EIO from then on.
	ConflictFail ConflictPolicy = "fail"

	// ConflictReopen fails the requests that wait, and goes on. Users of the
	// device may have cached data that is older than the disk: it is for users
	// that cache nothing, or that are told.
	ConflictReopen ConflictPolicy = "reopen"
)

// Forever is a LossTimeout without an end.
const Forever = time.Duration(math.MaxInt64)

const (
	defaultTimeout = 10 * time.Second
	defaultDelay   = time.Second
	maxMissed      = 3 // silent intervals until the target is dead
	sessionConns   = 256
	maxPaths       = 8

	// defaultPool is two of the longest requests: a queue without reservations
	// grants any length, and small requests proceed beside a long one.
	defaultPool = 2 * wire.MaxIO

	leastPool    = 4 << 10
	defaultChunk = 128 << 10
)

func (c Config) withDefaults() (Config, error) {
	if c.NIC == nil || c.Host == "" {
		return c, errors.New("no nic or no host")
	}
	if len(c.OtherHosts) >= maxPaths {
		return c, fmt.Errorf("%d hosts of a target: %d are the most", 1+len(c.OtherHosts), maxPaths)
	}
	if len(c.OtherHosts) > 0 && c.LossTimeout == 0 {
		return c, ErrNoPaths
	}
	c.targets = newHosts(c.Host, c.OtherHosts)
	if c.Depth < 0 || c.Depth > wire.MaxDepth || c.InlineMax < 0 || c.InlineMax > wire.MaxInline || c.MaxIO < 0 || c.MaxIO > wire.MaxIO {
		return c, fmt.Errorf("depth %d, inline maximum %d or longest transfer %d out of range", c.Depth, c.InlineMax, c.MaxIO)
	}
	if c.PathPolicy == "" {
		c.PathPolicy = PathFailOver
	}
	if err := c.PathPolicy.validate(); err != nil {
		return c, err
	}
	switch c.OnConflict {
	case "":
		c.OnConflict = ConflictFail
	case ConflictFail, ConflictReopen:
	default:
		return c, fmt.Errorf("conflict policy %q is neither %s nor %s", c.OnConflict, ConflictFail, ConflictReopen)
	}
	if c.ReadOnly && (c.Exclusive || c.Preempt) {
		return c, errors.New("a disk that is opened for reading only is neither exclusive nor does it preempt")
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
	c.PoolBytes = 1 << (bits.Len(uint(c.PoolBytes)) - 1) // one block of the buddy allocator
	c.Chunk = min(c.Chunk, c.PoolBytes)
	var err error
	if c.CopyMode, err = regcache.ParseCopyMode(string(c.CopyMode)); err != nil {
		return c, err
	}
	if c.sealed() {
		if c.CopyMode == regcache.CopyZero {
			return c, errors.New("copy mode zerocopy in a sealed session, whose payload is sealed in place of a copy: use auto or bounce")
		}
		c.CopyMode, c.Digest = regcache.CopyBounce, false
	}
	if c.Timeout == 0 {
		c.Timeout = defaultTimeout
	}
	if c.ReconnectDelay == 0 {
		c.ReconnectDelay = defaultDelay
	}
	if c.RekeyInterval == 0 {
		c.RekeyInterval = rekeyInterval
	}
	if c.LossTimeout < 0 || c.ReconnectDelay < 0 || c.Timeout < 0 {
		return c, fmt.Errorf("loss timeout %v, reconnect delay %v or timeout %v out of range", c.LossTimeout, c.ReconnectDelay, c.Timeout)
	}
	if c.Scheduler == nil {
		c.Scheduler = sched.Real
	}
	if c.Random == nil {
		c.Random = rand.Reader
	}
	if c.Log == nil {
		c.Log = slog.New(slog.DiscardHandler)
	}
	return c, nil
}

// lossLevel is the log level of a lost target: with a reconnector, which logs
// the loss too, it is lower.
func (c *Config) lossLevel() slog.Level {
	if c.LossTimeout > 0 {
		return slog.LevelInfo
	}
	return slog.LevelError
}

// Device is a disk at a target. It implements the device contract, and
// io.ReaderAt and io.WriterAt for callers that want a file. Its methods are
// safe for concurrent use.
type Device struct {
	cfg         Config
	first       *session
	reconnector *reconnector // of later sessions; nil if there are none
	info        block.Info
	writer      [16]byte          // of this use of the disk, in every session
	export      wire.OpenResponse // as it was at first
	verifier    uint64            // the export's by now; of the reconnector
	generation  uint64            // of the writer, when the disk was opened last; likewise
	memory      memory
	quarantine  quarantine
	ranges      *block.Ranges // of requests without an answer; nil without a reconnector
	durable     atomic.Uint64 // writes that a Flush covered
	flushes     ratelog.Log   // of those that the target failed
	corrupt     ratelog.Log   // of payload that its digest refused

	mu sync.Mutex
	// +checklocks:mu
	disk *block.Disk // of the file-like methods, opened at first use
	// +checklocks:mu
	conns map[uint16]*Queue
	// +checklocks:mu
	last uint16 // index that was given out last
	// +checklocks:mu
	past QueueStats
	// +checklocks:mu
	pastWrites uint64 // of queues that are closed, and of the process before
	// +checklocks:mu
	closed bool
}

// Dial logs in at a target and opens an export.
func Dial(ctx context.Context, cfg Config) (*Device, error) {
	cfg, err := cfg.withDefaults()
	if err != nil {
		return nil, fmt.Errorf("attach: %w", err)
	}
	ctx, cancel := cfg.Scheduler.WithTimeout(ctx, cfg.Timeout)
	defer cancel()
	writer, err := block.NewUUIDFrom(cfg.Random)
	if err != nil {
		return nil, fmt.Errorf("attach %s: %w", cfg.Host, err)
	}
	ask := cfg.Continues.request(writer, cfg.Preempt)
	s, err := openDisk(ctx, cfg, ask)
	if err != nil {
		return nil, fmt.Errorf("attach %s: %w", cfg.Host, cfg.Continues.refusal(err))
	}
	a := &s.export
	if err := cfg.Continues.check(a); err != nil {
		return nil, errors.Join(fmt.Errorf("attach %s: %w", cfg.Host, err), s.close())
	}
	d := &Device{cfg: cfg, first: s, writer: ask.Writer, export: *a, verifier: a.Verifier, generation: a.Generation, conns: make(map[uint16]*Queue), info: block.Info{
		Size: int64(a.Size), MinimumBlock: a.MinimumBlock, PreferredBlock: a.PreferredBlock,
		MaximumPayload: uint32(min(wire.MaxIO, cfg.PoolBytes)), Features: block.Features(a.Features) & block.KnownFeatures,
	}}
	d.quarantine = quarantine{log: cfg.Log, host: cfg.Host, limit: quarantinePools * int64(cfg.PoolBytes)}
	if err := d.memory.open(&cfg); err != nil {
		return nil, errors.Join(fmt.Errorf("attach %s: %w", cfg.Host, err), s.close())
	}
	if cfg.Continues != nil {
		d.pastWrites = 1 // not flushed, as far as this process knows
	}
	d.keepLife()
	if cfg.LossTimeout > 0 {
		d.reconnector, d.ranges = newReconnector(d, s), block.NewRanges()
		cfg.Scheduler.Go(d.reconnector.routineReconnect)
	}
	return d, nil
}

// session returns the present session, or the last.
func (d *Device) session() *session {
	if d.reconnector == nil {
		return d.first
	}
	s, _ := d.reconnector.current()
	return s
}

// Info returns the description of the disk with the size of the target's last
// event. It ignores a size that is no multiple of the block size.
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

// Err returns why the device lost the disk for good; nil before that and after
// Close.
func (d *Device) Err() error {
	if d.reconnector != nil {
		_, err := d.reconnector.current()
		return err
	}
	if !d.first.failed() {
		return nil
	}
	return d.first.err()
}

// Done returns a channel that is closed when the disk is lost for good, or when
// the device is closed.
func (d *Device) Done() <-chan struct{} {
	if d.reconnector != nil {
		return d.reconnector.ended.Done()
	}
	return d.first.ended.Done()
}

// NewQueue opens a queue, which is one VIA connection.
func (d *Device) NewQueue(depth int) (block.Queue, error) {
	if depth < 1 || depth > wire.MaxDepth {
		return nil, fmt.Errorf("open queue of depth %d: not 1 to %d", depth, wire.MaxDepth)
	}
	ctx, cancel := d.cfg.Scheduler.WithTimeout(context.Background(), min(d.cfg.Timeout, openTimeout))
	defer cancel()
	for try := 1; ; try++ {
		s, err := d.living(ctx)
		if err != nil {
			return nil, fmt.Errorf("open queue: %w", err)
		}
		index, err := d.reserveIndex(s.conns)
		if err != nil {
			return nil, err
		}
		q, err := openQueue(d, s, index, depth, try)
		d.mu.Lock()
		if err == nil {
			d.conns[index] = q
			d.mu.Unlock()
			return q, nil
		}
		delete(d.conns, index)
		d.mu.Unlock()
		var refused *refusedError
		taken := errors.As(err, &refused) && refused.answer.Reason == wire.ReasonConn
		switch {
		case taken && try < indexTries:
		case d.reconnector == nil || s.err() == nil && !unanswered(err) && !s.noteForgotten(err):
			return nil, fmt.Errorf("open queue: %w", err)
		default: // a session that ended is followed by another one
			d.cfg.Scheduler.Wait(ctx, openPoll, s.ended)
			if ctx.Err() != nil {
				return nil, fmt.Errorf("open queue: %w", d.reconnector.awayError(err))
			}
		}
	}
}

// openTimeout bounds how long a new queue waits for a target that is away: its
// caller gets an error soon, and may retry. openPoll is the interval at which
// it asks again.
const (
	openTimeout = 3 * time.Second
	openPoll    = 50 * time.Millisecond
)

// living returns the session for a new queue.
func (d *Device) living(ctx context.Context) (*session, error) {
	if d.reconnector == nil {
		return d.first, d.first.err()
	}
	return d.reconnector.await(ctx, nil)
}

// indexTries bounds how many connection indexes NewQueue tries that the target
// still has in use.
const indexTries = 8

// reserveIndex reserves a connection index. It avoids the index of a queue that
// was closed last, which the target may not have released.
func (d *Device) reserveIndex(most uint16) (uint16, error) {
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

// forget releases the index of a queue and keeps its counters.
func (d *Device) forget(q *Queue) {
	d.mu.Lock()
	defer d.mu.Unlock()
	stats, _, _ := q.published.all()
	d.past.add(stats)
	d.pastWrites += q.written.n.Load()
	delete(d.conns, q.index)
}

// Close logs out and releases the session; the caller has closed every queue.
// Calls in progress of the file-like methods have Config.Timeout to end, then
// they fail. Close returns within twice Config.Timeout, and the time in which
// the NIC ends connections. While buffers of Alloc are allocated, Close returns
// an error that wraps regcache.ErrInUse: they stay valid, and the caller calls
// Close again after Free. If the target is stopped amid a copy from or to
// memory of a call, it does not end; the error wraps via.ErrStillAccessed.
func (d *Device) Close() error {
	d.mu.Lock()
	if d.closed {
		d.mu.Unlock()
		d.quarantine.close()
		return d.memory.close()
	}
	d.closed = true
	disk := d.disk
	d.mu.Unlock()
	if d.reconnector != nil {
		d.reconnector.stop()
	}
	scheduler := d.cfg.Scheduler
	ended, err := scheduler.NewEvent(), error(nil)
	if disk == nil {
		ended.Set()
	} else {
		scheduler.Go(func() {
			err = disk.Close()
			ended.Set()
		})
	}
	scheduler.Wait(context.Background(), d.cfg.Timeout, ended)
	closeErr := d.session().close() // ends the queues of calls in progress
	for !ended.IsSet() {
		scheduler.Wait(context.Background(), d.cfg.Timeout, ended)
		if n := d.quarantine.current().Requests; n != 0 && !ended.IsSet() {
			return errors.Join(closeErr, fmt.Errorf("close: memory of %d calls: %w", n, via.ErrStillAccessed))
		}
	}
	d.quarantine.close()
	return errors.Join(err, closeErr, d.memory.close())
}
