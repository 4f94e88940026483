package history

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"sync"
	"syscall"
)

// The bytes of the NBD protocol: magic numbers, and commands.
const (
	magicServer  = 0x4e42444d41474943
	magicOption  = 0x49484156454f5054
	magicRequest = 0x25609513
	magicReply   = 0x67446698

	fixedNewstyle = 1 // flags of both sides
	noZeroes      = 2

	optionExport = 1 // NBD_OPT_EXPORT_NAME

	commandRead       = uint32(0)
	commandWrite      = uint32(1)
	commandDisconnect = uint32(2)
	commandFlush      = uint32(3)

	flagFUA = uint32(1) << 16 // of a command, above its number
)

// Conn is an NBD connection to a disk, with simple replies. Requests of several
// goroutines are in flight at a time.
type Conn struct {
	conn  net.Conn
	ended chan struct{} // closed when no reply comes any more

	sending sync.Mutex // held during a send: replies are taken meanwhile

	mu sync.Mutex
	// +checklocks:mu
	waiting map[uint64]*call // by cookie
	// +checklocks:mu
	cookie uint64
	// +checklocks:mu
	failure error // why there are no more replies
}

// call is a request in flight.
type call struct {
	data []byte // to read into
	done chan error
}

// Dial connects to an export. Close ends the connection.
func Dial(ctx context.Context, network, address, export string) (*Conn, error) {
	conn, err := new(net.Dialer).DialContext(ctx, network, address)
	if err != nil {
		return nil, err
	}
	stop := context.AfterFunc(ctx, func() { conn.Close() })
	defer stop()
	if err := haggle(conn, export); err != nil {
		conn.Close()
		return nil, fmt.Errorf("open export %q: %w", export, err)
	}
	c := &Conn{conn: conn, waiting: make(map[uint64]*call), ended: make(chan struct{})}
	go c.routineReplies()
	return c, nil
}

// haggle opens an export.
func haggle(conn io.ReadWriter, export string) error {
	var greeting [18]byte
	if _, err := io.ReadFull(conn, greeting[:]); err != nil {
		return err
	}
	order := binary.BigEndian
	flags := order.Uint16(greeting[16:])
	if order.Uint64(greeting[:]) != magicServer || order.Uint64(greeting[8:]) != magicOption || flags != fixedNewstyle|noZeroes {
		return fmt.Errorf("greeting %x", greeting)
	}
	b := order.AppendUint32(nil, fixedNewstyle|noZeroes)
	b = order.AppendUint64(b, magicOption)
	b = order.AppendUint32(b, optionExport)
	b = append(order.AppendUint32(b, uint32(len(export))), export...)
	if _, err := conn.Write(b); err != nil {
		return err
	}
	var answer [10]byte // size and flags
	_, err := io.ReadFull(conn, answer[:])
	return err
}

// ReadAt implements [io.ReaderAt].
func (c *Conn) ReadAt(p []byte, at int64) (int, error) {
	return c.request(commandRead, p, nil, len(p), at)
}

// WriteAt implements [io.WriterAt].
func (c *Conn) WriteAt(p []byte, at int64) (int, error) {
	return c.request(commandWrite, nil, p, len(p), at)
}

// WriteFUA is WriteAt for data that is durable when it returns.
func (c *Conn) WriteFUA(p []byte, at int64) (int, error) {
	return c.request(commandWrite|flagFUA, nil, p, len(p), at)
}

// Flush has all answered writes be durable.
func (c *Conn) Flush() error {
	_, err := c.request(commandFlush, nil, nil, 0, 0)
	return err
}

// request sends a request and waits for its reply.
func (c *Conn) request(command uint32, into, data []byte, length int, at int64) (int, error) {
	r := &call{data: into, done: make(chan error, 1)}
	if err := c.send(r, command, data, length, at); err != nil {
		return 0, err
	}
	if err := <-r.done; err != nil {
		return 0, err
	}
	return length, nil
}

// send sends a request and has its reply be waited for.
func (c *Conn) send(r *call, command uint32, data []byte, length int, at int64) error {
	cookie, err := c.await(r)
	if err != nil {
		return err
	}
	order := binary.BigEndian
	b := order.AppendUint32(make([]byte, 0, 28+len(data)), magicRequest)
	b = order.AppendUint32(b, command)
	b = order.AppendUint64(order.AppendUint64(b, cookie), uint64(at))
	b = append(order.AppendUint32(b, uint32(length)), data...)
	c.sending.Lock()
	defer c.sending.Unlock()
	_, err = c.conn.Write(b)
	return err
}

// await has a reply be waited for and returns its cookie.
func (c *Conn) await(r *call) (uint64, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.cookie++
	if c.failure == nil {
		c.waiting[c.cookie] = r
	}
	return c.cookie, c.failure
}

// routineReplies hands replies to who waits for them, until one cannot be read.
func (c *Conn) routineReplies() {
	defer close(c.ended)
	err := c.reply()
	for err == nil {
		err = c.reply()
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.failure = fmt.Errorf("NBD connection: %w", err)
	for _, r := range c.waiting {
		r.done <- c.failure
	}
}

// reply reads a reply.
func (c *Conn) reply() error {
	var header [16]byte
	if _, err := io.ReadFull(c.conn, header[:]); err != nil {
		return err
	}
	order := binary.BigEndian
	if order.Uint32(header[:]) != magicReply {
		return fmt.Errorf("reply %x", header)
	}
	cookie := order.Uint64(header[8:])
	c.mu.Lock()
	r := c.waiting[cookie]
	delete(c.waiting, cookie)
	c.mu.Unlock()
	if r == nil {
		return fmt.Errorf("reply to nothing: %x", header)
	}
	if e := order.Uint32(header[4:]); e != 0 {
		r.done <- syscall.Errno(e)
		return nil
	}
	_, err := io.ReadFull(c.conn, r.data)
	if err != nil {
		r.done <- err
		return err
	}
	r.done <- nil
	return nil
}

// Close leaves the disk. No request is in flight.
func (c *Conn) Close() error {
	err := c.send(&call{done: make(chan error, 1)}, commandDisconnect, nil, 0, 0)
	if err != nil {
		err = errors.Join(err, c.conn.Close())
		<-c.ended
		return err
	}
	<-c.ended // the server closes the connection
	return c.conn.Close()
}

// Abort closes the connection with whatever is in flight.
func (c *Conn) Abort() error {
	err := c.conn.Close()
	<-c.ended
	return err
}
