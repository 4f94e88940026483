package backend

import (
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/viablk/viablk/internal/block"
	"github.com/viablk/viablk/target/backend/checksum"
	"golang.org/x/sys/unix"
)

// markIdle is how long the sums of a region have been stored before a flush
// clears its mark.
const markIdle = 10 * time.Second

// parseCrc reads SPEC,SUMS[?OPTION=VALUE&…].
func parseCrc(rest string, nbd func(spec string) (Opener, error), nested int) (Opener, error) {
	comma := strings.LastIndexByte(rest, ',')
	if comma <= 0 {
		return nil, fmt.Errorf("%w: crc:%s: write crc:DISK,SUMS", ErrUsage, rest)
	}
	path, query, err := splitQuery("crc", rest[comma+1:])
	if err != nil {
		return nil, err
	}
	if path == "" {
		return nil, fmt.Errorf("%w: crc:%s: write crc:DISK,SUMS", ErrUsage, rest)
	}
	o, err := parseFileOptions(query)
	if err != nil {
		return nil, err
	}
	open, err := parse(rest[:comma], nbd, nested+1)
	if err != nil {
		return nil, err
	}
	return func(options Options) (block.Device, error) {
		inner, err := open(options)
		if err != nil {
			return nil, err
		}
		d, err := openCrc(inner, path, o.with(options), linux{})
		if err != nil {
			return nil, errors.Join(err, inner.Close())
		}
		return d, nil
	}, nil
}

// openCrc opens inner with its checksums, which it makes if there are none.
// inner stays the caller's if that fails.
func openCrc(inner block.Device, path string, o fileOptions, k kernel) (block.Device, error) {
	c := &crc{inner: inner, info: inner.Info(), idle: markIdle, log: o.log, ranges: block.NewRanges()}
	if c.log == nil {
		c.log = slog.New(slog.DiscardHandler)
	}
	for _, t := range []*chan struct{}{&c.extending, &c.loading, &c.marking, &c.saving} {
		*t = make(chan struct{}, 1)
		*t <- struct{}{}
	}
	c.info.PreferredBlock = max(c.info.PreferredBlock, checksum.BlockSize)
	c.memory = memoryBelow(inner)
	c.passes = c.info.Features&block.CanMultiConn != 0 // a flush of the executor covers every queue
	if err := checksum.CheckSize(c.info.Size); err != nil {
		return nil, fmt.Errorf("%w: %w", ErrUsage, err)
	}
	if c.info.MinimumBlock > checksum.BlockSize {
		return nil, fmt.Errorf("%w: a disk whose blocks have %d bytes: checksums are of %d", ErrUsage, c.info.MinimumBlock, checksum.BlockSize)
	}
	o.readOnly, o.create, o.direct = c.info.Features&block.ReadOnly != 0, 0, false
	if err := c.openSums(path, o, k); err != nil {
		return nil, err
	}
	var err error
	if c.disk, err = block.NewDisk(inner); err != nil {
		_ = unix.Close(c.file.fd)
		return nil, err
	}
	if i := block.IdentityOf(inner); i != nil {
		c.identity = crcIdentity{i, c}
	}
	last := ScrubResult{Corrupt: c.header.Corrupt, Unreadable: c.header.Unreadable}
	if c.header.Scrubbed != 0 {
		last.Ended = time.Unix(c.header.Scrubbed, 0)
	}
	c.scrubs.open(last)
	c.executor = block.NewExecutor(c, o.workers)
	c.executor.OnLost(func(cause error) { _ = c.latch.Fail(cause) })
	c.executor.Guard(c.ranges)
	if o.lock && !o.readOnly {
		c.file.held = o.held
		c.file.held.add(c.file.fd)
	}
	return c, nil
}

// openSums opens, locks and reads the file of checksums.
func (c *crc) openSums(path string, o fileOptions, k kernel) error {
	_, err := os.Stat(path)
	switch {
	case errors.Is(err, fs.ErrNotExist) && o.readOnly:
		return fmt.Errorf("checksums %q: %w: serve the disk for writing once to make them", path, fs.ErrNotExist)
	case errors.Is(err, fs.ErrNotExist):
		if err := createSums(path, c.newHeader()); err != nil {
			return fmt.Errorf("make checksums %q: %w", path, err)
		}
	}
	f := &file{path: path, align: 1, kernel: k, full: fullWarning{log: o.log}}
	if f.fd, f.device, err = claimOrOpen(path, o); err != nil {
		return err
	}
	c.file = f
	if o.lock {
		err = lockFile(f.fd, path, o.readOnly, o.wait)
	}
	if err == nil {
		err = c.readSums(o.readOnly)
	}
	if err != nil {
		_ = unix.Close(f.fd)
	}
	return err
}

// disks returns the identity of the disk and the generation of its writer, zero
// if it has none that lasts, or that moves with the disk.
func (c *crc) disks() (id [16]byte, generation uint64) {
	i := block.IdentityOf(c.inner)
	if i == nil || !i.Persistent() && c.memory == nil {
		return id, 0
	}
	return i.UUID(), i.Writer().Generation
}

// newHeader returns the header of new checksums of the disk.
func (c *crc) newHeader() *checksum.Header {
	h := &checksum.Header{ID: block.NewUUID(), Size: c.info.Size}
	h.Disk, h.Generation = c.disks()
	return h
}

// createSums makes a file without any sum, unless there is one.
func createSums(path string, h *checksum.Header) (err error) {
	n, err := os.CreateTemp(filepath.Dir(path), "."+filepath.Base(path)+".new-*")
	if err != nil {
		return err
	}
	defer func() {
		err = errors.Join(err, n.Close(), os.Remove(n.Name()))
	}()
	f := &file{path: path, fd: int(n.Fd()), align: 1, kernel: linux{}}
	if err := f.initialize(h); err != nil {
		return err
	}
	if err := os.Link(n.Name(), path); err != nil && !errors.Is(err, fs.ErrExist) { // another process was faster
		return err
	}
	return syncFolder(path)
}

