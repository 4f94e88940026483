//go:build rbd && cgo

package rbd

import (
	"fmt"
	"syscall"
)

// exclusiveLock is the feature of an image that can be locked.
const exclusiveLock = 1 << 2

// lockTries bounds how often other clients may be faster.
const lockTries = 4

// lock takes the lock of the image. Another viablk refuses to give it up; a
// program that takes it for each write does. librbd frees the lock of a client
// that is dead, and has the cluster refuse that client.
func (d *Device) lock() error {
	features, err := d.connection.features()
	switch {
	case err != nil:
		return fmt.Errorf("features of the image: %w", err)
	case features&exclusiveLock == 0:
		return fmt.Errorf("%w: it has no exclusive lock, and two targets could write to it: run \"rbd feature enable %s/%s exclusive-lock\", or add readonly=1",
			ErrUnsuitable, d.cfg.Pool, d.cfg.Image)
	}
	owner := ""
	for range lockTries {
		if d.cfg.Steal {
			if err := d.steal(); err != nil {
				return err
			}
		}
		err := d.connection.acquire()
		if err == nil {
			return nil
		}
		if err != syscall.EROFS {
			return fmt.Errorf("lock the image: %w", err)
		}
		if owner, err = d.connection.owner(); err != nil {
			return fmt.Errorf("find the owner of the lock: %w", err)
		}
		if owner != "" && !d.cfg.Steal {
			break
		}
	}
	return fmt.Errorf("the image is %w by the client at %s: stop that, add readonly=1, or take the image over with steal=1, which cuts that client off", ErrInUse, owner)
}

// steal breaks the lock of whichever client has it.
func (d *Device) steal() error {
	owner, err := d.connection.owner()
	if err == nil && owner != "" {
		err = d.connection.breakLock(owner)
		d.cfg.Log.Warn("the image is taken over from another client", "event", "lock_broken", "path", d.name, "owner", owner)
	}
	if err != nil && err != syscall.ENOENT { // ENOENT: it was given up meanwhile
		return fmt.Errorf("take the image over from the client at %s: %w: the caps of client.%s need \"profile rbd\" at the monitors", owner, err, d.cfg.user())
	}
	return nil
}
