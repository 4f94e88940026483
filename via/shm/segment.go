package shm

import (
	"fmt"

	"golang.org/x/sys/unix"

	"github.com/viablk/viablk/internal/memfd"
)

// Layout of a segment. Each word that both ends access has its own cache line;
// the owner writes, the peer reads. These words share a page with the start of
// the ring, which often is the only part in use: with many connections, TLB
// entries are scarce.
const (
	segMagic      = 0x32304d4853414956 // "VIASHM02"
	offMagic      = 0                  // u64
	offRing       = 8                  // u64, bytes of the ring
	offKeepalives = 64                 // u64, counts keepalives without a message; 0 in older builds
	offRegions    = 4096               // table of exposed regions

	offHot     = offRegions + maxRegions*regionEntry
	offTail    = offHot       // u64, bytes published in the owner's ring
	offHead    = offHot + 64  // u64, bytes consumed of the peer's ring
	offWants   = offHot + 128 // u64, sleep epoch or flag << 2 | wants bits
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

	wantShared = 1 << 63 // the sleep flag says whether to wake me

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
	mem, fd, err := memfd.Create("viablk-segment", segmentSize, unix.F_SEAL_FUTURE_WRITE)
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
	mem, err := memfd.MapPeer(fd, segmentSize, unix.PROT_READ)
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
