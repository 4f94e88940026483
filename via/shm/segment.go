package shm

import (
	"errors"
	"fmt"

	"golang.org/x/sys/unix"
)

// Layout of a segment. Each word that both ends access has its own cache line;
// the owner writes, the peer reads. These words share a page with the start of
// the ring, which often is the only part in use: with many connections, TLB
// entries are scarce.
const (
	segMagic   = 0x32304d4853414956 // "VIASHM02"
	offMagic   = 0                  // u64
	offRing    = 8                  // u64, bytes of the ring
	offRegions = 4096               // table of exposed regions

	offHot     = offRegions + maxRegions*regionEntry
	offTail    = offHot       // u64, bytes published in the owner's ring
	offHead    = offHot + 64  // u64, bytes consumed of the peer's ring
	offWants   = offHot + 128 // u64, sleep epoch << 2 | wants bits
	offHazard  = offHot + 192 // u64, region of the peer under access, 0 if none
	offRecords = offHot + 256 // the ring

	maxRegions  = 8192
	regionEntry = 64 // bytes

	offEntryWord   = 0  // u64, handle << 32 | access bits | entryLive
	offEntryAddr   = 8  // u64
	offEntryLength = 16 // u64
	offEntryArena  = 24 // u64, number of the arena
	offEntryAt     = 32 // u64, offset of the region in its arena

	entryLive  = 1
	entryWrite = 2
	entryRead  = 4

	wantData  = 1 // wake me when you publish
	wantSpace = 2 // wake me when you consume
	wantShift = 2

	ringSize    = 256 << 10 // bytes, power of two
	segmentSize = (offRecords + ringSize + 4095) &^ 4095
)

// segment is one end's shared memory.
type segment struct {
	mem []byte
	fd  int // the owner's; -1 once passed on or for a peer's segment
}

// newSegment makes a segment that its owner can write and others only read.
func newSegment() (*segment, error) {
	mem, fd, err := mapMemfd("viablk-segment", segmentSize, unix.F_SEAL_FUTURE_WRITE)
	if err != nil {
		return nil, fmt.Errorf("create segment: %w", err)
	}
	populate(mem, unix.MADV_POPULATE_WRITE)
	s := &segment{mem: mem, fd: fd}
	storeWord(mem, offMagic, segMagic)
	storeWord(mem, offRing, ringSize)
	return s, nil
}

// attachSegment maps a peer's segment read-only. It closes fd.
func attachSegment(fd int) (*segment, error) {
	mem, err := mapPeer(fd, segmentSize, unix.PROT_READ)
	if err != nil {
		return nil, fmt.Errorf("map the peer's segment: %w", err)
	}
	if loadWord(mem, offMagic) != segMagic || loadWord(mem, offRing) != ringSize {
		_ = unix.Munmap(mem)
		return nil, fmt.Errorf("map the peer's segment: not a segment of this version")
	}
	populate(mem, unix.MADV_POPULATE_READ)
	return &segment{mem: mem, fd: -1}, nil
}

// populate maps the hot page of a segment. Without it, as on older kernels, the
// first access is a page fault.
func populate(mem []byte, advice int) { _ = unix.Madvise(mem[offHot:offHot+4096], advice) }

func (s *segment) ring() []byte { return s.mem[offRecords : offRecords+ringSize] }

// seal closes the owner's file descriptor once the peer has it.
func (s *segment) seal() {
	_ = unix.Close(s.fd)
	s.fd = -1
}

func (s *segment) close() {
	if s == nil || s.mem == nil {
		return
	}
	if s.fd >= 0 {
		_ = unix.Close(s.fd)
	}
	_ = unix.Munmap(s.mem)
	s.mem = nil
}

// sizeSeals fix a memfd's size: without them a peer could truncate the file and
// the next access would be a fatal SIGBUS.
const sizeSeals = unix.F_SEAL_SHRINK | unix.F_SEAL_GROW | unix.F_SEAL_SEAL

// mapMemfd creates, maps and seals a memfd.
func mapMemfd(name string, size int, seals int) ([]byte, int, error) {
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
	if _, err := unix.FcntlInt(uintptr(fd), unix.F_ADD_SEALS, sizeSeals|seals); err != nil {
		_ = unix.Munmap(mem)
		return fail("seal memfd", err)
	}
	return mem, fd, nil
}

// mapPeer maps a memfd that a peer passed, after it checked that the memfd has
// the given size and is sealed. It closes fd.
func mapPeer(fd, size, prot int) ([]byte, error) {
	defer func() { _ = unix.Close(fd) }()
	seals, err := unix.FcntlInt(uintptr(fd), unix.F_GET_SEALS, 0)
	if err != nil {
		return nil, fmt.Errorf("not a memfd: %w", err)
	}
	if seals&sizeSeals != sizeSeals {
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
