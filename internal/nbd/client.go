package nbd

import (
	"context"
	"crypto/tls"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math"
	"net"
	"time"
)

// ExportInfo describes an export as a server told it. The names in JSON are
// those that nbdinfo prints.
type ExportInfo struct {
	Name        string `json:"export-name"`
	Description string `json:"description,omitempty"`
	Size        int64  `json:"export-size"` // bytes

	ReadOnly     bool `json:"is_read_only"`
	Rotational   bool `json:"is_rotational"`
	CanCache     bool `json:"can_cache"`
	CanDF        bool `json:"can_df"`
	CanFastZero  bool `json:"can_fast_zero"`
	CanFlush     bool `json:"can_flush"`
	CanFUA       bool `json:"can_fua"`
	CanMultiConn bool `json:"can_multi_conn"`
	CanTrim      bool `json:"can_trim"`
	CanZero      bool `json:"can_zero"`

	BlockMinimum   uint32 `json:"block_size_minimum,omitempty"` // bytes; 0: not told
	BlockPreferred uint32 `json:"block_size_preferred,omitempty"`
	BlockMaximum   uint32 `json:"block_size_maximum,omitempty"`

	// Error says why a listed export is not described further.
	Error string `json:"error,omitempty"`
}

// Bounds on what a server may send to a client.
const (
	maximumReply   = 2*maximumText + 64 // bytes of data of one option reply
	maximumReplies = 100_000            // to one option
	maximumHaggle  = 16 << 20           // bytes of data of all replies
)

// RefusedError is a server's refusal of an option.
type RefusedError struct {
	Reply uint32 // the protocol's reply type
	Text  string // from the server; may be empty
}

// Error implements error.
func (e *RefusedError) Error() string {
	reason := map[uint32]string{
		repErrUnsupported:   "not supported",
		repErrPolicy:        "forbidden",
		repErrInvalid:       "invalid request",
		repError | 4:        "not supported on the server's platform",
		repError | 5:        "TLS is required",
		repErrUnknown:       "unknown export",
		repErrShutdown:      "server is shutting down",
		repErrBlockSizeReqd: "block size negotiation is required",
		repErrTooBig:        "request is too big",
	}[e.Reply]
	if reason == "" {
		reason = fmt.Sprintf("error %#x", e.Reply)
	}
	if e.Text != "" {
		return fmt.Sprintf("server: %s (%q)", reason, e.Text)
	}
	return "server: " + reason
}

// Client asks servers. The zero value speaks in the clear.
type Client struct {
	// TLS is started before anything else is said; a server without TLS is an
	// error.
	TLS *tls.Config
}

// List asks the server at the other end of conn for its exports, and for the
// description of each. It takes the connection: conn is closed when it returns.
// An export that the server lists and then does not describe has its Error set.
func (c Client) List(ctx context.Context, conn net.Conn) ([]ExportInfo, error) {
	var list []ExportInfo
	err := c.haggle(ctx, conn, func(h *haggler) error {
		exports, err := h.list()
		if err != nil {
			return fmt.Errorf("list exports: %w", err)
		}
		list = exports
		for i := range list {
			told, err := h.describe(optInfo, list[i].Name)
			if refused := (*RefusedError)(nil); errors.As(err, &refused) {
				list[i].Error = refused.Error()
				continue
			}
			if err != nil {
				return fmt.Errorf("ask for export %q: %w", list[i].Name, err)
			}
			// The server may give an export's canonical name; the list's
			// stands.
			told.Name = list[i].Name
			if told.Description == "" {
				told.Description = list[i].Description
			}
			list[i] = told
		}
		return nil
	})
	return list, err
}

// Info asks the server at the other end of conn for the description of an
// export; "" is its default export. It takes the connection: conn is closed
// when it returns. An export that the server does not give is a [RefusedError].
func (c Client) Info(ctx context.Context, conn net.Conn, name string) (ExportInfo, error) {
	var told ExportInfo
	if err := validName(name, maximumText); err != nil {
		conn.Close()
		return told, err
	}
	err := c.haggle(ctx, conn, func(h *haggler) (err error) {
		if told, err = h.describe(optInfo, name); err != nil {
			return fmt.Errorf("ask for export %q: %w", name, err)
		}
		return nil
	})
	return told, err
}

// haggler is the client's side of option haggling.
type haggler struct {
	conn   io.ReadWriter
	secure *secure // nil without TLS
	flags  uint16  // of the handshake, which both sides agree on
	data   []byte  // of the reply at hand
	total  int     // bytes of data of all replies so far
}

