package backend

import (
	"errors"
	"fmt"
	"io/fs"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/viablk/viablk/internal/block"
	"github.com/viablk/viablk/target/backend/overlay"
	"github.com/viablk/viablk/target/identity"
	"golang.org/x/sys/unix"
)

// parseCow reads BASE,OVERLAY[?OPTION=VALUE&…].
func parseCow(rest string) (Opener, error) {
	bottom, top, found := strings.Cut(rest, ",")
	if !found || bottom == "" {
		return nil, fmt.Errorf("%w: cow:%s: write cow:BASE,OVERLAY", ErrUsage, rest)
	}
	base, err := url.PathUnescape(bottom)
	if err != nil {
		return nil, fmt.Errorf("%w: cow:%s: %w: write %% as %%25 and a comma as %%2C", ErrUsage, bottom, err)
	}
	path, query, err := splitQuery("cow", top)
	if err != nil {
		return nil, err
	}
	if path == "" {
		return nil, fmt.Errorf("%w: cow:%s: write cow:BASE,OVERLAY", ErrUsage, rest)
	}
	o, err := parseFileOptions(query)
	if err != nil {
		return nil, err
	}
	create, err := query.flag("create")
	if err != nil {
		return nil, err
	}
	return func(options Options) (block.Device, error) {
		return openCow(base, path, create, o.with(options), linux{})
	}, nil
}

// openCow opens the disk of an overlay over base.
func openCow(base, path string, create bool, o fileOptions, k kernel) (block.Device, error) {
	bottom, err := openBase(base, o, k)
	if err != nil {
		return nil, err
	}
	c := &cow{expect: bottom, lower: []*layer{bottom.layer}}
	_, err = os.Stat(path)
	if errors.Is(err, fs.ErrNotExist) {
		err = fmt.Errorf("overlay %q: %w: add ?create=1 to make it", path, fs.ErrNotExist)
		if create && !o.readOnly {
			err = createOverlay(path, bottom)
		}
	}
	if err == nil {
		o.cow = c
		var d block.Device
		if d, err = openFile(path, o, k); err == nil {
			return d, nil
		}
	}
	c.close()
	return nil, err
}

// base is the disk under all overlays.
type base struct {
	*layer
	size int64
	is   overlay.Base
}

// openBase opens and locks a base, which nothing writes to.
func openBase(path string, o fileOptions, k kernel) (*base, error) {
	if _, err := os.Stat(path); errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("base %q: %w", path, fs.ErrNotExist)
	}
	o.readOnly, o.create = true, 0
	fd, device, err := openPath(path, o)
	if err != nil {
		return nil, err
	}
	b := &base{layer: &layer{fd: fd, path: path}}
	f := &file{path: path, fd: fd, device: device, kernel: k}
	if err := b.identify(f, o); err != nil {
		_ = unix.Close(fd)
		return nil, err
	}
	return b, nil
}

// identify locks a base, and finds out which it is.
func (b *base) identify(f *file, o fileOptions) error {
	if o.lock {
		if err := lockFile(f.fd, f.path, true, o.wait); err != nil {
			return err
		}
	}
	var err error
	if b.size, err = f.size(); err != nil {
		return fmt.Errorf("size of base %q: %w", f.path, err)
	}
	if err := overlay.CheckSize(b.size); err != nil {
		return fmt.Errorf("%w: base %q is %w", ErrUsage, f.path, err)
	}
	if h, err := overlay.ReadHeader(overlayFile{f}, b.size); !errors.Is(err, overlay.ErrNone) {
		below := ""
		if err == nil {
			below = fmt.Sprintf(", such as %q", h.Base.Path)
		}
		return fmt.Errorf("%w: base %q is an overlay: give the disk that is under it%s", ErrUsage, f.path, below)
	}
	id, err := identity.Open(identity.Options{
		FD: f.fd, Path: f.path, ReadOnly: true, Folder: o.state, Log: o.log, Boot: o.boot,
	})
	if err != nil {
		return err
	}
	absolute, err := filepath.Abs(f.path)
	if err != nil {
		return fmt.Errorf("base %q: %w", f.path, err)
	}
	b.is = overlay.Base{Path: absolute, UUID: id.UUID()}
	if f.device {
		return nil // its times are those of its node
	}
	var st unix.Stat_t
	if err := unix.Fstat(f.fd, &st); err != nil {
		return fmt.Errorf("base %q: %w", f.path, err)
	}
	b.is.Modified = st.Mtim.Nano()
	return nil
}

