package backend

import (
	"errors"
	"fmt"
	"io/fs"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/viablk/viablk/target/identity"
)

// Locked is a backing file or block device that is open and locked as a served
// one is, so that no target serves it meanwhile.
type Locked struct {
	fd      int
	path    string
	options Options
}

// Lock opens and locks what spec describes: a file or device as in [Open], or
// its path. It makes nothing. With [Options.ReadOnly], whatever spec says, the
// lock is a reader's, beside those of other readers. Errors are those of Open.
func Lock(spec string, options Options) (*Locked, error) {
	path, o, err := parseLocked(spec, options)
	if err != nil {
		return nil, err
	}
	o.create, o.direct, o.readOnly = 0, false, options.ReadOnly
	if !o.identity {
		return nil, fmt.Errorf("%w: identity=0 gives up the identity of %q: leave it out", ErrUsage, path)
	}
	fd, _, err := openPath(path, o)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("open %q: %w", path, fs.ErrNotExist)
	}
	if err != nil {
		return nil, err
	}
	l := &Locked{fd, path, options}
	if !o.lock {
		return l, nil
	}
	if err := lockFile(fd, path, o.readOnly, o.wait); err != nil {
		l.Close()
		if errors.Is(err, ErrLocked) {
			err = fmt.Errorf("%q is %w: a process serves it: stop that one first (fuser shows it)", path, ErrLocked)
		}
		return nil, err
	}
	return l, nil
}

// parseLocked reads a path, or the specification of a file.
func parseLocked(spec string, options Options) (path string, o fileOptions, err error) {
	switch scheme, rest, _ := strings.Cut(spec, ":"); scheme {
	case "file", "mmap":
		path, o, err = parseFileSpec(scheme, rest)
		return path, o.with(options), err
	case "cow":
		return "", o, fmt.Errorf("%w: %q has its identity with its overlay: give the path of that", ErrUsage, spec)
	case "crc":
		return "", o, fmt.Errorf("%w: %q has the identity of the disk inside: give that", ErrUsage, spec)
	case "memory", "null", "delay", "fault", "volatile", "limit":
		return "", o, fmt.Errorf("%w: %q is neither a file nor a block device, and only those keep an identity", ErrUsage, spec)
	}
	return spec, fileOptions{lock: true, identity: true, wait: options.LockWait}, nil
}

// Identity returns what [identity.Inspect] and [identity.Renew] need.
func (l *Locked) Identity() identity.Options {
	return identity.Options{
		FD: l.fd, Path: l.path, ReadOnly: l.options.ReadOnly, Folder: l.options.StateFolder, Log: l.options.Log,
	}
}

// Close gives the lock back.
func (l *Locked) Close() { _ = unix.Close(l.fd) }
