package workload

import (
	"bytes"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"
)

// doTree does an operation to a tree of files.
func doTree(root string, o treeOp) error {
	path, to := filepath.Join(root, o.path), filepath.Join(root, o.to)
	switch o.kind {
	case makeFolder:
		return os.Mkdir(path, 0o755)
	case makeFile:
		f, err := os.OpenFile(path, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o644)
		if err != nil {
			return err
		}
		return f.Close()
	case removeFolder:
		return unix.Rmdir(path)
	case removeFile:
		return unix.Unlink(path)
	case renameNode:
		return unix.Rename(path, to) // over an empty folder too
	case exchangeNodes:
		return unix.Renameat2(unix.AT_FDCWD, path, unix.AT_FDCWD, to, unix.RENAME_EXCHANGE)
	case linkFile:
		return os.Link(path, to)
	case linkName:
		return os.Symlink(o.to, path)
	case truncateFile:
		return os.Truncate(path, o.offset)
	case changeMode:
		return os.Chmod(path, fs.FileMode(o.offset))
	case setAttribute:
		return unix.Setxattr(path, o.to, o.data, 0)
	case removeAttribute:
		return unix.Removexattr(path, o.to)
	case writeFile:
		return writeAt(path, o.data, o.offset)
	case syncFile, syncFolder:
		return syncPath(path)
	}
	return nil // what is only looked at
}

func writeAt(path string, p []byte, off int64) error {
	f, err := os.OpenFile(path, os.O_WRONLY, 0)
	if err != nil {
		return err
	}
	defer f.Close()
	if _, err := f.WriteAt(p, off); err != nil {
		return err
	}
	return f.Close()
}

func syncPath(path string) error {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	defer f.Close()
	return f.Sync()
}

// checkTree compares a tree with a model.
func checkTree(root string, tree *node) (err error) {
	inodes := make(map[*node]uint64)
	nodes := make(map[uint64]*node)
	tree.walk(".", func(p string, n *node) {
		if err != nil {
			return
		}
		if err = checkNode(root, p, n); err != nil {
			return
		}
		var st unix.Stat_t
		if err = unix.Lstat(filepath.Join(root, p), &st); err != nil {
			return
		}
		if was, ok := inodes[n]; ok && was != st.Ino {
			err = fmt.Errorf("%s: is inode %d, not %d", p, st.Ino, was)
		}
		if was, ok := nodes[st.Ino]; ok && was != n {
			err = fmt.Errorf("%s: has the inode of another file", p)
		}
		inodes[n], nodes[st.Ino] = st.Ino, n
	})
	return err
}

// checkNode compares what is at a path with the model, and of a folder the
// names.
func checkNode(root, p string, n *node) error {
	path := filepath.Join(root, p)
	var st unix.Stat_t
	if err := unix.Lstat(path, &st); err != nil {
		return fmt.Errorf("%s: %w", p, err)
	}
	info, err := os.Lstat(path)
	if err != nil {
		return err
	}
	if info.Mode().Type() != n.kind {
		return fmt.Errorf("%s: is %v, not %v", p, info.Mode().Type(), n.kind)
	}
	if n.kind == fs.ModeSymlink {
		return same(p, "target", n.target, func() (string, error) { return os.Readlink(path) })
	}
	if info.Mode().Perm() != n.mode {
		return fmt.Errorf("%s: has mode %v, not %v", p, info.Mode().Perm(), n.mode)
	}
	if err := same(p, "attributes", fmt.Sprint(n.attributes), func() (string, error) { return attributes(path) }); err != nil {
		return err
	}
	if n.kind == fs.ModeDir {
		names := strings.Join(slices.Sorted(maps.Keys(n.children)), " ")
		return same(p, "names", names, func() (string, error) { return listed(path) })
	}
	if int(st.Nlink) != n.links {
		return fmt.Errorf("%s: has %d names, not %d", p, st.Nlink, n.links)
	}
	data, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	if !bytes.Equal(data, n.data) {
		i := 0
		for i < min(len(data), len(n.data)) && data[i] == n.data[i] {
			i++
		}
		return fmt.Errorf("%s: has %#x bytes, to be %#x, that are wrong from %#x on", p, len(data), len(n.data), i)
	}
	return nil
}

// same compares something of a file as text.
func same(p, what, want string, get func() (string, error)) error {
	got, err := get()
	if err != nil {
		return fmt.Errorf("%s: %s: %w", p, what, err)
	}
	if got != want {
		return fmt.Errorf("%s: %s are %.200q, not %.200q", p, what, got, want)
	}
	return nil
}

func listed(path string) (string, error) {
	entries, err := os.ReadDir(path)
	var names []string
	for _, e := range entries {
		names = append(names, e.Name())
	}
	return strings.Join(names, " "), err
}

// attributes returns the extended attributes, as fmt prints a map of them.
func attributes(path string) (string, error) {
	list := make([]byte, 4096)
	n, err := unix.Listxattr(path, list)
	if err != nil {
		return "", err
	}
	found := make(map[string]string)
	for name := range strings.SplitSeq(string(list[:n]), "\x00") {
		if !strings.HasPrefix(name, "user.") {
			continue
		}
		value := make([]byte, 2*valueLimit)
		n, err := unix.Getxattr(path, name, value)
		if err != nil {
			return "", fmt.Errorf("%s: %w", name, err)
		}
		found[name] = string(value[:n])
	}
	return fmt.Sprint(found), nil
}
