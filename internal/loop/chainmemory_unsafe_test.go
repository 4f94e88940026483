//go:build !race

package loop_test

import (
	"sync/atomic"
	"unsafe"

	"golang.org/x/sys/unix"
)

// chainMemory is what a relay and its worker share.
type chainMemory struct {
	pairs [chainLinks]chainPair
	data  [chainLinks][chainDepth][chainBytes]byte
}

// chainPair joins one thread of the relay with one of the worker.
type chainPair struct {
	requests, replies           chainRing
	workerSleeps, relaySleeps   atomic.Bool
	workerPadding, relayPadding [64]byte
}

// chainRing has room for all requests of all connections.
type chainRing struct {
	tail    atomic.Uint32
	padding [60]byte
	entries [chainLinks * chainDepth]chainEntry
}

// chainEntry is a request, or its reply.
type chainEntry struct {
	offset   uint64
	length   uint32
	link, id uint8
	write    bool
}

// mapChainMemory maps the memfd, which is as large as chainMemory.
func mapChainMemory(fd int) (*chainMemory, error) {
	if err := unix.Ftruncate(fd, int64(unsafe.Sizeof(chainMemory{}))); err != nil {
		return nil, err
	}
	p, err := unix.Mmap(fd, 0, int(unsafe.Sizeof(chainMemory{})), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		return nil, err
	}
	// Safety: the mapping has the size of the type, which has no pointers, and
	// is never unmapped.
	return (*chainMemory)(unsafe.Pointer(unsafe.SliceData(p))), nil
}

// waitEvents is epoll_wait. If the Go scheduler is told, it gives the P of a
// thread that sleeps to others meanwhile.
func waitEvents(set int, events []unix.EpollEvent, timeout int, told bool) int {
	if told {
		n, _ := unix.EpollWait(set, events, timeout)
		return max(n, 0)
	}
	// Safety: the kernel writes at most len(events) events during the call.
	n, _, e := unix.RawSyscall6(unix.SYS_EPOLL_PWAIT, uintptr(set), uintptr(unsafe.Pointer(unsafe.SliceData(events))),
		uintptr(len(events)), uintptr(timeout), 0, 0)
	if e != 0 {
		return 0 // a signal of the runtime
	}
	return int(n)
}

// waitBell reads an eventfd; see waitEvents. It may return early.
func waitBell(fd int, told bool) {
	var count [8]byte
	if told {
		_, _ = unix.Read(fd, count[:])
		return
	}
	// Safety: the kernel writes 8 bytes during the call.
	_, _, _ = unix.RawSyscall(unix.SYS_READ, uintptr(fd), uintptr(unsafe.Pointer(&count)), 8)
}
