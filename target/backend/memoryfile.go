package backend

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math/bits"
	"os"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/viablk/viablk/internal/block"
	"golang.org/x/sys/unix"
)

// memoryFile is the content of a disk in memory: a file without a name
// (memfd_create(2)), of which a process that takes over gets a descriptor. It
// ends with its last descriptor.
//
//	0        header: version, size, the identity of the disk, and the
//	         checksums that it has
//	64 KiB   a bit for each 4 KiB of the disk, set if they may hold data
//	         the disk, at the next multiple of 64 KiB
//
// A unit without a bit is zeroes, and is not accessed: a load would allocate
// memory. Bits of a range change while it is held for writing, and are read
// while it is held.
type memoryFile struct {
	fd      int
	mapping []byte
	bits    []uint64 // accessed atomically: a word has units of several ranges
	disk    []byte
	offset  int64 // of the disk, in the file
	whole   bool  // the kernel promises no memory later: all of it is allocated

	uuid     [16]byte
	verifier uint64
	unkept   atomic.Bool // a change, which no checksums have, has to void those of before

	mu sync.Mutex
	// +checklocks:mu
	writer block.Writer
	// +checklocks:mu
	sums [16]byte // see keptBy
	// +checklocks:mu
	header []byte // nil when closed
}

const (
	memoryUnit   = 4096
	memoryAlign  = 64 << 10 // the largest page of any machine
	memoryMagic  = "viablkM1"
	wordSize     = 8
	unitsPerWord = 64
)

// Where the fields of the header are; numbers are little-endian.
const (
	memoryAtSize       = 8
	memoryAtUUID       = 16
	memoryAtVerifier   = 32
	memoryAtWriter     = 40
	memoryAtGeneration = 56
	memoryAtSums       = 64
)

// memorySeals keep the size of the file: an access behind the end of a file
// kills the process.
const memorySeals = unix.F_SEAL_SHRINK | unix.F_SEAL_GROW | unix.F_SEAL_SEAL

// memoryLayout returns where in the file the disk begins, and the size of the
// file, in bytes.
func memoryLayout(size int64) (offset, total int64) {
	up := func(n int64) int64 { return (n + memoryAlign - 1) &^ (memoryAlign - 1) }
	units := (size + memoryUnit - 1) / memoryUnit
	offset = memoryAlign + up((units+unitsPerWord-1)/unitsPerWord*wordSize)
	return offset, offset + up(size)
}

// createMemory makes the file of a disk of zeroes.
func createMemory(size int64) (*memoryFile, error) {
	offset, total := memoryLayout(size)
	fd, err := unix.MemfdCreate("viablk disk", unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING|unix.MFD_NOEXEC_SEAL)
	if err == unix.EINVAL { // Linux before 6.3
		fd, err = unix.MemfdCreate("viablk disk", unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING)
	}
	if err != nil {
		return nil, os.NewSyscallError("make memory", err)
	}
	f := &memoryFile{fd: fd, offset: offset, whole: overcommitsNever()}
	err = unix.Ftruncate(fd, total)
	if err == nil && f.whole {
		err = unix.Fallocate(fd, 0, 0, total)
	}
	if err == nil {
		_, err = unix.FcntlInt(uintptr(fd), unix.F_ADD_SEALS, memorySeals)
	}
	if err == nil {
		err = f.mapAll(size, total)
	}
	if err != nil {
		_ = unix.Close(fd)
		return nil, err
	}
	f.format(size, block.NewIdentity())
	return f, nil
}

// overcommitsNever reports whether the kernel refuses memory that it may not
// have (vm.overcommit_memory=2), which it does for an access with a signal that
// ends the process.
func overcommitsNever() bool {
	mode, err := os.ReadFile("/proc/sys/vm/overcommit_memory")
	return err == nil && strings.TrimSpace(string(mode)) == "2"
}

// adoptMemory opens the file of another process, and owns the descriptor unless
// there is an error.
func adoptMemory(fd int, size int64) (*memoryFile, error) {
	offset, total := memoryLayout(size)
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return nil, os.NewSyscallError("stat memory", err)
	}
	seals, err := unix.FcntlInt(uintptr(fd), unix.F_GET_SEALS, 0)
	if err != nil || seals&memorySeals != memorySeals {
		return nil, errors.New("it is no memory of a disk")
	}
	header := make([]byte, memoryAtUUID)
	if _, err := unix.Pread(fd, header, 0); err != nil {
		return nil, os.NewSyscallError("read memory", err)
	}
	before := binary.LittleEndian.Uint64(header[memoryAtSize:])
	switch {
	case string(header[:memoryAtSize]) != memoryMagic:
		return nil, errors.New("it is of another version of viablk")
	case before != uint64(size):
		return nil, fmt.Errorf("%w: it has %d bytes, and memory:%d was asked for: give it the same size", ErrUsage, before, size)
	case st.Size != total:
		return nil, fmt.Errorf("it has %d bytes instead of %d", st.Size, total)
	}
	f := &memoryFile{fd: fd, offset: offset, whole: overcommitsNever()}
	if f.whole {
		if err := unix.Fallocate(fd, 0, 0, total); err != nil {
			return nil, os.NewSyscallError("allocate memory", err)
		}
	}
	if err := f.mapAll(size, total); err != nil {
		return nil, err
	}
	f.identify()
	return f, nil
}

// mapAll maps the file.
func (f *memoryFile) mapAll(size, total int64) (err error) {
	f.mapping, err = unix.Mmap(f.fd, 0, int(total), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED|unix.MAP_NORESERVE)
	if err != nil {
		return os.NewSyscallError("map memory", err)
	}
	f.bits = words(f.mapping[memoryAlign:f.offset:f.offset])
	f.disk = f.mapping[f.offset : f.offset+size : f.offset+size]
	f.mu.Lock()
	defer f.mu.Unlock()
	f.header = f.mapping[:memoryAlign:memoryAlign]
	return nil
}

