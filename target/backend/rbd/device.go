//go:build rbd && cgo

package rbd

import (
	"cmp"
	"errors"
	"fmt"
	"log/slog"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/viablk/viablk/internal/block"
	"github.com/viablk/viablk/internal/ratelog"
	"github.com/viablk/viablk/target/identity"
)

// Built reports whether this build has librbd.
const Built = true

// sector is what the size of a disk is a multiple of, in bytes.
const sector = 512

// closeTimeout bounds how long Close waits for the cluster.
const closeTimeout = 5 * time.Second

// Device is an image. It implements [block.Device].
type Device struct {
	cfg        Config
	name       string
	connection *connection
	info       block.Info
	size       atomic.Int64
	record     *identity.Disk
	worker     *worker
	watch      *watch
	latch      block.Latch

	revoked atomic.Pointer[revokedError]
	full    ratelog.Log
	failing atomic.Bool // a flush failed: the worker answers those that follow
}

// revokedError is why the disk has ended for this process.
type revokedError struct{ name string }

func (e *revokedError) Error() string {
	return e.name + ": another client has taken the image over"
}

// Unwrap returns what tells every user that the disk has ended.
func (e *revokedError) Unwrap() error { return syscall.ESHUTDOWN }

// user returns the name of the client.
func (c *Config) user() string { return cmp.Or(c.User, "admin") }

// Open opens an image. Errors wrap [ErrInUse], [ErrUnsuitable],
// [fs.ErrNotExist] or [fs.ErrPermission] where these say what is wrong.
func Open(cfg Config) (block.Device, error) {
	if cfg.Timeout == 0 {
		cfg.Timeout = time.Minute
	}
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.DiscardHandler)
	}
	cfg.ReadOnly = cfg.ReadOnly || cfg.Snapshot != ""
	d := &Device{cfg: cfg, name: cfg.Name(), connection: new(connection)}
	err, ended := within(cfg.Timeout, d.open, func() { _ = d.release() })
	switch {
	case !ended:
		err = fmt.Errorf("the cluster does not answer within %v: see \"ceph health detail\": %w", cfg.Timeout, syscall.ETIMEDOUT)
	case err != nil:
		_ = d.release()
	}
	if err != nil {
		return nil, fmt.Errorf("open %s: %w", d.name, err)
	}
	return d, nil
}

// within runs do for as long as limit at most. If that is over, ended is false,
// and do ends when the cluster answers, with late.
func within(limit time.Duration, do func() error, late func()) (err error, ended bool) {
	result := make(chan error, 1)
	var decided atomic.Bool
	go func() {
		if err := do(); decided.CompareAndSwap(false, true) {
			result <- err
		} else {
			late()
		}
	}()
	timer := time.NewTimer(limit)
	defer timer.Stop()
	select {
	case err := <-result:
		return err, true
	case <-timer.C:
		if decided.CompareAndSwap(false, true) {
			return nil, false
		}
		return <-result, true
	}
}

// open opens the image, checks it, and takes its lock.
func (d *Device) open() error {
	if err := d.connection.open(&d.cfg); err != nil {
		return err
	}
	if err := d.checkSuitable(); err != nil {
		return err
	}
	if !d.cfg.ReadOnly {
		if err := d.lock(); err != nil {
			return err
		}
	}
	size, err := d.connection.size()
	switch {
	case err != nil:
		return fmt.Errorf("size of the image: %w", err)
	case size < sector:
		return fmt.Errorf("%w: it has %d bytes: a disk has at least %d", ErrUnsuitable, size, sector)
	}
	d.size.Store(size - size%sector)
	d.info = block.Info{
		MinimumBlock: 1, PreferredBlock: 4096, MaximumPayload: block.PayloadLimit,
		Features: block.CanFlush | block.CanFUA | block.CanMultiConn | block.CanStatus,
	}
	if d.cfg.ReadOnly {
		d.info.Features |= block.ReadOnly
	} else {
		d.info.Features |= block.CanTrim | block.CanWriteZeroes | block.CanFastZero
	}
	if err := d.identify(); err != nil {
		return err
	}
	d.worker = newWorker()
	d.watch, err = newWatch(d)
	return err
}

