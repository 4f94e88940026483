package reserve

import (
	"crypto/sha256"
	"errors"
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
	r, err := d.Reserve(q)
	if (errors.Is(err, ErrBusy) || errors.Is(err, ErrReadOnly)) && q.Mode == ReadWrite {
		q.Mode = ReadOnly
		r, err = d.Reserve(q)
	}
	if err != nil {
		return nil, err
	}
	return &NBD{r}, nil
}

// NBD is the reservation of an NBD connection.
type NBD struct{ *Reservation }

// ReadOnly reports whether the client may only read.
func (n *NBD) ReadOnly() bool { return n.Mode() == ReadOnly }
