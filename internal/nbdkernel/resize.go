package nbdkernel

import (
	"cmp"
	"time"
)

// sizeInterval is between two checks whether the disk has another size.
const sizeInterval = time.Second

// watchSize tells the driver of another size.
func (a *Attachment) watchSize() {
	defer close(a.sized)
	ticker := time.NewTicker(sizeInterval)
	defer ticker.Stop()
	told := a.cfg.Size
	if was := a.cfg.Device.state; was.Attached {
		told = was.Size
	}
	for {
		told = a.followSize(told)
		select {
		case <-ticker.C:
		case <-a.active.Done():
			return
		}
	}
}

// followSize tells the driver the size of the disk if it was told another one
// and can take it, and returns which one it has been told.
func (a *Attachment) followSize(told int64) int64 {
	size, answers := a.cfg.Size, true
	if a.cfg.Present != nil {
		size, answers = a.cfg.Present()
	}
	size -= size % int64(a.cfg.BlockSize)
	if size == told || size <= 0 || !answers || !a.steady() {
		return told
	}
	if err := a.resize(size); err != nil {
		a.cfg.Log.Warn("the kernel does not take the size of the disk", "event", "device_resize_failed", "device", a.Node(), "size", size, "error", err)
		return told
	}
	a.cfg.Log.Info("device resized", "event", "device_resized", "device", a.Node(), "before", told, "now", size)
	return size
}

// steady reports whether the requests in flight need no connection that is yet
// to be made: the driver, which may wait for them, would not take it.
func (a *Attachment) steady() bool {
	a.mu.Lock()
	replacing, retransmitted := a.replacing, a.retransmitted
	a.mu.Unlock()
	if replacing || a.active.Err() != nil || a.Connections() < a.cfg.Connections {
		return false
	}
	return !time.Now().Before(retransmitted) || a.cfg.Device.idle()
}

// defaultRequestTimeout is the timeout of a request where none is set: the
// driver then retransmits requests of connections that have ended, and leaves
// others alone.
const defaultRequestTimeout = 30 * time.Second

// timerSlack is how late a timer of the block layer may be.
const timerSlack = 5 * time.Second

// retransmission returns how long the driver takes to retransmit the requests
// of connections that have ended. Those from before a takeover have the timeout
// of their time.
func (a *Attachment) retransmission() time.Duration {
	return max(a.cfg.Device.state.RequestTimeout, cmp.Or(a.cfg.IOTimeout, defaultRequestTimeout)) + timerSlack
}

// resize gives the device a size, in bytes. The driver may wait for requests,
// which wait for connections: these are told on another socket.
func (a *Attachment) resize(size int64) error {
	d, err := a.cfg.Driver.second()
	if err != nil {
		return err
	}
	defer d.Close()
	s := a.cfg.Settings
	s.Size = size
	return d.resize(a.Node(), a.cfg.Device.backend, s)
}
