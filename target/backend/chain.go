package backend

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/viablk/viablk/internal/block"
	"github.com/viablk/viablk/target/backend/overlay"
	"github.com/viablk/viablk/target/identity"
	"golang.org/x/sys/unix"
)

// Chain is an overlay of a `cow:` disk and the snapshots under it, open and
// locked: no target serves them. Its methods are for one goroutine.
//
// A snapshot is an overlay that became one: its file has another name, and a
// new overlay over it has its old name. Each change takes effect by one rename,
// or one store of a header; what a crash leaves before or after has no effect,
// and the next change removes it.
type Chain struct {
	file  *file
	cow   *cow
	names names
	state string
}

// Snapshot is what a disk was at some time.
type Snapshot struct {
	Name    string
	Created time.Time
	Bytes   int64 // that its file takes
	Unused  bool  // a change that was interrupted left it: it may be deleted
}

// ErrNoSnapshot means that a disk has no snapshot of a name.
var ErrNoSnapshot = errors.New("there is no such snapshot")

// nameOfSnapshot is what snapshots may be called.
var nameOfSnapshot = regexp.MustCompile(`^[A-Za-z0-9_][A-Za-z0-9._-]{0,63}$`)

// names changes the names of files, so that tests can end amid a change.
type names interface {
	link(from, to string) error
	rename(from, to string) error
	remove(path string) error
	// sync makes durable what changed in the folder of path.
	sync(path string) error
}

// linuxNames are those of the kernel.
type linuxNames struct{}

func (linuxNames) link(from, to string) error   { return os.Link(from, to) }
func (linuxNames) rename(from, to string) error { return os.Rename(from, to) }
func (linuxNames) remove(path string) error     { return os.Remove(path) }
func (linuxNames) sync(path string) error       { return syncFolder(path) }

// OpenChain opens and locks an overlay and its snapshots. An overlay whose
// target was killed is recovered first. Errors are those of [Open].
func OpenChain(path string, options Options) (*Chain, error) {
	o := fileOptions{lock: true, identity: true, wait: options.LockWait, state: options.StateFolder, log: options.Log}
	return openChain(path, o, linux{}, linuxNames{})
}

func openChain(path string, o fileOptions, k kernel, n names) (*Chain, error) {
	if _, err := os.Stat(path); err != nil {
		return nil, fmt.Errorf("overlay %q: %w", path, errors.Unwrap(err))
	}
	c, err := loadChain(path, o, k, n)
	if err != nil || c.cow.header.Clean {
		return c, err
	}
	c.Close()
	// To be served is what recovers it.
	o.cow, o.workers = new(cow), 1
	d, err := openFile(path, o, k)
	if err == nil {
		err = d.Close()
	}
	if err != nil {
		o.cow.close()
		return nil, err
	}
	o.cow = nil
	return loadChain(path, o, k, n)
}

// loadChain opens and locks an overlay, and changes nothing.
func loadChain(path string, o fileOptions, k kernel, n names) (*Chain, error) {
	fd, device, err := openPath(path, o)
	if err != nil {
		return nil, err
	}
	c := &Chain{file: &file{path: realPath(path), fd: fd, device: device, align: 1, kernel: k}, cow: new(cow), names: n, state: o.state}
	if err := c.load(o); err != nil {
		c.Close()
		return nil, err
	}
	return c, nil
}

func (c *Chain) load(o fileOptions) error {
	err := lockFile(c.file.fd, c.file.path, false, o.wait)
	if errors.Is(err, ErrLocked) {
		return fmt.Errorf("overlay %q is %w: a process serves it: stop that one first (fuser shows it)", c.file.path, ErrLocked)
	}
	if err != nil {
		return err
	}
	length, err := c.file.size()
	if err != nil {
		return fmt.Errorf("size of overlay %q: %w", c.file.path, err)
	}
	_, err = c.cow.load(c.file, length, o)
	return err
}

// Close unlocks the overlay.
func (c *Chain) Close() {
	c.cow.close()
	_ = unix.Close(c.file.fd) // what was written is durable
}

// pathOf returns the file of a snapshot.
func (c *Chain) pathOf(name string) (string, error) {
	path := c.file.path + "@" + name
	switch {
	case !nameOfSnapshot.MatchString(name):
		return "", fmt.Errorf("%w: snapshot %q: a name has letters, digits, and . _ - behind the first, 64 at most", ErrUsage, name)
	case len(filepath.Base(path)) > overlay.NameLimit:
		return "", fmt.Errorf("%w: snapshot %q: the name of its file %q is too long", ErrUsage, name, filepath.Base(path))
	}
	return path, nil
}

// find returns the place of a snapshot in the chain.
func (c *Chain) find(path string) int {
	return slices.IndexFunc(c.cow.lower, func(l *layer) bool { return filepath.Base(l.path) == filepath.Base(path) })
}

// Create makes a snapshot of what the disk is.
func (c *Chain) Create(name string) error {
	path, err := c.pathOf(name)
	if err != nil {
		return err
	}
	if len(c.cow.lower) >= maximumSnapshots {
		return fmt.Errorf("%w: overlay %q has %d snapshots: delete one first", ErrUsage, c.file.path, len(c.cow.lower))
	}
	if err := c.vacate(path, name); err != nil {
		return err
	}
	next, err := c.successor(path, c.cow.header, false)
	if err == nil {
		defer next.discard(c.names)
		err = c.names.link(c.file.path, path)
	}
	if err == nil {
		err = c.names.sync(path)
	}
	if err == nil {
		err = c.replace(next)
	}
	if err == nil {
		err = freeze(c.file.kernel, &layer{path: path, header: c.cow.header})
	}
	if err != nil {
		return fmt.Errorf("make snapshot %q of %q: %w", name, c.file.path, err)
	}
	return nil
}

