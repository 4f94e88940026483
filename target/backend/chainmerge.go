package backend

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/viablk/viablk/target/backend/overlay"
	"github.com/viablk/viablk/target/identity"
	"golang.org/x/sys/unix"
)

// Delete deletes a snapshot. Blocks that the next newer one, or the overlay,
// reads of it are copied there: every other one stays what it is.
func (c *Chain) Delete(name string) error {
	i, path, err := c.snapshot(name)
	if errors.Is(err, ErrNoSnapshot) && c.unused(path) {
		return errors.Join(c.names.remove(path), c.names.sync(path))
	}
	if err != nil {
		return err
	}
	child, err := c.child(i)
	if err == nil {
		err = child.absorb(c.cow.lower[i])
	}
	if err == nil && i == 0 {
		err = identity.Succeed(c.identity(c.file.fd), c.identity(c.file.fd), false)
	}
	if child != nil && i > 0 {
		_ = unix.Close(child.file.fd) // what was written is durable, or failed
	}
	if err == nil {
		err = c.names.remove(path)
	}
	if err == nil {
		err = c.names.sync(path)
	}
	if err != nil {
		return fmt.Errorf("delete snapshot %q of %q: %w", name, c.file.path, err)
	}
	return nil
}

// unused reports whether a file is a snapshot of this disk that no overlay
// needs.
func (c *Chain) unused(path string) bool {
	h, _, err := headerOf(path)
	return err == nil && h.Size == c.cow.size && h.Base == c.cow.header.Base
}

// child returns what is over a snapshot, open for writing.
func (c *Chain) child(i int) (*cow, error) {
	if i == 0 {
		return c.cow, nil
	}
	l := c.cow.lower[i-1]
	fd, err := openRetrying(l.path, unix.O_CLOEXEC|unix.O_RDWR)
	if err != nil {
		return nil, fmt.Errorf("snapshot %q: %w", l.path, err)
	}
	f := &file{path: l.path, fd: fd, align: 1, kernel: c.file.kernel}
	child := &cow{file: f, layout: c.cow.layout, size: c.cow.size, header: l.header}
	if child.top, err = overlay.OpenMap(overlayFile{f}, l.header, false); err != nil {
		_ = unix.Close(fd)
		return nil, f.explain("read", err)
	}
	return child, nil
}

// absorb copies what only the snapshot under an overlay has, and takes the
// snapshot out of the chain.
func (c *cow) absorb(l *layer) error {
	c.header.Clean = false
	if err := c.store(); err != nil {
		return err
	}
	last := c.layout.Blocks - 1
	for block := int64(0); block <= last; {
		n, has := l.blocks.Run(block, last)
		if has {
			var mine bool
			if n, mine = c.top.Run(block, block+n-1); !mine {
				if err := c.copyBlocks(l, block, n); err != nil {
					return err
				}
			}
		}
		block += n
	}
	if err := c.top.Save(c.file.fdatasync); err != nil {
		return c.file.explain("save", err)
	}
	c.header.Parent, c.header.Clean = l.header.Parent, true
	return c.store()
}

// copyBlocks copies n blocks of a layer, with its holes.
func (c *cow) copyBlocks(l *layer, block, n int64) error {
	off := block * overlay.BlockSize
	end := min(off+n*overlay.BlockSize, c.size)
	if err := c.file.zero(off, end-off, 0); err != nil { // of data that a crash left there
		return c.file.explain("write", err)
	}
	p := make([]byte, min(end-off, bounceSize))
	for {
		data, err := nextData(c.file.kernel, l.fd, off)
		if err != nil {
			return fmt.Errorf("read %q: %w", l.path, err)
		}
		if off = max(off, data&^(overlay.BlockSize-1)); off >= end {
			break
		}
		part := p[:min(int64(len(p)), end-off)]
		if err := l.read(c.file.kernel, part, off); err != nil {
			return err
		}
		if err := c.file.writeAll(part, off, false); err != nil {
			return c.file.explain("write", err)
		}
		off += int64(len(part))
	}
	c.top.Add(block, block+n-1)
	return nil
}

// Snapshots returns the snapshots of an overlay, the newest first. A target may
// serve it.
func Snapshots(path string) ([]Snapshot, error) {
	path = realPath(path)
	h, _, err := headerOf(path)
	if err != nil {
		return nil, explainOverlay(path, err)
	}
	var all []Snapshot
	used := make(map[string]bool)
	base, id := h.Base, h.ID
	for h.Parent.Name != "" && len(all) <= maximumSnapshots {
		file := filepath.Join(filepath.Dir(path), filepath.Base(h.Parent.Name))
		used[file] = true
		s := Snapshot{Name: snapshotName(file), Created: h.Created}
		if h, s.Bytes, err = headerOf(file); err != nil {
			return nil, fmt.Errorf("snapshot %q: %w", file, err)
		}
		if !h.Frozen.IsZero() {
			s.Created = h.Frozen
		}
		all = append(all, s)
	}
	folder, err := os.ReadDir(filepath.Dir(path))
	if err != nil {
		return nil, fmt.Errorf("snapshots of %q: %w", path, err)
	}
	for _, entry := range folder {
		file := filepath.Join(filepath.Dir(path), entry.Name())
		name := snapshotName(file)
		if used[file] || file != path+"@"+name || !nameOfSnapshot.MatchString(name) {
			continue
		}
		// One that belongs to another disk, or has the overlay's own file, is not
		// shown by its size.
		other, bytes, err := headerOf(file)
		if err == nil && other.Base == base {
			if other.ID == id {
				bytes = 0
			}
			all = append(all, Snapshot{Name: name, Created: other.Frozen, Bytes: bytes, Unused: true})
		}
	}
	return all, nil
}

// headerOf returns the header of an overlay, and what its file takes in bytes.
func headerOf(path string) (*overlay.Header, int64, error) {
	fd, err := openRetrying(path, unix.O_CLOEXEC|unix.O_RDONLY)
	if err != nil {
		return nil, 0, &fs.PathError{Op: "open", Path: path, Err: err}
	}
	defer unix.Close(fd)
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return nil, 0, fmt.Errorf("%q: %w", path, err)
	}
	h, err := overlay.ReadHeader(overlayFile{&file{path: path, fd: fd, align: 1, kernel: linux{}}}, st.Size)
	return h, st.Blocks * 512, err
}