// createOverlay makes an overlay that has nothing, unless there is one.
func createOverlay(path string, b *base) error {
	h := &overlay.Header{ID: block.NewUUID(), Size: b.size, Base: b.is, Created: time.Now(), Clean: true}
	n, err := newOverlay(path, h, 0o600)
	if err != nil {
		return err
	}
	defer n.Close()
	err = os.Link(n.Name(), path)
	if errors.Is(err, fs.ErrExist) {
		err = nil // another process was faster
	}
	if err == nil {
		err = syncFolder(path)
	}
	if e := os.Remove(n.Name()); err == nil {
		err = e
	}
	if err != nil {
		return fmt.Errorf("make overlay %q: %w", path, err)
	}
	return nil
}

// newOverlay makes a file beside path, durably, that has only a header. The
// caller gives it a name, and closes it.
func newOverlay(path string, h *overlay.Header, mode fs.FileMode) (n *os.File, err error) {
	n, err = os.CreateTemp(filepath.Dir(path), "."+filepath.Base(path)+".new-*")
	if err != nil {
		return nil, fmt.Errorf("make overlay %q: %w", path, err)
	}
	defer func() {
		if err != nil {
			_ = n.Close()
			_ = os.Remove(n.Name())
			n, err = nil, fmt.Errorf("make overlay %q: %w", path, err)
		}
	}()
	if err := n.Chmod(mode); err != nil {
		return n, err
	}
	if err := n.Truncate(overlay.LayoutOf(h.Size).End); err != nil {
		return n, err
	}
	f := overlayFile{&file{path: path, fd: int(n.Fd()), align: 1, kernel: linux{}}}
	for range 2 { // both copies have room from now on
		if err := h.Store(f); err != nil {
			return n, err
		}
	}
	return n, n.Sync()
}

// syncFolder makes the names in the folder of path durable.
func syncFolder(path string) error {
	d, err := os.Open(filepath.Dir(path))
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}

// load reads the overlay, which is open and locked, without changing it, and
// returns the size of its disk.
func (c *cow) load(f *file, length int64, o fileOptions) (int64, error) {
	c.file, c.boot = f, o.boot
	if c.boot == [16]byte{} {
		c.boot = identity.ThisBoot()
	}
	if f.device {
		return 0, fmt.Errorf("%w: overlay %q is a block device, and not a file", ErrUsage, f.path)
	}
	h, err := overlay.ReadHeader(overlayFile{f}, length)
	if err != nil {
		return 0, explainOverlay(f.path, err)
	}
	if !h.Frozen.IsZero() {
		return 0, fmt.Errorf("%w: overlay %q is a snapshot: serve the overlay that it belongs to, or roll that back to it", ErrUsage, f.path)
	}
	c.header, c.size, c.layout = h, h.Size, overlay.LayoutOf(h.Size)
	if c.expect != nil {
		if err := c.expect.check(h, f.path); err != nil {
			return 0, err
		}
	}
	if c.top, err = overlay.OpenMap(overlayFile{f}, h, h.Boot == c.boot); err != nil {
		return 0, explainOverlay(f.path, err)
	}
	return h.Size, c.loadSnapshots(o)
}

// explainOverlay says what to do about a file that cannot be used.
func explainOverlay(path string, err error) error {
	advice := ""
	switch {
	case errors.Is(err, overlay.ErrNone):
		err = fmt.Errorf("%w: %w", ErrUsage, err)
		advice = ": give the overlay, or remove the file and add ?create=1"
	case errors.Is(err, overlay.ErrDamaged):
		advice = ": restore it from a backup"
	case errors.Is(err, overlay.ErrVersion):
		advice = ": use a newer one"
	}
	return fmt.Errorf("overlay %q: %w%s", path, err, advice)
}

