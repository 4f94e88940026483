package backend

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"

	"github.com/viablk/viablk/internal/block"
	"golang.org/x/sys/unix"
)

const (
	sector = 512 // bytes, what a power cut leaves whole

	// volatileSectors bounds the cache of a Volatile: beyond it, writing back
	// begins, as a disk may do at any time.
	volatileSectors = 256 << 20 / sector
)

// Volatile is a disk behind a write cache that a crash loses: `volatile:SPEC`.
//
// Only Flush and FUA move data to the disk behind, so a program that forgets
// them loses data when the process dies, as it would when a machine loses
// power. [Volatile.Crash] does the same without dying. It is a tool for tests
// of durability: one lock serves all requests.
type Volatile struct {
	inner    block.Device
	executor *block.Executor
	latch    block.Latch
	size     int64  // of the disk, in bytes: what it was at the beginning
	life     uint64 // another one of each cache

	mu    sync.Mutex
	disk  *block.Disk             // inner
	cache map[int64]*[sector]byte // sectors that the disk behind does not have, by number
}

// NewVolatile returns inner behind a volatile cache. Closing it closes inner,
// and loses what was not flushed.
func NewVolatile(inner block.Device) *Volatile {
	v := &Volatile{inner: inner, size: inner.Info().Size, life: block.NewIdentity().Verifier(), cache: make(map[int64]*[sector]byte)}
	v.executor = block.NewExecutor(v, 1)
	return v
}

// Info describes the disk behind, in whole sectors.
func (v *Volatile) Info() block.Info {
	info := v.inner.Info()
	info.Size = v.size
	info.MinimumBlock = max(info.MinimumBlock, sector)
	info.PreferredBlock = max(info.PreferredBlock, info.MinimumBlock)
	if info.Features&block.ReadOnly == 0 {
		info.Features = memoryFeatures
	}
	info.Features &^= block.CanStatus | block.CanPrefetch
	return info
}

// Identity implements [block.Identified]. The write verifier is that of the
// disk behind and of the cache, which ends when the disk is closed.
func (v *Volatile) Identity() block.Identity {
	id := block.IdentityOf(v.inner)
	if id == nil {
		return nil
	}
	return volatileIdentity{id, v.life}
}

// volatileIdentity is the identity of a disk behind a cache.
type volatileIdentity struct {
	block.Identity
	life uint64
}

// Verifier implements [block.Identity].
func (i volatileIdentity) Verifier() uint64 { return i.Identity.Verifier() ^ i.life }

// Revoked implements [block.Revocable].
func (i volatileIdentity) Revoked() error { return block.Revoked(i.Identity) }

// NewQueue implements [block.Device].
func (v *Volatile) NewQueue(depth int) (block.Queue, error) {
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.disk == nil {
		disk, err := block.NewDisk(v.inner)
		if err != nil {
			return nil, err
		}
		v.disk = disk
	}
	return v.executor.NewQueue(depth, block.PayloadLimit)
}

// Close implements [block.Device].
func (v *Volatile) Close() error {
	v.executor.Close()
	var err error
	if v.disk != nil {
		err = v.disk.Close()
	}
	if e := v.inner.Close(); err == nil {
		err = e
	}
	return err
}

// Crash loses the cache as a power cut does: of what was written since it was
// made durable, each sector survives or is lost, as the seed decides. Requests
// in flight execute before or after.
func (v *Volatile) Crash(seed uint64) error {
	v.mu.Lock()
	defer v.mu.Unlock()
	random := rand.New(rand.NewPCG(seed, 0))
	whole := int64(v.Info().MinimumBlock) / sector // sectors that share a fate
	last, lost := int64(-1), false
	for _, number := range v.sectors(0, v.size) {
		if number/whole != last {
			last, lost = number/whole, random.Uint64()&1 == 0
		}
		if lost {
			delete(v.cache, number)
		}
	}
	return v.writeBack(0, v.size)
}

// sectors returns the numbers of the cached sectors of a range in order.
func (v *Volatile) sectors(off, length int64) []int64 {
	var numbers []int64
	first, end := off/sector, (off+length)/sector
	if end-first <= int64(len(v.cache)) {
		for number := first; number < end; number++ {
			if v.cache[number] != nil {
				numbers = append(numbers, number)
			}
		}
		return numbers
	}
	for number := range v.cache {
		if number >= first && number < end {
			numbers = append(numbers, number)
		}
	}
	slices.Sort(numbers)
	return numbers
}

// Attempt implements [block.Engine].
func (v *Volatile) Attempt(*block.Request) bool { return false }

// Execute implements [block.Engine].
func (v *Volatile) Execute(r *block.Request) error {
	v.mu.Lock()
	defer v.mu.Unlock()
	switch r.Op {
	case block.Read:
		return v.read(r)
	case block.Write:
		for at := int64(0); at < r.Length; at += sector {
			v.put(r.Offset+at, r.Data[at:at+sector])
		}
	case block.Trim, block.WriteZeroes:
		if r.Flags&block.FastZero != 0 && r.Length > volatileSectors/4*sector {
			return unix.ENOTSUP
		}
		for at := int64(0); at < r.Length; at += sector {
			v.put(r.Offset+at, nil)
			if len(v.cache) > volatileSectors {
				if err := v.writeBack(0, r.Offset+r.Length); err != nil {
					return err
				}
			}
		}
	case block.Flush:
		return v.durable(0, v.size)
	default:
		return unix.EINVAL
	}
	if r.Flags&block.FUA != 0 {
		return v.durable(r.Offset, r.Length)
	}
	if len(v.cache) > volatileSectors {
		return v.writeBack(0, v.size)
	}
	return nil
}

// put caches one sector; nil is zeroes.
func (v *Volatile) put(off int64, p []byte) {
	cached := v.cache[off/sector]
	if cached == nil {
		cached = new([sector]byte)
		v.cache[off/sector] = cached
	}
	if p == nil {
		clear(cached[:])
		return
	}
	copy(cached[:], p)
}

func (v *Volatile) read(r *block.Request) error {
	if _, err := v.disk.ReadAt(r.Data, r.Offset); err != nil {
		return err
	}
	for at := int64(0); at < r.Length; at += sector {
		if cached := v.cache[(r.Offset+at)/sector]; cached != nil {
			copy(r.Data[at:], cached[:])
		}
	}
	return nil
}

// durable writes a range back and flushes the disk behind.
func (v *Volatile) durable(off, length int64) error {
	if err := v.latch.Err(); err != nil {
		return err
	}
	err := v.writeBack(off, length)
	if err == nil {
		err = v.disk.Sync()
	}
	if err != nil {
		return v.latch.Fail(err)
	}
	return nil
}

// writeBack moves a range of the cache to the disk behind. Data that cannot be
// written stays.
func (v *Volatile) writeBack(off, length int64) error {
	if len(v.cache) == 0 {
		return nil
	}
	var run []byte // of adjacent sectors
	start := int64(0)
	write := func() error {
		if len(run) == 0 {
			return nil
		}
		if _, err := v.disk.WriteAt(run, start); err != nil {
			return fmt.Errorf("write a cache back: %w", err)
		}
		for at := start; at < start+int64(len(run)); at += sector {
			delete(v.cache, at/sector)
		}
		run = run[:0]
		return nil
	}
	for _, number := range v.sectors(off, length) {
		at := number * sector
		if at != start+int64(len(run)) || len(run) >= 1<<20 {
			if err := write(); err != nil {
				return err
			}
		}
		if len(run) == 0 {
			start = at
		}
		run = append(run, v.cache[number][:]...)
	}
	return write()
}
