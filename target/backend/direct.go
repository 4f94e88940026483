package backend

import (
	"fmt"
	"sync"

	"golang.org/x/sys/unix"
)

// bounceSize is the bytes of a bounce buffer.
const bounceSize = 1 << 20

// bounces are aligned buffers for direct I/O on memory that is not aligned.
// There are as many as were ever needed at a time, at most one per worker.
type bounces struct {
	mu   sync.Mutex
	idle [][]byte
}

func (b *bounces) acquire() ([]byte, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if n := len(b.idle); n > 0 {
		p := b.idle[n-1]
		b.idle = b.idle[:n-1]
		return p, nil
	}
	p, err := unix.Mmap(-1, 0, bounceSize, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS)
	if err != nil {
		return nil, fmt.Errorf("map a bounce buffer: %w", err)
	}
	return p, nil
}

func (b *bounces) release(p []byte) {
	b.mu.Lock()
	b.idle = append(b.idle, p)
	b.mu.Unlock()
}

// free unmaps the buffers, none of which is in use.
func (b *bounces) free() {
	for _, p := range b.idle {
		_ = unix.Munmap(p) // it is what Mmap returned
	}
	b.idle = nil
}

// misaligned reports whether p cannot be used for direct I/O.
func (f *file) misaligned(p []byte) bool {
	return f.align > 1 && address(p)&uintptr(f.align-1) != 0
}

// bounce reads or writes p by way of aligned memory.
func (f *file) bounce(p []byte, off int64, read, durable bool) error {
	buffer, err := f.bounces.acquire()
	if err != nil {
		return err
	}
	defer f.bounces.release(buffer)
	for len(p) > 0 {
		part := buffer[:min(len(p), len(buffer))]
		if read {
			if err := f.readAll(part, off); err != nil {
				return err
			}
			copy(p, part)
		} else {
			copy(part, p)
			if err := f.writeAll(part, off, durable); err != nil {
				return err
			}
		}
		p, off = p[len(part):], off+int64(len(part))
	}
	return nil
}

// zeroMemory returns aligned memory that is zero and costs no page.
var zeroMemory = sync.OnceValues(func() ([]byte, error) {
	p, err := unix.Mmap(-1, 0, bounceSize, unix.PROT_READ, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS)
	if err != nil {
		return nil, fmt.Errorf("map zeroes: %w", err)
	}
	return p, nil
})
