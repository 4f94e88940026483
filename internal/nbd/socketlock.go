package nbd

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"time"

	"golang.org/x/sys/unix"
)

// lockTimeout is how long a start or an end waits for another one at the same
// path, which takes microseconds, or a second over a socket that is served.
const lockTimeout = 5 * time.Second

// lockPoll is the time between two attempts at a lock.
const lockPoll = 10 * time.Millisecond

// lockSocket keeps other processes of the user from changing the socket at
// path. The lock is a file that other users cannot open: any user who may open
// the folder could hold a lock of the folder itself. The file exists while the
// lock is held.
func lockSocket(ctx context.Context, path string) (unlock func(), err error) {
	ctx, cancel := context.WithTimeout(ctx, lockTimeout)
	defer cancel()
	name := path + ".lock"
	for {
		f, err := TryLock(name)
		if err != nil {
			return nil, fmt.Errorf("lock %s: %w", name, err)
		}
		if f != nil {
			return func() { os.Remove(name); f.Close() }, nil
		}
		select {
		case <-time.After(lockPoll):
		case <-ctx.Done():
			return nil, fmt.Errorf("lock %s, which another process holds: %w", name, ctx.Err())
		}
	}
}

// TryLock returns the locked file at name, which it makes if it is missing, or
// nil if another process has it. Closing the file unlocks it; who removes it
// does so first.
func TryLock(name string) (*os.File, error) {
	f, err := os.OpenFile(name, os.O_RDWR|os.O_CREATE|unix.O_NOFOLLOW, 0o600)
	if err != nil {
		return nil, err
	}
	var has unix.Stat_t
	err = unix.Fstat(int(f.Fd()), &has)
	if err == nil && int(has.Uid) != os.Geteuid() {
		err = errors.New("the file belongs to another user: remove it")
	}
	if err == nil {
		err = unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB)
	}
	if err == nil {
		// The process that held the lock before has removed the file, perhaps
		// after it was opened here.
		var at unix.Stat_t
		err = unix.Lstat(name, &at)
		if err == nil && (at.Ino != has.Ino || at.Dev != has.Dev) {
			err = fs.ErrNotExist
		}
	}
	if err == nil {
		return f, nil
	}
	f.Close()
	if errors.Is(err, unix.EWOULDBLOCK) || errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	return nil, err
}