// visit calls f with the bits of each word of a range that is not empty, until
// it returns false.
func (f *memoryFile) visit(off, n int64, see func(word *uint64, mask uint64) bool) bool {
	first, last := uint64(off/memoryUnit), uint64((off+n-1)/memoryUnit)
	for i := first / unitsPerWord; i <= last/unitsPerWord; i++ {
		mask := ^uint64(0)
		if i == first/unitsPerWord {
			mask <<= first % unitsPerWord
		}
		if i == last/unitsPerWord {
			mask &= ^uint64(0) >> (unitsPerWord - 1 - last%unitsPerWord)
		}
		if !see(&f.bits[i], mask) {
			return false
		}
	}
	return true
}

// full reports whether all of a range has bits.
func (f *memoryFile) full(off, n int64) bool {
	return f.visit(off, n, func(word *uint64, mask uint64) bool { return atomic.LoadUint64(word)&mask == mask })
}

// empty reports whether nothing of a range has a bit.
func (f *memoryFile) empty(off, n int64) bool {
	return f.visit(off, n, func(word *uint64, mask uint64) bool { return atomic.LoadUint64(word)&mask == 0 })
}

// occupy gives all of a range bits.
func (f *memoryFile) occupy(off, n int64) {
	f.visit(off, n, func(word *uint64, mask uint64) bool {
		if atomic.LoadUint64(word)&mask != mask {
			atomic.OrUint64(word, mask)
		}
		return true
	})
}

// run returns how many units from one on, and before end, have a bit, or have
// none.
func (f *memoryFile) run(first, end int64) (n int64, occupied bool) {
	occupied = atomic.LoadUint64(&f.bits[first/unitsPerWord])>>(first%unitsPerWord)&1 != 0
	for at := first; at < end; {
		word := atomic.LoadUint64(&f.bits[at/unitsPerWord]) >> (at % unitsPerWord)
		if occupied {
			word = ^word
		}
		left := unitsPerWord - at%unitsPerWord
		same := min(int64(bits.TrailingZeros64(word)), left)
		if at += same; same < left {
			return min(at, end) - first, occupied
		}
	}
	return end - first, occupied
}

// read copies a range of the disk.
func (f *memoryFile) read(p []byte, off int64) {
	if f.full(off, int64(len(p))) {
		copy(p, f.disk[off:])
		return
	}
	for end := off + int64(len(p)); off < end; {
		first := off / memoryUnit
		units, occupied := f.run(first, (end+memoryUnit-1)/memoryUnit)
		n := min((first+units)*memoryUnit, end) - off
		if occupied {
			copy(p[:n], f.disk[off:])
		} else {
			clear(p[:n])
		}
		off, p = off+n, p[n:]
	}
}

// write changes a range of the disk.
func (f *memoryFile) write(p []byte, off int64) {
	f.occupy(off, int64(len(p)))
	copy(f.disk[off:], p)
}

// zero clears a range. Units that lie in it have no bit then, and their pages
// go back to the kernel, unless keep is set.
func (f *memoryFile) zero(off, n int64, keep bool) {
	end := off + n
	first, last := (off+memoryUnit-1)&^(memoryUnit-1), end&^(memoryUnit-1)
	if end == int64(len(f.disk)) {
		last = (end + memoryUnit - 1) &^ (memoryUnit - 1) // nothing lives behind the end
	}
	switch {
	case keep:
		f.occupy(off, n)
		clear(f.disk[off:end])
	case f.empty(off, n):
	case first >= last:
		clear(f.disk[off:end])
	default:
		clear(f.disk[off:first])
		f.free(first, last)
		if last < end {
			clear(f.disk[last:end])
		}
	}
}

// free clears whole units, and their bits.
func (f *memoryFile) free(off, end int64) {
	page := int64(os.Getpagesize())
	first, last := (off+page-1)&^(page-1), end&^(page-1)
	size := int64(len(f.disk))
	if f.whole || first >= last || unix.Fallocate(f.fd, unix.FALLOC_FL_PUNCH_HOLE|unix.FALLOC_FL_KEEP_SIZE, f.offset+first, last-first) != nil {
		first, last = end, end
	}
	clear(f.disk[off:min(first, size)])
	if last < size {
		clear(f.disk[last:min(end, size)])
	}
	f.visit(off, end-off, func(word *uint64, mask uint64) bool {
		atomic.AndUint64(word, ^mask)
		return true
	})
}

// unitsPerStatus bounds the units that one request is told of, because others
// of its queue wait meanwhile.
const unitsPerStatus = 1 << 20

// status answers which parts of a range have bits.
func (f *memoryFile) status(r *block.Request) {
	first, end := r.Offset/memoryUnit, (r.Offset+r.Length+memoryUnit-1)/memoryUnit
	for off, last := r.Offset, min(end, first+unitsPerStatus); first < last; {
		n, occupied := f.run(first, last)
		flags := block.Hole | block.Zero
		if occupied {
			flags = 0
		}
		first += n
		if !r.AddExtent(first*memoryUnit-off, flags) {
			return
		}
		off = first * memoryUnit
	}
}

// close unmaps and closes the file, which held forgets before: it may be nil.
// Calls after the first do nothing.
func (f *memoryFile) close(held *Held) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.header == nil {
		return nil
	}
	held.remove(f.fd)
	err := errors.Join(os.NewSyscallError("unmap memory", unix.Munmap(f.mapping)), os.NewSyscallError("close memory", unix.Close(f.fd)))
	f.mapping, f.header, f.bits, f.disk = nil, nil, nil, nil
	return err
}
