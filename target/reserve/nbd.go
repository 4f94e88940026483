package reserve

import (
	"crypto/sha256"
	"errors"
	"time"
)

// nbdWriter is the writer that all NBD clients are.
var nbdWriter = func() (id [16]byte) {
	h := sha256.Sum256([]byte("viablk nbd clients"))
	return [16]byte(h[:16])
}()

// nbdClients is the client that all NBD connections are.
type nbdClients struct{}

// NBD reserves a disk for an NBD connection: for writing if no other client
// writes and the disk admits writers, else for reading, which the client is
// told. With readOnly it is for reading in any case.
func (d *Disk) NBD(name string, readOnly bool, end func(by string)) (*NBD, error) {
	q := Request{
		Client: nbdClients{}, Name: "nbd client " + name, Writer: nbdWriter, Mode: ReadWrite,
		End: end,
	}
	if readOnly {
		q.Mode = ReadOnly
	}
	if err := d.Admit(); err != nil {
		return nil, err
	}
	r, err := d.Reserve(q)
	if (errors.Is(err, ErrBusy) || errors.Is(err, ErrReadOnly)) && q.Mode == ReadWrite {
		q.Mode = ReadOnly
		r, err = d.Reserve(q)
	}
	if err != nil {
		return nil, err
	}
	began := d.scheduler.Now()
	return &NBD{r, d.AddAge(func() time.Duration { return sinceStart(began, d.scheduler.Now()) }), began}, nil
}

// NBD is the reservation of an NBD connection.
type NBD struct {
	*Reservation
	age   *Age
	began time.Time // of the clock of age
}

// sinceStart is the time since a start, which is never 0.
func sinceStart(start, at time.Time) time.Duration { return max(at.Sub(start), 0) + 1 }

// InDisk notes since when the oldest request of the connection has been in the
// disk, and the zero time that none is.
func (n *NBD) InDisk(since time.Time) {
	check := n.age.Any() // it stays there
	if since.IsZero() {
		check = n.disk.late.Load()
		n.age.Set(0)
	} else {
		n.age.Set(sinceStart(n.began, since))
	}
	if check {
		n.disk.Overdue()
	}
}

// Release gives the disk back. Nothing of the connection is in flight.
func (n *NBD) Release() {
	n.disk.RemoveAge(n.age)
	n.Reservation.Release()
}

// ReadOnly reports whether the client may only read.
func (n *NBD) ReadOnly() bool { return n.Mode() == ReadOnly }