// check refuses a base that the overlay was not made over, or that changed.
func (b *base) check(h *overlay.Header, path string) error {
	change := ""
	switch {
	case h.Size != b.size:
		change = fmt.Sprintf("has %d bytes instead of %d", b.size, h.Size)
	case h.Base.UUID != b.is.UUID:
		change = "is another disk"
	case h.Base.Modified != b.is.Modified:
		change = "was changed since"
	default:
		return nil
	}
	return fmt.Errorf("%w: overlay %q was made over %q, and base %q %s: give that base as it was, or make a new overlay",
		ErrUsage, path, h.Base.Path, b.path, change)
}

// explain adds to an error what failed.
func (f *file) explain(what string, err error) error {
	if err != nil {
		return fmt.Errorf("%s overlay %q: %w", what, f.path, err)
	}
	return nil
}

// maximumSnapshots bounds the snapshots under an overlay: each costs a lookup
// in its map for a block that no newer one has.
const maximumSnapshots = 32

// loadSnapshots opens the snapshots under the overlay.
func (c *cow) loadSnapshots(o fileOptions) error {
	var layers []*layer
	for parent := c.header.Parent; parent.Name != ""; {
		l, err := c.openSnapshot(parent, o)
		if err != nil {
			return err
		}
		c.lower = append(c.lower, l) // closed with the others
		if layers = append(layers, l); len(layers) > maximumSnapshots {
			return fmt.Errorf("overlay %q: %w: there are more than %d snapshots under it", c.file.path, overlay.ErrDamaged, maximumSnapshots)
		}
		parent = l.header.Parent
	}
	// The base is below.
	c.lower = append(layers, c.lower[:len(c.lower)-len(layers)]...)
	return nil
}

// openSnapshot opens a snapshot that is what its child knows.
func (c *cow) openSnapshot(p overlay.Parent, o fileOptions) (*layer, error) {
	if p.Name != filepath.Base(p.Name) {
		return nil, fmt.Errorf("overlay %q: %w: %q is no name of a snapshot", c.file.path, overlay.ErrDamaged, p.Name)
	}
	path := filepath.Join(filepath.Dir(realPath(c.file.path)), p.Name)
	fd, err := openRetrying(path, unix.O_CLOEXEC|unix.O_RDONLY)
	if err != nil {
		return nil, fmt.Errorf("snapshot %q under overlay %q: %w", path, c.file.path, err)
	}
	l, err := c.loadSnapshot(fd, path, p, o)
	if err != nil {
		_ = unix.Close(fd)
		return nil, err
	}
	return l, nil
}

// loadSnapshot locks a snapshot and reads its map.
func (c *cow) loadSnapshot(fd int, path string, p overlay.Parent, o fileOptions) (*layer, error) {
	if o.lock {
		if err := lockFile(fd, path, true, o.wait); err != nil {
			return nil, err
		}
	}
	f := &file{path: path, fd: fd, align: 1, kernel: c.file.kernel}
	length, err := f.size()
	if err != nil {
		return nil, fmt.Errorf("size of snapshot %q: %w", path, err)
	}
	h, err := overlay.ReadHeader(overlayFile{f}, length)
	switch {
	case err != nil:
	case h.ID != p.ID || h.Size != c.header.Size || h.Base != c.header.Base:
		err = fmt.Errorf("%w: it is not the snapshot that its overlay knows", overlay.ErrDamaged)
	case h.Opens != p.Opens:
		err = fmt.Errorf("%w: a program wrote to it", overlay.ErrDamaged)
	}
	var blocks *overlay.Map
	if err == nil {
		blocks, err = overlay.OpenMap(overlayFile{f}, h, false)
	}
	if err != nil {
		return nil, fmt.Errorf("snapshot %q under overlay %q: %w: restore it from a backup", path, c.file.path, err)
	}
	return &layer{fd: fd, path: path, header: h, blocks: blocks}, nil
}

// realPath returns a path without symbolic links, as far as they can be read.
func realPath(path string) string {
	if real, err := filepath.EvalSymlinks(path); err == nil {
		return real
	}
	return path
}

// read fills p from off of a layer.
func (l *layer) read(k kernel, p []byte, off int64) error {
	f := file{path: l.path, fd: l.fd, kernel: k}
	if err := f.readAll(p, off); err != nil {
		if errors.Is(err, unix.EINVAL) {
			err = unix.EIO // the file became shorter
		}
		return fmt.Errorf("read %q under the overlay: %w", l.path, err)
	}
	return nil
}