// initialize makes a file one of checksums without any sum, durably.
func (f *file) initialize(h *checksum.Header) error {
	if err := errors.Join(f.truncate(0), f.truncate(checksum.End(h.Size))); err != nil {
		return err
	}
	for range 2 { // both copies have room from now on
		if err := h.Store(overlayFile{f}); err != nil {
			return err
		}
		if err := f.syncFile(); err != nil {
			return err
		}
	}
	return nil
}

// readSums reads what the open file says of the disk.
func (c *crc) readSums(readOnly bool) error {
	f := c.file
	if f.device {
		return fmt.Errorf("%w: checksums %q are a block device, and not a file", ErrUsage, f.path)
	}
	length, err := f.size()
	if err != nil {
		return fmt.Errorf("size of checksums %q: %w", f.path, err)
	}
	// A killed process may have left a copy that is not durable: it becomes so
	// before the other one is written over.
	if !readOnly {
		if err := f.syncFile(); err != nil {
			return fmt.Errorf("flush checksums %q: %w", f.path, err)
		}
	}
	if c.header, err = checksum.ReadHeader(overlayFile{f}, length); err != nil {
		return explainSums(f.path, err)
	}
	ends := block.DurabilityOf(c.inner) == block.Volatile && !c.moved()
	switch {
	case ends && readOnly:
		err = c.compareSize()
	case ends:
		c.header = c.newHeader() // the disk of before is gone
		err = f.initialize(c.header)
	default:
		if err = c.compare(readOnly); err == nil && !readOnly {
			err = c.resize()
		}
	}
	if c.memory != nil {
		c.memory.unkept.Store(false) // mark says whose the changes are
	}
	if err == nil {
		c.regions.extend(checksum.Regions(c.info.Size))
		c.size.Store(c.info.Size)
		c.intent, err = checksum.OpenIntent(overlayFile{f}, c.header)
	}
	if err == nil && !readOnly {
		c.header.Opens++
		err = c.storeHeader()
	}
	if err == nil {
		err = c.findStale(readOnly, ends && readOnly)
	}
	return explainSums(f.path, err)
}

// explainSums says what to do about a file that cannot be used.
func explainSums(path string, err error) error {
	if err == nil || errors.Is(err, ErrUsage) {
		return err
	}
	advice := ""
	switch {
	case errors.Is(err, checksum.ErrNone):
		err = fmt.Errorf("%w: %w", ErrUsage, err)
		advice = ": give the checksums of the disk, or a path where nothing is for new ones"
	case errors.Is(err, checksum.ErrDamaged):
		advice = ": remove the file for new ones"
	case errors.Is(err, checksum.ErrVersion):
		advice = ": use a newer one, or remove the file for new ones"
	}
	return fmt.Errorf("checksums %q: %w%s", path, err, advice)
}

// compare refuses the checksums of another disk, and those that a writer did
// not keep.
func (c *crc) compare(readOnly bool) error {
	id, generation := c.disks()
	what := ""
	switch {
	case c.header.Disk != id:
		what = "they are those of another disk"
	case generation > c.header.Generation:
		what = "the disk was written to without them"
	case readOnly:
		return c.compareSize()
	default:
		return nil
	}
	return c.unfit(what)
}

// compareSize refuses the checksums of a disk of another size.
func (c *crc) compareSize() error {
	if c.header.Size == c.info.Size {
		return nil
	}
	return c.unfit(fmt.Sprintf("the disk has %d bytes instead of %d", c.info.Size, c.header.Size))
}

// unfit returns the error of checksums that are not those of the disk.
func (c *crc) unfit(what string) error {
	return fmt.Errorf("%w: checksums %q cannot be used: %s: give those of the disk, or remove the file for new ones", ErrUsage, c.file.path, what)
}

// moved reports whether the disk is one in memory that another process had, and
// the checksums have every change of it.
func (c *crc) moved() bool {
	if c.memory == nil {
		return false
	}
	id, generation := c.disks()
	h := c.header
	return h.Disk == id && h.ID == c.memory.keptBy() && h.Generation >= generation && h.Size == c.info.Size
}

// resize has the file be that of a disk that has grown or shrunk. Blocks that
// are new, or were and are the last, have no sum.
func (c *crc) resize() error {
	before, now := c.header.Size, c.info.Size
	if before == now {
		return nil
	}
	if now > before { // what is behind its end is of a disk that has shrunk
		if err := errors.Join(c.file.truncate(checksum.End(before)), c.file.truncate(checksum.End(now))); err != nil {
			return err
		}
	}
	if last := min(before, now) / checksum.BlockSize; last%checksum.RegionBlocks != 0 {
		i, s := last/checksum.RegionBlocks, new(checksum.Sums)
		err := s.Load(overlayFile{c.file}, c.header, i)
		if err != nil && !errors.Is(err, checksum.ErrDamaged) {
			return err
		}
		for at := last % checksum.RegionBlocks; at < checksum.RegionBlocks; at++ {
			s[at].Store(checksum.None)
		}
		if err == nil {
			err = s.Save(overlayFile{c.file}, c.header, i)
		}
		if err != nil && !errors.Is(err, checksum.ErrDamaged) {
			return err
		}
	}
	if err := c.file.syncFile(); err != nil {
		return err
	}
	c.header.Size = now
	if err := c.storeHeader(); err != nil {
		return err
	}
	return c.file.truncate(checksum.End(now))
}
