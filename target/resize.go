package target

import (
	"github.com/viablk/viablk/internal/wire"
)

// watchSizes tells the session of an export that has another size than the session
// was told, one at a time: the next when the initiator has acknowledged it. It is
// called with every beat of the control connection.
func (c *conn) watchSizes() error {
	if c.role != wire.RoleControl || c.features&wire.FeatureEvents == 0 || c.telling {
		return nil
	}
	handle, o := c.session.resized()
	if o == nil {
		return nil
	}
	c.telling = true
	c.events++
	c.log.Info("export resized", "export", o.export.Name, "size", o.size.Load())
	return c.send(&wire.Event{
		ID: c.events, PathEpoch: c.epoch, Kind: wire.EventResize, Export: handle,
		SizeGen: o.sizeGen.Load(), UUID: o.export.uuid, Size: uint64(o.size.Load()),
	})
}

// acknowledged handles the ack of an event. One that nobody waits for does no harm.
func (c *conn) acknowledged(msg []byte) error {
	var q wire.EventAck
	if err := q.Decode(msg); err != nil {
		return err
	}
	if q.Kind == wire.EventResize {
		c.telling = false
	}
	return nil
}

// resized returns an export of the session whose disk has another size than it was
// told, with its handle, and takes note of that size. It asks the disks without the
// lock: what is in the list stays.
func (s *session) resized() (uint16, *opened) {
	s.mu.Lock()
	opens := s.opens
	s.mu.Unlock()
	for handle, o := range opens {
		if o.closed.Load() {
			continue
		}
		if size := o.export.info().Size; size != o.size.Load() {
			o.size.Store(size)
			o.sizeGen.Add(1)
			return uint16(handle), o
		}
	}
	return 0, nil
}

// present is the answer to whoever opens it now.
func (o *opened) present() wire.OpenResponse {
	a := o.response
	a.Size, a.SizeGen = uint64(o.size.Load()), o.sizeGen.Load()
	return a
}