// checkSuitable refuses an image whose metadata or layout breaks what a disk
// promises. Metadata of an image overrides what this client set.
func (d *Device) checkSuitable() error {
	for option, want := range map[string]string{"rbd_cache": "false", "rbd_persistent_cache_mode": "disabled"} {
		value, err := d.connection.option(option)
		switch {
		case err != nil:
			return fmt.Errorf("options of the image: %w", err)
		case value != "" && value != want:
			return fmt.Errorf("%w: its metadata sets %s to %s, and a cache would answer writes that it can lose: run \"rbd config image remove %s/%s %s\"",
				ErrUnsuitable, option, value, d.cfg.Pool, d.cfg.Image, option)
		}
	}
	unit, err := d.connection.stripeUnit()
	switch {
	case err != nil:
		return fmt.Errorf("layout of the image: %w", err)
	case unit%block.AtomicUnit != 0:
		return fmt.Errorf("%w: its stripes of %d bytes would tear blocks of %d: make it without --stripe-unit", ErrUnsuitable, unit, block.AtomicUnit)
	}
	return nil
}

// Info implements [block.Device].
func (d *Device) Info() block.Info {
	info := d.info
	info.Size = d.size.Load()
	return info
}

// FixedSize returns why the disk cannot grow, or nil.
func (d *Device) FixedSize() error {
	if d.cfg.ReadOnly {
		return fmt.Errorf("%s is open for reading only", d.name)
	}
	return d.Revoked()
}

// Grow makes the image larger, durably. It waits for the cluster for as long as
// that takes: librbd cannot close an image that it resizes.
func (d *Device) Grow(size int64) error {
	if err := d.connection.grow(size); err != nil {
		return fmt.Errorf("grow %s to %d bytes: %w", d.name, size, err)
	}
	d.size.Store(size)
	return nil
}

// Durability implements [block.DurabilityReporter]: an answered write is on the
// disks of the cluster.
func (d *Device) Durability() block.Durability { return block.OutlivesProcess }

// revoke ends the disk for this process, because a request failed with cause.
func (d *Device) revoke(cause syscall.Errno) error {
	e := &revokedError{d.name}
	if d.revoked.CompareAndSwap(nil, e) {
		d.cfg.Log.Error("another client has taken the disk over: it has ended for this target", "event", "disk_revoked", "path", d.name, "error", cause)
	}
	return d.revoked.Load()
}

// Revoked returns why the disk has ended for this process, or nil.
func (d *Device) Revoked() error {
	if e := d.revoked.Load(); e != nil {
		return e
	}
	return nil
}

// NewQueue implements [block.Device].
func (d *Device) NewQueue(depth int) (block.Queue, error) {
	if err := d.Revoked(); err != nil {
		return nil, err
	}
	return newQueue(d, depth)
}

// Close implements [block.Device]. It gives up the lock, and waits for the
// cluster for some seconds.
func (d *Device) Close() error {
	err, ended := within(closeTimeout, d.shutdown, func() {})
	if !ended {
		err = fmt.Errorf("the cluster does not answer within %v: it frees the lock of the image when this process has been dead for 30 s", closeTimeout)
	}
	if err != nil {
		return fmt.Errorf("close %s: %w", d.name, err)
	}
	return nil
}

// shutdown makes the disk clean and releases it.
func (d *Device) shutdown() error {
	err := d.clean()
	if errors.Is(err, syscall.ESHUTDOWN) || errors.Is(err, syscall.EROFS) {
		_ = d.revoke(block.Errno(err)) // it may have noticed now
	}
	if d.Revoked() != nil {
		_ = d.release() // the cluster refuses whatever is left to do
		return nil
	}
	return errors.Join(err, d.release())
}

// clean makes what was written durable, and says so in the record.
func (d *Device) clean() error {
	if d.cfg.ReadOnly || d.Revoked() != nil {
		return nil
	}
	if err := d.latch.Err(); err != nil {
		return err
	}
	if err := d.connection.flush(); err != nil {
		return err
	}
	return d.record.Close()
}

// release ends whatever open has begun. No queue is open.
func (d *Device) release() error {
	if d.worker != nil {
		d.worker.close()
	}
	if d.watch != nil {
		d.watch.stop()
	}
	err := d.connection.close()
	if d.watch != nil {
		err = errors.Join(err, d.watch.close())
	}
	return err
}
