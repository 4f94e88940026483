package initiator

import (
	"errors"

	"github.com/viablk/viablk/internal/wire"
)

// Life is one use of a disk, which may outlast a process: the next process
// continues it for users who notice nothing of the change, and resend requests
// that had no answer.
type Life struct {
	Writer     [16]byte // who uses the disk, as the target keeps it with the disk
	UUID       [16]byte // of the disk
	Generation uint64   // of the writer, when the disk was opened last
	Verifier   uint64   // of the disk's writes
}

// ContinueError is why a device does not continue a life: its users would read
// what is not there any more, or resend writes that are older than the disk.
type ContinueError struct{ what string }

// Error implements error.
func (e *ContinueError) Error() string { return "the users of before cannot go on: " + e.what }

// request asks for the disk as who had it before. A nil life is a new writer.
func (l *Life) request(writer [16]byte, preempt bool) *wire.OpenRequest {
	q := &wire.OpenRequest{Writer: writer, Preempt: preempt}
	if l != nil {
		q.Writer, q.Return, q.Generation = l.Writer, true, l.Generation
	}
	return q
}

// refusal turns the target's refusal of a life into a ContinueError.
func (l *Life) refusal(err error) error {
	var refused *openRefusedError
	if l != nil && errors.As(err, &refused) && refused.status == wire.StatusStale {
		return &ContinueError{"another client wrote to the disk meanwhile (" + refused.reason + ")"}
	}
	return err
}

// check returns an error unless an opened disk is that of the life, with every
// answered write. The process before may have left writes without a flush.
func (l *Life) check(a *wire.OpenResponse) error {
	switch {
	case l == nil:
		return nil
	case a.ExportUUID != l.UUID:
		return &ContinueError{"the target serves another disk under this name, or has lost what was in memory"}
	case a.Verifier != l.Verifier:
		return &ContinueError{"the target's machine was started again, or a flush failed, and writes that were answered may be lost"}
	}
	return nil
}

// keepLife tells the life of the device to who keeps it for the next process.
func (d *Device) keepLife() {
	if keep := d.cfg.KeepLife; keep != nil {
		keep(Life{Writer: d.writer, UUID: d.export.ExportUUID, Generation: d.generation, Verifier: d.verifier})
	}
}
