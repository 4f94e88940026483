package workload

import (
	"errors"
	"fmt"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/viablk/viablk/internal/blockdev"
)

// Zone is a part of a disk as a region. Others may use other parts at the same
// time.
type Zone struct {
	handles
	from   int64 // bytes
	limits Limits
}

// zoneUnit is what zones begin and end at multiples of, bytes: the page cache
// is of pages.
const zoneUnit = 64 << 10

// OpenZone opens a part of a disk, in bytes. The caller closes it.
func OpenZone(path string, from, size int64) (*Zone, error) {
	if from%zoneUnit != 0 || size%zoneUnit != 0 {
		return nil, fmt.Errorf("a zone from %d of %d bytes: both are multiples of %d", from, size, zoneUnit)
	}
	z := &Zone{handles: handles{path: path}, from: from}
	if err := z.open(0); err != nil {
		return nil, err
	}
	logical, err := unix.IoctlGetInt(z.buffered, unix.BLKSSZGET)
	if err != nil {
		return nil, errors.Join(fmt.Errorf("look at disk %s: %w", path, err), z.close())
	}
	z.limits = Limits{Size: size, Fixed: true, Direct: int64(logical), Block: 4096}
	return z, nil
}

// Kinds implements [Region].
func (z *Zone) Kinds() []Kind {
	return []Kind{Read, ReadDirect, ReadMapped, Write, WriteDirect, WriteMapped, Discard, ZeroOut, Sync, DataSync, Reopen, Forget}
}

// Limits implements [Region].
func (z *Zone) Limits() Limits { return z.limits }

// Size implements [Region].
func (z *Zone) Size() (int64, error) { return z.limits.Size, nil }

// Close closes the disk.
func (z *Zone) Close() error { return z.close() }

// Do implements [Region].
func (z *Zone) Do(o Op, p []byte) (int, error) {
	o.Offset += z.from
	switch o.Kind {
	case Discard:
		return 0, blockdev.Discard(z.buffered, o.Offset, o.Length)
	case ZeroOut:
		return 0, blockdev.ZeroOut(z.buffered, o.Offset, o.Length)
	case Sync:
		return 0, unix.Fsync(z.buffered)
	case DataSync:
		return 0, unix.Fdatasync(z.buffered)
	case Reopen:
		if err := z.close(); err != nil {
			return 0, err
		}
		return 0, z.open(0)
	case Forget: // of the whole disk
		return 0, unix.IoctlSetInt(z.buffered, unix.BLKFLSBUF, 0)
	}
	return z.transfer(o, p)
}

// ExerciseDisk exercises the beginning of a disk in several zones of so many
// bytes at the same time.
func ExerciseDisk(path string, zones int, size int64, seed uint64, operations int) (Counts, error) {
	counts, failures := make([]Counts, zones), make([]error, zones)
	var group sync.WaitGroup
	for i := range zones {
		group.Go(func() {
			z, err := OpenZone(path, int64(i)*size, size)
			if err == nil {
				counts[i], err = Exercise(z, seed+uint64(i), operations)
				err = errors.Join(err, z.Close())
			}
			if err != nil {
				failures[i] = fmt.Errorf("zone %d of %s: %w", i, path, err)
			}
		})
	}
	group.Wait()
	var sum Counts
	for _, c := range counts {
		for k, n := range c {
			sum[k] += n
		}
	}
	return sum, errors.Join(failures...)
}
