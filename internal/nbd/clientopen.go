package nbd

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"time"

	"golang.org/x/sys/unix"
)

// Opened is an export in the transmission phase, and what its server and the
// client agreed on.
type Opened struct {
	ExportInfo
	Stream *Stream

	Structured bool   // replies have chunks
	Extended   bool   // extended headers, which includes chunks
	Context    uint32 // number of base:allocation, if HasContext
	HasContext bool
}

// Open opens an export of the server at the other end of conn; "" is its
// default export. It takes the connection. An export that the server does not
// give is a [RefusedError].
func (c Client) Open(ctx context.Context, conn net.Conn, name string) (*Opened, error) {
	defer conn.Close() // the stream has a descriptor of its own
	if err := validName(name, maximumText); err != nil {
		return nil, err
	}
	stop := context.AfterFunc(ctx, func() { conn.SetDeadline(time.Unix(1, 0)) })
	defer stop()
	h := &haggler{conn: conn}
	o, err := h.openExport(conn, c, name)
	if err != nil {
		if ctx.Err() != nil {
			err = context.Cause(ctx)
		}
		return nil, err
	}
	sock, err := dupSocket(conn)
	if err != nil {
		return nil, err
	}
	noticeSilence(sock)
	o.Stream = newStream(sock, h.secure)
	return o, nil
}

// silence is how long a host does not answer before its connection is lost.
const silence = 10 * time.Second

// noticeSilence has TCP end the connection to a host that is gone, whether data
// is on its way to it or not. Best effort: other sockets have no such host.
func noticeSilence(sock socket) {
	for option, value := range map[int]int{
		unix.TCP_USER_TIMEOUT: int(silence.Milliseconds()),
		unix.TCP_KEEPIDLE:     int(silence.Seconds()) / 2,
		unix.TCP_KEEPINTVL:    1,
	} {
		_ = unix.SetsockoptInt(int(sock), unix.IPPROTO_TCP, option, value)
	}
	_ = unix.SetsockoptInt(int(sock), unix.SOL_SOCKET, unix.SO_KEEPALIVE, 1)
}

// openExport goes from the greeting to the transmission phase.
func (h *haggler) openExport(conn net.Conn, c Client, name string) (*Opened, error) {
	if err := h.greet(conn, c.TLS); err != nil {
		return nil, err
	}
	o := &Opened{}
	var err error
	if o.Extended, err = h.ask(optExtendedHeaders); err != nil {
		return nil, err
	}
	if o.Structured = o.Extended; !o.Structured {
		if o.Structured, err = h.ask(optStructuredReply); err != nil {
			return nil, err
		}
	}
	if o.Structured {
		if o.Context, o.HasContext, err = h.setContext(name); err != nil {
			return nil, fmt.Errorf("ask for %s of export %q: %w", contextName, name, err)
		}
	}
	o.ExportInfo, err = h.describe(optGo, name)
	if refused := (*RefusedError)(nil); errors.As(err, &refused) && refused.Reply == repErrUnsupported {
		o.ExportInfo, err = h.exportName(name)
	}
	if err != nil {
		return nil, fmt.Errorf("open export %q: %w", name, err)
	}
	o.Name = name
	return o, nil
}

// setContext asks for block status, and returns the number of its context. A
// server that refuses has none.
func (h *haggler) setContext(name string) (id uint32, ok bool, err error) {
	b := binary.BigEndian.AppendUint32(nil, uint32(len(name)))
	b = append(b, name...)
	b = binary.BigEndian.AppendUint32(b, 1)
	b = binary.BigEndian.AppendUint32(b, uint32(len(contextName)))
	if err := h.send(optSetMeta, append(b, contextName...)); err != nil {
		return 0, false, err
	}
	for range maximumReplies {
		kind, data, err := h.receive(optSetMeta)
		if refused := (*RefusedError)(nil); errors.As(err, &refused) {
			return 0, false, nil
		}
		switch {
		case err != nil || kind == repAck:
			return id, ok, err
		case kind != repMetaContext || len(data) < 4 || string(data[4:]) != contextName || ok:
			return 0, false, fmt.Errorf("unexpected reply %d of %d bytes", kind, len(data))
		}
		id, ok = binary.BigEndian.Uint32(data), true
	}
	return 0, false, fmt.Errorf("more than %d replies", maximumReplies)
}

// exportName sends EXPORT_NAME, which servers without GO understand. It has no
// refusal: such a server closes the connection.
func (h *haggler) exportName(name string) (ExportInfo, error) {
	e := ExportInfo{Name: name}
	if err := h.send(optExportName, []byte(name)); err != nil {
		return e, err
	}
	b := make([]byte, 10+zeroPadding)
	if h.flags&flagNoZeroes != 0 {
		b = b[:10]
	}
	if _, err := io.ReadFull(h.conn, b); err != nil {
		return e, fmt.Errorf("the server has no such export: %w", err)
	}
	told := append(binary.BigEndian.AppendUint16(nil, infoExport), b[:10]...)
	return e, e.store(told)
}