// haggle opens the handshake, runs f, and leaves in peace.
func (c Client) haggle(ctx context.Context, conn net.Conn, f func(*haggler) error) error {
	defer conn.Close()
	stop := context.AfterFunc(ctx, func() { conn.SetDeadline(time.Unix(1, 0)) })
	defer stop()
	h := &haggler{conn: conn}
	err := h.greet(conn, c.TLS)
	if err == nil {
		_, err = h.ask(optStructuredReply)
	}
	if err == nil {
		if err = f(h); err == nil {
			// The exports are known: what the server makes of the ABORT is
			// its affair.
			_ = h.send(optAbort, nil)
		}
	}
	if err != nil && ctx.Err() != nil {
		return context.Cause(ctx)
	}
	return err
}

// greet exchanges the flags of both sides, and starts TLS if that is wanted.
func (h *haggler) greet(conn net.Conn, config *tls.Config) error {
	b := make([]byte, greetingSize)
	if _, err := io.ReadFull(h.conn, b); err != nil {
		return fmt.Errorf("read greeting: %w", err)
	}
	if binary.BigEndian.Uint64(b) != magicServer {
		return errors.New("not an NBD server")
	}
	flags := binary.BigEndian.Uint16(b[16:])
	if binary.BigEndian.Uint64(b[8:]) != magicOption || flags&flagFixedNewstyle == 0 {
		return errors.New("server does not speak fixed newstyle negotiation")
	}
	h.flags = flags & handshakeFlags
	if _, err := h.conn.Write(binary.BigEndian.AppendUint32(nil, uint32(h.flags))); err != nil {
		return fmt.Errorf("write client flags: %w", err)
	}
	if config != nil {
		if err := h.startTLS(conn, config); err != nil {
			return fmt.Errorf("start TLS: %w", err)
		}
	}
	return nil
}

// ask sends an option without data, and reports whether the server agrees. A
// client asks for structured replies early: a server that offers something only
// with them tells it only then.
func (h *haggler) ask(option uint32) (bool, error) {
	if err := h.send(option, nil); err != nil {
		return false, err
	}
	kind, _, err := h.receive(option)
	if refused := (*RefusedError)(nil); errors.As(err, &refused) {
		return false, nil
	}
	if err == nil && kind != repAck {
		err = fmt.Errorf("unexpected reply %d to option %d", kind, option)
	}
	return err == nil, err
}

// startTLS sends STARTTLS. There is no way on without it.
func (h *haggler) startTLS(conn net.Conn, config *tls.Config) error {
	if err := h.send(optStartTLS, nil); err != nil {
		return err
	}
	switch kind, _, err := h.receive(optStartTLS); {
	case err != nil:
		return err
	case kind != repAck:
		return fmt.Errorf("unexpected reply %d", kind)
	}
	s := newSecureClient(conn, config)
	if err := s.Handshake(); err != nil {
		return err
	}
	h.conn, h.secure = s, s
	return nil
}

// list sends LIST.
func (h *haggler) list() ([]ExportInfo, error) {
	if err := h.send(optList, nil); err != nil {
		return nil, err
	}
	list := []ExportInfo{}
	for range maximumReplies {
		kind, data, err := h.receive(optList)
		if err != nil || kind == repAck {
			return list, err
		}
		if kind != repServer || len(data) < 4 {
			return nil, fmt.Errorf("unexpected reply %d of %d bytes", kind, len(data))
		}
		length := binary.BigEndian.Uint32(data)
		if data = data[4:]; uint64(length) > uint64(len(data)) {
			return nil, fmt.Errorf("name length %d exceeds the reply", length)
		}
		e := ExportInfo{Name: string(data[:length]), Description: clip(string(data[length:]))}
		if err := validName(e.Name, maximumText); err != nil {
			return nil, err
		}
		list = append(list, e)
	}
	return nil, fmt.Errorf("more than %d replies", maximumReplies)
}

