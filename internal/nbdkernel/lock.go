package nbdkernel

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// Folder is where the lock files of devices are, and what their processes keep
// for those that take a device over: devices are the machine's, and so is the
// folder.
const Folder = "/run/viablk"

// lock says that this process serves a device: no other process connects it
// meanwhile. It ends with the process, however that ends.
type lock struct{ file *os.File }

// acquireLock takes the lock of a device. The error wraps [ErrBusy] if another
// process serves it.
func acquireLock(folder string, n Node) (*lock, error) {
	if err := os.MkdirAll(folder, 0o700); err != nil {
		return nil, fmt.Errorf("lock %s: %w", n, err)
	}
	file, err := os.OpenFile(lockPath(folder, n), os.O_RDWR|os.O_CREATE|unix.O_NOFOLLOW, 0o600)
	if err != nil {
		return nil, fmt.Errorf("lock %s: %w", n, err)
	}
	err = unix.FcntlFlock(file.Fd(), unix.F_OFD_SETLK, &unix.Flock_t{Type: unix.F_WRLCK})
	if errors.Is(err, unix.EAGAIN) {
		pid := readPID(file)
		file.Close()
		return nil, fmt.Errorf("%s is served by process %d: detach it first, or choose another device: %w", n, pid, ErrBusy)
	}
	if err == nil {
		err = errors.Join(file.Truncate(0), writePID(file))
	}
	if err != nil {
		file.Close()
		return nil, fmt.Errorf("lock %s: %w", n, err)
	}
	return &lock{file}, nil
}

// awaitLock is acquireLock for a device that another process just gave up: it
// waits until that has ended with it.
func awaitLock(ctx context.Context, folder string, n Node) (*lock, error) {
	for {
		l, err := acquireLock(folder, n)
		if !errors.Is(err, ErrBusy) {
			return l, err
		}
		select {
		case <-time.After(lockPause):
		case <-ctx.Done():
			return nil, err
		}
	}
}

// lockPause is between two checks of a lock.
const lockPause = 20 * time.Millisecond

// release gives the lock up. The file stays: who waits for it has it open.
func (l *lock) release() {
	if l != nil {
		l.file.Close()
	}
}

func lockPath(folder string, n Node) string { return filepath.Join(folder, n.name()+".lock") }

func writePID(file *os.File) error {
	_, err := file.WriteAt([]byte(strconv.Itoa(os.Getpid())+"\n"), 0)
	return err
}

func readPID(file *os.File) int {
	text, _ := io.ReadAll(io.NewSectionReader(file, 0, 32))
	pid, _ := strconv.Atoi(strings.TrimSpace(string(text)))
	return pid
}

// Server returns the process that serves the device, 0 if none does.
func (n Node) Server() (pid int, err error) { return n.server(Folder) }

func (n Node) server(folder string) (pid int, err error) {
	file, err := os.Open(lockPath(folder, n))
	if errors.Is(err, fs.ErrNotExist) {
		return 0, nil
	}
	if err != nil {
		return 0, fmt.Errorf("find the process that serves %s: %w", n, err)
	}
	defer file.Close()
	l := unix.Flock_t{Type: unix.F_RDLCK}
	if err := unix.FcntlFlock(file.Fd(), unix.F_OFD_GETLK, &l); err != nil {
		return 0, fmt.Errorf("find the process that serves %s: %w", n, err)
	}
	if l.Type == unix.F_UNLCK {
		return 0, nil
	}
	return readPID(file), nil
}
