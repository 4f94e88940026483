package target

import (
	"fmt"
	"time"

	"github.com/viablk/viablk/internal/wire"
)

// sizesPause is between two questions of a session for the sizes of its disks,
// each of which costs a goroutine and a wake-up: with one for each keepalive of
// 250 ms, idle sessions take half as much again of a processor.
const sizesPause = time.Second

// watchSizes sends a resize event for an export whose size changed, one at a
// time: the next one when the initiator has acknowledged it. It is called with
// every keepalive of the control connection, and asks again when the disks have
// told their sizes.
func (k *controller) watchSizes() error {
	now := k.server.cfg.Scheduler.Now()
	if now.Before(k.sizesDue) || k.login.role != wire.RoleControl || k.login.features&wire.FeatureEvents == 0 || k.resizing != nil || k.calls.busy() || k.leaving() {
		return nil
	}
	session, exports := k.login.session, k.server.exports
	if !session.uses() {
		return nil
	}
	k.sizesDue = now.Add(sizesPause)
	var o *opened
	var size int64
	return k.calls.begin(
		func() { o, size = session.resized(exports) },
		func() error { return k.sendResize(o, size) },
	)
}

// sendResize sends the event for an export that has another size than
// announced, or whose event was lost with its path. A nil one is none.
func (k *controller) sendResize(o *opened, size int64) error {
	if o == nil || k.leaving() || size == o.size.Load() && !o.untold.Swap(false) {
		return nil
	}
	o.size.Store(size)
	o.sizeGen.Add(1)
	k.resizing = o
	k.events++
	k.log.Info("export resized", "event", "export_resized", "export", o.export.Name, "size", o.size.Load())
	err := k.send(&wire.Event{
		ID: k.events, PathEpoch: k.login.epoch, Kind: wire.EventResize, Export: o.response.Export,
		SizeGen: o.sizeGen.Load(), UUID: o.export.identity.UUID(), Size: uint64(size),
	})
	if err != nil {
		return fmt.Errorf("send resize event: %w", err)
	}
	return nil
}

// acknowledged handles the ack of an event. An unexpected one is ignored.
func (w *worker) acknowledged(msg []byte) error {
	var q wire.EventAck
	if err := q.Decode(msg); err != nil {
		return err
	}
	switch q.Kind {
	case wire.EventResize:
		w.control.resizing = nil
	case wire.EventExportAdded:
		w.control.news.addedPending = false
		return w.control.watchExports()
	case wire.EventExportRemoved:
		w.control.news.removedPending = false
		return w.control.watchExports()
	case wire.EventRekey:
		w.rekey.asked = false
	}
	return nil
}

// resized returns an export of the session whose disk has another size than
// announced, with that size, or one whose event was lost with its path. It asks
// the disks, which may block, without the lock: a handle that is in use keeps
// its disk open.
func (s *session) resized(t *exportTable) (*opened, int64) {
	s.mu.Lock()
	n := len(s.opens)
	s.mu.Unlock()
	for handle := range n {
		o := s.acquire(uint16(handle))
		if o == nil {
			continue
		}
		size := o.export.info().Size
		s.release(o, t)
		if size != o.size.Load() || o.untold.Load() {
			return o, size
		}
	}
	return nil, 0
}

// present is the answer to an open with the present size.
func (o *opened) present() wire.OpenResponse {
	a := o.response
	a.Size, a.SizeGen = uint64(o.size.Load()), o.sizeGen.Load()
	return a
}
