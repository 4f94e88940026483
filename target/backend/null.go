package backend

import (
	"github.com/viablk/viablk/internal/block"
	"golang.org/x/sys/unix"
)

// null is a disk that reads as zeroes and discards writes: `null:SIZE`. It
// measures everything but the disk.
type null struct {
	info block.Info
}

func openNull(size int64, readOnly bool) (block.Device, error) {
	return &null{info: plainInfo(size, memoryFeatures|block.CanStatus|block.CanPrefetch, readOnly)}, nil
}

func (n *null) Info() block.Info { return n.info }

// Durability implements [block.DurabilityReporter]: there is nothing to lose.
func (n *null) Durability() block.Durability { return block.OutlivesProcess }

func (n *null) NewQueue(depth int) (block.Queue, error) {
	return block.NewInlineQueue(depth, block.PayloadLimit, n.run)
}

func (n *null) Close() error { return nil }

func (n *null) run(r *block.Request) error {
	switch r.Op {
	case block.Read:
		clear(r.Data)
	case block.Status:
		r.AddExtent(r.Length, block.Hole|block.Zero)
	case block.Write, block.Flush, block.Trim, block.WriteZeroes, block.Prefetch:
	default:
		return unix.EINVAL
	}
	return nil
}
