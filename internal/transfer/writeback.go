package transfer

import (
	"sync"
	"sync/atomic"

	"github.com/viablk/viablk/internal/block"
)

// writeBackInterval is how many bytes of data a destination caches before it is
// asked to write them to the medium.
const writeBackInterval = 8 << 20

// writeBack has the destination write its cached data while the transfer goes
// on: else the flush at its end would wait for all of it. Its nil has no
// destination that can.
type writeBack struct {
	device block.WriteBacker
	cached atomic.Int64  // bytes since the destination was asked
	asked  chan struct{} // closed when there is no more data
	ended  sync.WaitGroup
}

// startWriteBack starts the goroutine that asks the destination, if it can
// write back. The caller calls stop when no other goroutine calls add.
func startWriteBack(d block.Device) *writeBack {
	device, ok := d.(block.WriteBacker)
	if !ok {
		return nil
	}
	w := &writeBack{device: device, asked: make(chan struct{}, 1)}
	w.ended.Go(w.routineWriteBack)
	return w
}

func (w *writeBack) routineWriteBack() {
	for range w.asked {
		w.device.WriteBack()
	}
}

// add counts data that was written. It is safe for concurrent use.
func (w *writeBack) add(length int64) {
	if w == nil {
		return
	}
	n := w.cached.Add(length)
	if n < writeBackInterval || !w.cached.CompareAndSwap(n, 0) {
		return
	}
	select {
	case w.asked <- struct{}{}:
	default: // it is asked already
	}
}

// stop waits for the goroutine.
func (w *writeBack) stop() {
	if w != nil {
		close(w.asked)
		w.ended.Wait()
	}
}
