// Package memfd makes memory that processes share, and maps what a peer shares
// once it is safe to.
package memfd

import (
	"errors"
	"fmt"

	"golang.org/x/sys/unix"
)

// SizeSeals fix a memfd's size: without them a peer could truncate the file and
// the next access would be a fatal SIGBUS.
const SizeSeals = unix.F_SEAL_SHRINK | unix.F_SEAL_GROW | unix.F_SEAL_SEAL

// Create creates, maps and seals a memfd of a size in bytes, with SizeSeals and
// others. The caller owns the mapping and the descriptor.
func Create(name string, size int, seals int) ([]byte, int, error) {
	fd, err := unix.MemfdCreate(name, unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING)
	if err != nil {
		return nil, -1, fmt.Errorf("memfd_create: %w", err)
	}
	fail := func(what string, err error) ([]byte, int, error) {
		_ = unix.Close(fd)
		return nil, -1, fmt.Errorf("%s: %w", what, err)
	}
	if err := unix.Ftruncate(fd, int64(size)); err != nil {
		return fail("size memfd", err)
	}
	mem, err := unix.Mmap(fd, 0, size, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		return fail("map memfd", err)
	}
	if _, err := unix.FcntlInt(uintptr(fd), unix.F_ADD_SEALS, SizeSeals|seals); err != nil {
		_ = unix.Munmap(mem)
		return fail("seal memfd", err)
	}
	return mem, fd, nil
}

// MapPeer maps a memfd that a peer passed, after it checked that the memfd has
// the given size in bytes and is sealed. It closes fd. The caller owns the
// mapping.
func MapPeer(fd, size, prot int) ([]byte, error) {
	defer func() { _ = unix.Close(fd) }()
	seals, err := unix.FcntlInt(uintptr(fd), unix.F_GET_SEALS, 0)
	if err != nil {
		return nil, fmt.Errorf("not a memfd: %w", err)
	}
	if seals&SizeSeals != SizeSeals {
		return nil, fmt.Errorf("memfd is not sealed against resizing")
	}
	// Seals exist on hugetlbfs, too, where a page may be missing: SIGBUS again.
	var fs unix.Statfs_t
	if err := unix.Fstatfs(fd, &fs); err != nil || fs.Type != unix.TMPFS_MAGIC {
		return nil, fmt.Errorf("memfd of file system %#x: %w", fs.Type, errors.Join(err, unix.EINVAL))
	}
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return nil, fmt.Errorf("stat memfd: %w", err)
	}
	if st.Size != int64(size) {
		return nil, fmt.Errorf("memfd has %d bytes, not %d", st.Size, size)
	}
	mem, err := unix.Mmap(fd, 0, size, prot, unix.MAP_SHARED)
	if err != nil {
		return nil, fmt.Errorf("map memfd: %w", err)
	}
	return mem, nil
}