// describe sends INFO or GO for one export and asks for everything.
func (h *haggler) describe(option uint32, name string) (ExportInfo, error) {
	b := binary.BigEndian.AppendUint32(nil, uint32(len(name)))
	b = append(b, name...)
	b = binary.BigEndian.AppendUint16(b, 3)
	for _, id := range [...]uint16{infoName, infoDescription, infoBlockSize} {
		b = binary.BigEndian.AppendUint16(b, id)
	}
	e := ExportInfo{Name: name}
	if err := h.send(option, b); err != nil {
		return e, err
	}
	told := false
	for range maximumReplies {
		kind, data, err := h.receive(option)
		switch {
		case err != nil:
			return e, err
		case kind == repAck && !told:
			return e, errors.New("server did not tell the size")
		case kind == repAck:
			return e, nil
		case kind != repInfo || len(data) < 2:
			return e, fmt.Errorf("unexpected reply %d of %d bytes", kind, len(data))
		}
		told = told || binary.BigEndian.Uint16(data) == infoExport
		if err := e.store(data); err != nil {
			return e, err
		}
	}
	return e, fmt.Errorf("more than %d replies", maximumReplies)
}

// store stores one information reply. Types that it does not know are ignored.
func (e *ExportInfo) store(data []byte) error {
	id := binary.BigEndian.Uint16(data)
	data = data[2:]
	switch id {
	case infoExport:
		if len(data) != 10 {
			return fmt.Errorf("export information of %d bytes", len(data))
		}
		size := binary.BigEndian.Uint64(data)
		if size > math.MaxInt64 {
			return fmt.Errorf("export size %d is out of range", size)
		}
		e.Size = int64(size)
		e.setFlags(binary.BigEndian.Uint16(data[8:]))
	case infoBlockSize:
		if len(data) != 12 {
			return fmt.Errorf("block size information of %d bytes", len(data))
		}
		e.BlockMinimum = binary.BigEndian.Uint32(data)
		e.BlockPreferred = binary.BigEndian.Uint32(data[4:])
		e.BlockMaximum = binary.BigEndian.Uint32(data[8:])
	case infoName:
		if err := validName(string(data), maximumText); err != nil {
			return err
		}
		e.Name = string(data)
	case infoDescription:
		e.Description = clip(string(data))
	}
	return nil
}

// setFlags stores the transmission flags.
func (e *ExportInfo) setFlags(flags uint16) {
	e.ReadOnly = flags&flagReadOnly != 0
	e.Rotational = flags&flagRotational != 0
	e.CanCache = flags&flagSendCache != 0
	e.CanDF = flags&flagSendDF != 0
	e.CanFastZero = flags&flagSendFastZero != 0
	e.CanFlush = flags&flagSendFlush != 0
	e.CanFUA = flags&flagSendFUA != 0
	e.CanMultiConn = flags&flagCanMultiConn != 0
	e.CanTrim = flags&flagSendTrim != 0
	e.CanZero = flags&flagSendWriteZeroes != 0
}

// send sends an option.
func (h *haggler) send(option uint32, data []byte) error {
	b := binary.BigEndian.AppendUint64(nil, magicOption)
	b = binary.BigEndian.AppendUint32(b, option)
	b = binary.BigEndian.AppendUint32(b, uint32(len(data)))
	if _, err := h.conn.Write(append(b, data...)); err != nil {
		return fmt.Errorf("write option %d: %w", option, err)
	}
	return nil
}

// receive returns the next reply, which must be to option; the data is valid
// until the next call. An error reply is a RefusedError.
func (h *haggler) receive(option uint32) (kind uint32, data []byte, err error) {
	var b [replyHeaderSize]byte
	if _, err := io.ReadFull(h.conn, b[:]); err != nil {
		return 0, nil, fmt.Errorf("read reply: %w", err)
	}
	length := binary.BigEndian.Uint32(b[16:])
	switch {
	case binary.BigEndian.Uint64(b[:]) != magicOptionReply:
		return 0, nil, errors.New("bad magic in option reply")
	case binary.BigEndian.Uint32(b[8:]) != option:
		return 0, nil, fmt.Errorf("reply to option %d, not %d", binary.BigEndian.Uint32(b[8:]), option)
	case length > maximumReply:
		return 0, nil, fmt.Errorf("reply of %d bytes", length)
	}
	if h.data == nil {
		h.data = make([]byte, maximumReply)
	}
	if h.total += int(length); h.total > maximumHaggle {
		return 0, nil, fmt.Errorf("more than %d bytes of replies", maximumHaggle)
	}
	data = h.data[:length]
	if _, err := io.ReadFull(h.conn, data); err != nil {
		return 0, nil, fmt.Errorf("read reply: %w", err)
	}
	if kind = binary.BigEndian.Uint32(b[12:]); kind&repError != 0 {
		return 0, nil, &RefusedError{Reply: kind, Text: clip(string(data))}
	}
	return kind, data, nil
}
