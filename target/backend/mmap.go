package backend

import (
	"errors"
	"fmt"
	"sync"

	"github.com/viablk/viablk/internal/block"
	"golang.org/x/sys/unix"
)

// mapped is a file whose reads may come straight from the page cache:
// `mmap:PATH[?OPTION=VALUE&…]`, with the options of `file:` but for direct
// and io.
//
// It adds a read-only mapping to the file ([block.FileMapped]). Writes, flushes
// and reads of pages outside memory go to the file, with its errnos; both share
// the page cache, so that the mapping shows writes. The mapping keeps no page
// in memory, and another process may truncate the file: a reader of the mapping
// calls [mapped.Resident] first.
//
// It stays mapped while a queue is open: memory of it may be registered with a
// NIC for as long, and a later mapping at its address belongs to other code.
type mapped struct {
	*file
	mapping []byte

	mu sync.Mutex
	// +checklocks:mu
	queues int  // open; +checklocks:mu
	closed bool // +checklocks:mu
}

// parseMap reads PATH[?OPTION=VALUE&…].
func parseMap(rest string) (Opener, error) {
	path, o, err := parseFileSpec("mmap", rest)
	if err != nil {
		return nil, err
	}
	return func(options Options) (block.Device, error) { return openMapped(path, o.with(options)) }, nil
}

// openMapped opens and maps a file.
func openMapped(path string, o fileOptions) (block.Device, error) {
	d, err := openFile(path, o, linux{})
	if err != nil {
		return nil, err
	}
	f := d.(*file)
	if f.info.Size != int64(int(f.info.Size)) {
		return nil, errors.Join(fmt.Errorf("%w: backing file %q: %d bytes are more than this machine can address",
			ErrUsage, path, f.info.Size), f.Close())
	}
	mapping, err := unix.Mmap(f.fd, 0, int(f.info.Size), unix.PROT_READ, unix.MAP_SHARED)
	if err != nil {
		return nil, errors.Join(fmt.Errorf("map backing file %q: %w", path, err), f.Close())
	}
	return &mapped{file: f, mapping: mapping}, nil
}

// Info implements [block.Device]. The size is that of the mapping: a file that
// grows is mapped as a whole when it is opened the next time.
func (m *mapped) Info() block.Info { return m.info }

// Mapping is [block.FileMapped].
func (m *mapped) Mapping() []byte { return m.mapping }

// residentStep is how many pages are asked about at a time.
const residentStep = 512

// Resident is [block.FileMapped]. The page that holds the end of a regular file
// is in memory as a whole, and zeroes behind the end: so the size counts as
// well, and is looked at last, because a copy follows.
func (m *mapped) Resident(off, n int64) bool {
	if !m.present(off, n) {
		return false
	}
	if m.device {
		return true
	}
	size, err := m.kernel.size(m.fd)
	return err == nil && off+n <= size
}

// present reports whether all pages of a range are in memory.
func (m *mapped) present(off, n int64) bool {
	page := int64(unix.Getpagesize())
	end := min(off+n, int64(len(m.mapping)))
	var present [residentStep]byte
	for at := off &^ (page - 1); at < end; at += residentStep * page {
		part := m.mapping[at:min(at+residentStep*page, end)]
		pages := (len(part) + int(page) - 1) / int(page)
		if !resident(part, &present) {
			return false
		}
		for _, p := range present[:pages] {
			if p&1 == 0 {
				return false
			}
		}
	}
	return true
}

// NewQueue is [block.Device].
func (m *mapped) NewQueue(depth int) (block.Queue, error) {
	if !m.retain() {
		return nil, fmt.Errorf("open queue of %q: %w", m.path, unix.EBADF)
	}
	q, err := m.file.NewQueue(depth)
	if err != nil {
		m.release()
		return nil, err
	}
	return &mappedQueue{Queue: q, disk: m}, nil
}

// retain counts a queue. It returns false if the disk is closed.
func (m *mapped) retain() bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.closed {
		return false
	}
	m.queues++
	return true
}

func (m *mapped) release() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.queues--
}

// mappedQueue keeps its disk mapped until it is closed.
type mappedQueue struct {
	block.Queue
	disk *mapped
	once sync.Once
}

// Close is [block.Queue].
func (q *mappedQueue) Close() error {
	err := q.Queue.Close()
	q.once.Do(q.disk.release)
	return err
}

// Close unmaps the file and closes it. While queues are open it does neither
// and returns an error with errno EBUSY; it may be called again.
func (m *mapped) Close() error {
	m.mu.Lock()
	if m.queues > 0 {
		n := m.queues
		m.mu.Unlock()
		return fmt.Errorf("unmap backing file %q: %d queues are open: %w", m.path, n, unix.EBUSY)
	}
	first := !m.closed
	m.closed = true
	m.mu.Unlock()
	var err error
	if first {
		err = unix.Munmap(m.mapping)
		m.mapping = nil
	}
	return errors.Join(err, m.file.Close())
}
