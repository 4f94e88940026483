package nbdkernel

import "time"

// sizeInterval is how often it is looked whether the disk has another size.
const sizeInterval = time.Second

// watchSize tells the driver of another size. It is a goroutine with a socket
// of its own, for the driver may have it wait for requests, which wait for
// connections.
func (a *Attachment) watchSize(done chan<- struct{}) {
	defer close(done)
	ticker := time.NewTicker(sizeInterval)
	defer ticker.Stop()
	for told := a.cfg.Size; ; {
		select {
		case <-ticker.C:
		case <-a.active.Done():
			return
		}
		size := a.cfg.Present()
		size -= size % int64(a.cfg.BlockSize)
		if size == told || size <= 0 {
			continue
		}
		if err := a.resize(size); err != nil {
			a.cfg.Log.Warn("the kernel does not take the size of the disk", "device", a.Node(), "size", size, "error", err)
			continue
		}
		a.cfg.Log.Info("device resized", "device", a.Node(), "before", told, "now", size)
		told = size
	}
}

// resize gives the device a size, in bytes.
func (a *Attachment) resize(size int64) error {
	d, err := OpenDriver()
	if err != nil {
		return err
	}
	defer d.Close()
	return d.reconfigure(a.Node(), a.cfg.Device.backend, size, a.cfg.Settings, nil)
}
