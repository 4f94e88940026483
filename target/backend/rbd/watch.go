//go:build rbd && cgo

package rbd

import (
	"fmt"
	"os"
	"time"

	"github.com/viablk/viablk/internal/eventfd"
)

// watch keeps the size of a disk true.
type watch struct {
	device *Device
	file   *os.File // an eventfd that librbd rings
	ended  chan struct{}
}

func newWatch(d *Device) (*watch, error) {
	fd, err := eventfd.New()
	if err != nil {
		return nil, err
	}
	w := &watch{device: d, file: os.NewFile(uintptr(fd), "watch of an image"), ended: make(chan struct{})}
	if err := d.connection.notify(fd); err != nil {
		_ = w.file.Close()
		return nil, fmt.Errorf("watch the image: %w", err)
	}
	go w.routineSize()
	return w, nil
}

// routineSize asks for the size after each change of the image.
func (w *watch) routineSize() {
	defer close(w.ended)
	var rings [8]byte
	for {
		if _, err := w.file.Read(rings[:]); err != nil {
			return // stop
		}
		if size, err := w.device.connection.size(); err == nil {
			w.device.size.Store(size - size%sector)
		}
	}
}

// stop ends the goroutine.
func (w *watch) stop() {
	_ = w.file.SetReadDeadline(time.Now()) // of an eventfd it cannot fail
	<-w.ended
}

// close closes the eventfd. librbd does not ring any more.
func (w *watch) close() error { return w.file.Close() }