// vacate removes a second name of the overlay that an interrupted Create left.
func (c *Chain) vacate(path, name string) error {
	var there, mine unix.Stat_t
	if err := unix.Lstat(path, &there); err == unix.ENOENT {
		return nil
	} else if err != nil {
		return fmt.Errorf("snapshot %q: %w", path, err)
	}
	if err := unix.Fstat(c.file.fd, &mine); err != nil {
		return fmt.Errorf("overlay %q: %w", c.file.path, err)
	}
	if there.Ino != mine.Ino || there.Dev != mine.Dev {
		return fmt.Errorf("%w: snapshot %q is there already: choose another name, or delete it first", ErrUsage, name)
	}
	return errors.Join(c.names.remove(path), c.names.sync(path))
}

// successor is a new overlay without a name yet.
type successor struct {
	*os.File
	named bool
}

// discard closes the successor, and removes it if it got no name.
func (s *successor) discard(n names) {
	_ = s.Close() // it is durable
	if !s.named {
		_ = n.remove(s.Name())
	}
}

// successor makes an overlay over the snapshot at path, whose header is given,
// with owner, mode and identity of the present one. It is locked.
func (c *Chain) successor(path string, parent *overlay.Header, changed bool) (*successor, error) {
	h := &overlay.Header{
		ID: block.NewUUID(), Size: parent.Size, Base: parent.Base, Created: time.Now(), Clean: true,
		Parent: overlay.Parent{Name: filepath.Base(path), ID: parent.ID, Opens: parent.Opens},
	}
	var st unix.Stat_t
	if err := unix.Fstat(c.file.fd, &st); err != nil {
		return nil, err
	}
	f, err := newOverlay(c.file.path, h, fs.FileMode(st.Mode&0o777))
	if err != nil {
		return nil, err
	}
	next := &successor{File: f}
	if err = f.Chown(int(st.Uid), int(st.Gid)); err == nil {
		err = lockFile(int(f.Fd()), c.file.path, false, 0)
	}
	if err == nil {
		err = identity.Succeed(c.identity(int(f.Fd())), c.identity(c.file.fd), changed)
	}
	if err != nil {
		next.discard(c.names)
		return nil, err
	}
	return next, nil
}

// identity returns what describes a file that has, or gets, the name of the
// overlay.
func (c *Chain) identity(fd int) identity.Options {
	return identity.Options{FD: fd, Path: c.file.path, Folder: c.state}
}

// replace gives a successor the name of the overlay.
func (c *Chain) replace(next *successor) error {
	if err := c.names.rename(next.Name(), c.file.path); err != nil {
		return err
	}
	next.named = true
	return c.names.sync(c.file.path)
}

// freeze notes in a snapshot that it is one.
func freeze(k kernel, l *layer) error {
	fd, err := openRetrying(l.path, unix.O_CLOEXEC|unix.O_RDWR)
	if err != nil {
		return fmt.Errorf("snapshot %q: %w", l.path, err)
	}
	defer unix.Close(fd)
	f := &file{path: l.path, fd: fd, align: 1, kernel: k}
	l.header.Frozen = time.Now()
	if err = l.header.Store(overlayFile{f}); err == nil {
		err = f.fdatasync()
	}
	return f.explain("mark", err)
}

// Newer returns the snapshots that are newer than another, which Rollback
// deletes.
func (c *Chain) Newer(name string) ([]string, error) {
	i, _, err := c.snapshot(name)
	if err != nil {
		return nil, err
	}
	var newer []string
	for _, l := range c.cow.lower[:i] {
		newer = append(newer, snapshotName(l.path))
	}
	return newer, nil
}

// snapshot returns the place and the file of a snapshot in the chain.
func (c *Chain) snapshot(name string) (i int, path string, err error) {
	if path, err = c.pathOf(name); err != nil {
		return 0, "", err
	}
	if i = c.find(path); i < 0 {
		return 0, path, fmt.Errorf("overlay %q: %w as %q: viablk snapshot ls lists those that there are", c.file.path, ErrNoSnapshot, name)
	}
	return i, path, nil
}

// Rollback makes the disk what it was at a snapshot. All writes since then, and
// newer snapshots, are lost.
func (c *Chain) Rollback(name string) error {
	i, path, err := c.snapshot(name)
	if err != nil {
		return err
	}
	next, err := c.successor(path, c.cow.lower[i].header, true)
	if err == nil {
		defer next.discard(c.names)
		err = c.replace(next)
	}
	for _, l := range c.cow.lower[:i] {
		if err == nil {
			err = c.names.remove(l.path)
		}
	}
	if err == nil {
		err = c.names.sync(c.file.path)
	}
	if err != nil {
		return fmt.Errorf("roll %q back to snapshot %q: %w", c.file.path, name, err)
	}
	return nil
}

// snapshotName returns the name of the snapshot in a file.
func snapshotName(path string) string {
	base := filepath.Base(path)
	return base[strings.LastIndexByte(base, '@')+1:]
}
