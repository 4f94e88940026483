package target

import (
	"github.com/viablk/viablk/internal/wire"
)

// watchSizes sends a resize event for an export whose size changed, one at a
// time: the next one when the initiator has acknowledged it. It is called with
// every keepalive of the control connection.
func (k *controller) watchSizes() error {
	if k.login.role != wire.RoleControl || k.login.features&wire.FeatureEvents == 0 || k.resizing != nil {
		return nil
	}
	handle, o := k.login.session.resized()
	if o == nil {
		return nil
	}
	k.resizing = o
	k.events++
	k.log.Info("export resized", "event", "export_resized", "export", o.export.Name, "size", o.size.Load())
	return k.send(&wire.Event{
		ID: k.events, PathEpoch: k.login.epoch, Kind: wire.EventResize, Export: handle,
		SizeGen: o.sizeGen.Load(), UUID: o.export.identity.UUID(), Size: uint64(o.size.Load()),
	})
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
// announced, or whose event was lost with its path, with its handle, and
// records that size. It asks the disks without the lock: entries of the list
// stay valid.
func (s *session) resized() (uint16, *opened) {
	s.mu.Lock()
	opens := s.opens
	s.mu.Unlock()
	for handle, o := range opens {
		if o.closed.Load() {
			continue
		}
		if size := o.export.info().Size; size != o.size.Load() || o.untold.Swap(false) {
			o.size.Store(size)
			o.sizeGen.Add(1)
			return uint16(handle), o
		}
	}
	return 0, nil
}

// present is the answer to an open with the present size.
func (o *opened) present() wire.OpenResponse {
	a := o.response
	a.Size, a.SizeGen = uint64(o.size.Load()), o.sizeGen.Load()
	return a
}
