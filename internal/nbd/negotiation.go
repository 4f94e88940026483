package nbd

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"syscall"

	"github.com/viablk/viablk/internal/access"
	"github.com/viablk/viablk/internal/block"
)

// negotiation is the handshake of one connection, driven by its goroutine with
// blocking I/O under the deadline that is set on the connection. It reads
// exactly what it needs, so that what follows the last option stays in the
// socket.
type negotiation struct {
	conn         net.Conn
	exports      Exports
	limits       *Limits
	tls          *TLS
	secure       *secure // TLS is up
	draining     func() bool
	open         func(granted, access.Identity) (*session, error) // counts the client in and opens its queue
	dataReceived func()                                           // the client has sent its first bytes
	identity     access.Identity
	logRefused   func(export string, client access.Identity, reason string)
	allowAnswer  func() // allows one more answer if the handshake's time is over
	replyMode    replyMode
	contexts     bool   // base:allocation is selected for an export
	selected     string // the export's name
	noZeroes     bool
	fixed        bool   // the client speaks fixed newstyle
	options      int    // that may still come
	data         []byte // of the option at hand; grows up to OptionBytes
	reply        []byte // being built
}

// session is what a handshake ends with: an export with its queue opened.
type session struct {
	export      *Export
	info        block.Info
	followSize  bool // requests go by the present size of the disk
	queue       block.Queue
	reservation Reservation // nil: the disk has no other users
	sock        socket
	bell        int // an eventfd; -1 without
	terms       terms
	secure      *secure // nil without TLS
}

// Ends of a handshake that are no fault of the server.
var (
	errAborted  = errors.New("client aborted the handshake")
	errProtocol = errors.New("protocol violation")
)

// run speaks with the client until it has chosen an export. An error ends the
// connection.
func (n *negotiation) run() (*session, error) {
	if err := n.greet(); err != nil {
		return nil, err
	}
	n.options = n.limits.Options
	for {
		option, length, err := n.readOption()
		if err != nil {
			return nil, err
		}
		s, err := n.option(option, length)
		if s != nil || err != nil {
			return s, err
		}
	}
}

// greet exchanges the flags of both sides.
func (n *negotiation) greet() error {
	b := binary.BigEndian.AppendUint64(n.reply[:0], magicServer)
	b = binary.BigEndian.AppendUint64(b, magicOption)
	b = binary.BigEndian.AppendUint16(b, handshakeFlags)
	if err := n.write(b); err != nil {
		return err
	}
	answer, err := n.read(4)
	if err != nil {
		return fmt.Errorf("read client flags: %w", err)
	}
	n.dataReceived()
	flags := binary.BigEndian.Uint32(answer)
	if flags&^uint32(handshakeFlags) != 0 {
		return fmt.Errorf("%w: unknown client flags %#x", errProtocol, flags)
	}
	n.fixed = flags&uint32(flagFixedNewstyle) != 0
	n.noZeroes = flags&uint32(flagNoZeroes) != 0
	return nil
}

// readOption reads the header of the next option.
func (n *negotiation) readOption() (option, length uint32, err error) {
	b, err := n.read(optionHeaderSize)
	if err != nil {
		return 0, 0, fmt.Errorf("read option: %w", err)
	}
	if n.options--; n.options < 0 {
		return 0, 0, fmt.Errorf("%w: more than %d options", errProtocol, n.limits.Options)
	}
	if magic := binary.BigEndian.Uint64(b); magic != magicOption {
		return 0, 0, fmt.Errorf("%w: option magic %#x", errProtocol, magic)
	}
	return binary.BigEndian.Uint32(b[8:]), binary.BigEndian.Uint32(b[12:]), nil
}

// option reads the data of an option and answers it. Options that the server
// does not know have their data read like the others, so that the next one is
// understood.
func (n *negotiation) option(option, length uint32) (*session, error) {
	if int64(length) > int64(n.limits.OptionBytes) {
		return nil, n.refuseLong(option, length)
	}
	data, err := n.read(int(length))
	if err != nil {
		return nil, fmt.Errorf("read data of option %d: %w", option, err)
	}
	switch {
	case option == optExportName:
		return n.exportName(string(data))
	case option == optAbort:
		// The client may have closed already: it need not wait for the answer.
		_ = n.answer(option, repAck, nil)
		return nil, errAborted
	case n.draining():
		return nil, n.refuse(option, repErrShutdown, "the server is shutting down")
	case !n.fixed:
		return nil, n.refuse(option, repErrInvalid, "the client did not ask for fixed newstyle negotiation")
	case option == optStartTLS:
		return nil, n.startTLS(data)
	case n.needsTLS():
		return nil, n.refuse(option, repErrTLSReqd, "the server needs TLS first")
	}
	switch option {
	case optList:
		return nil, n.list(data)
	case optInfo, optGo:
		return n.info(option, data)
	case optStructuredReply, optExtendedHeaders:
		return nil, n.enableReplies(option, data)
	case optListMeta, optSetMeta:
		return nil, n.metaContext(option, data)
	default:
		return nil, n.refuse(option, repErrUnsupported, fmt.Sprintf("option %d is not supported", option))
	}
}

// refuseLong answers an option with more data than the server takes: it skips a
// bounded amount of it, and ends the connection for more.
func (n *negotiation) refuseLong(option, length uint32) error {
	const skippable = 16 // times OptionBytes
	if int64(length) > skippable*int64(n.limits.OptionBytes) || option == optExportName {
		return fmt.Errorf("%w: option %d has %d bytes of data", errProtocol, option, length)
	}
	if _, err := io.CopyN(io.Discard, n.conn, int64(length)); err != nil {
		return fmt.Errorf("skip data of option %d: %w", option, err)
	}
	if n.needsTLS() {
		return n.refuse(option, repErrTLSReqd, "the server needs TLS first")
	}
	return n.refuse(option, repErrTooBig, fmt.Sprintf("option data of more than %d bytes", n.limits.OptionBytes))
}

// exportName enters transmission without any way to tell the client of an
// error.
func (n *negotiation) exportName(name string) (*session, error) {
	switch {
	case n.draining():
		return nil, errDraining
	case n.needsTLS():
		return nil, errTLSRequired
	case n.replyMode == extended:
		return nil, fmt.Errorf("%w: EXPORT_NAME after EXTENDED_HEADERS", errProtocol)
	}
	export, err := n.find(name)
	if err != nil {
		return nil, err
	}
	s, err := n.open(export, n.identity)
	if err != nil {
		return nil, err
	}
	s.terms, s.secure = n.terms(export.Export), n.secure
	b := binary.BigEndian.AppendUint64(n.reply[:0], uint64(s.info.Size))
	b = binary.BigEndian.AppendUint16(b, transmissionFlags(&s.info, s.terms))
	if !n.noZeroes {
		b = append(b, make([]byte, zeroPadding)...)
	}
	return s, n.write(b)
}

// list answers LIST.
func (n *negotiation) list(data []byte) error {
	if len(data) != 0 {
		return n.refuse(optList, repErrInvalid, "LIST takes no data")
	}
	exports := n.visible()
	n.options += len(exports) // a client asks for INFO on each
	b := n.reply[:0]
	for i := range exports {
		e := &exports[i]
		b = appendReplyHeader(b, optList, repServer, 4+len(e.Name)+len(e.Description))
		b = binary.BigEndian.AppendUint32(b, uint32(len(e.Name)))
		b = append(b, e.Name...)
		b = append(b, e.Description...)
	}
	return n.write(appendReplyHeader(b, optList, repAck, 0))
}

// enableReplies answers STRUCTURED_REPLY and EXTENDED_HEADERS. Extended headers
// include structured replies, and there is no way back; asked for twice they
// are refused, as QEMU does it, and stay agreed.
func (n *negotiation) enableReplies(option uint32, data []byte) error {
	switch {
	case len(data) != 0:
		return n.refuse(option, repErrInvalid, "the option takes no data")
	case option == optExtendedHeaders && n.replyMode == extended:
		return n.refuse(option, repErrInvalid, "extended headers are agreed already")
	case option == optExtendedHeaders:
		n.replyMode = extended
	case n.replyMode == extended:
		return n.refuse(option, repErrExtHeaderReqd, "extended headers are agreed already")
	default:
		n.replyMode = structured
	}
	return n.answer(option, repAck, nil)
}

// terms returns what is agreed for an export.
func (n *negotiation) terms(e *Export) terms {
	return terms{replyMode: n.replyMode, contexts: n.contexts && n.selected == e.Name}
}

// info answers INFO and GO. Nothing of the device is opened before GO is known
// to be right.
func (n *negotiation) info(option uint32, data []byte) (*session, error) {
	name, wanted, err := parseInfo(data)
	if err == nil {
		err = validName(name, n.limits.NameBytes)
	}
	if err != nil {
		return nil, n.refuse(option, repErrInvalid, err.Error())
	}
	export, err := n.find(name)
	if err != nil {
		return nil, n.refuse(option, refusal(err), err.Error())
	}
	info := export.clientInfo(n.limits)
	if info.MinimumBlock > 1 && !wanted.has(infoBlockSize) {
		if err := n.answer(option, repInfo, appendBlockSize(nil, &info)); err != nil {
			return nil, err
		}
		return nil, n.refuse(option, repErrBlockSizeReqd,
			fmt.Sprintf("requests must be multiples of %d bytes; ask for the block size first", info.MinimumBlock))
	}
	if option == optInfo {
		return nil, n.write(n.appendInfo(option, export.Export, &info, wanted))
	}
	s, err := n.open(export, n.identity)
	if err != nil {
		n.allowAnswer() // a remote disk may have taken the handshake's time
		return nil, n.refuse(option, refusal(err), err.Error())
	}
	s.terms, s.secure = n.terms(export.Export), n.secure
	return s, n.write(n.appendInfo(option, export.Export, &s.info, wanted))
}

// refusal returns the reply type for an export that a client does not get.
// Unknown is one that is not there, or not for this client: a disk that does
// not open, or not now, has a name. With ESHUTDOWN a disk says that it is away.
func refusal(err error) uint32 {
	switch {
	case errors.Is(err, errTLSRequired):
		return repErrTLSReqd
	case errors.Is(err, ErrUnknownExport):
		return repErrUnknown
	case errors.Is(err, errDraining), block.Errno(err) == syscall.ESHUTDOWN:
		return repErrShutdown
	default:
		return repErrPolicy
	}
}

// infoSet is the set of information types that a client asks for. Types that
// the server does not know are not in it: they are ignored.
type infoSet uint8

func (s infoSet) has(id uint16) bool { return s&(1<<id) != 0 }

// parseInfo decodes the data of INFO and GO: 32 bits of name length, the name,
// 16 bits of count, and 16 bits for each request.
func parseInfo(data []byte) (name string, wanted infoSet, err error) {
	if len(data) < 6 {
		return "", 0, fmt.Errorf("option data of %d bytes is too short", len(data))
	}
	length := binary.BigEndian.Uint32(data)
	if uint64(length) > uint64(len(data)-6) {
		return "", 0, fmt.Errorf("name length %d exceeds the option", length)
	}
	name = string(data[4 : 4+length])
	data = data[4+length:]
	count := int(binary.BigEndian.Uint16(data))
	if data = data[2:]; len(data) != 2*count {
		return "", 0, fmt.Errorf("%d information requests in %d bytes", count, len(data))
	}
	for ; len(data) > 0; data = data[2:] {
		if id := binary.BigEndian.Uint16(data); id <= infoBlockSize {
			wanted |= 1 << id
		}
	}
	return name, wanted, nil
}

// appendInfo builds the whole answer to INFO or GO. The block size is told
// whether or not it was asked for, as the protocol allows: clients that do not
// ask still obey it.
func (n *negotiation) appendInfo(option uint32, e *Export, i *block.Info, wanted infoSet) []byte {
	b := n.reply[:0]
	text := func(id uint16, s string) {
		if wanted.has(id) && s != "" {
			b = appendReplyHeader(b, option, repInfo, 2+len(s))
			b = binary.BigEndian.AppendUint16(b, id)
			b = append(b, s...)
		}
	}
	text(infoName, e.Name)
	text(infoDescription, e.Description)
	b = appendReplyHeader(b, option, repInfo, 14)
	b = appendBlockSize(b, i)
	b = appendReplyHeader(b, option, repInfo, 12)
	b = binary.BigEndian.AppendUint16(b, infoExport)
	b = binary.BigEndian.AppendUint64(b, uint64(i.Size))
	b = binary.BigEndian.AppendUint16(b, transmissionFlags(i, n.terms(e)))
	return appendReplyHeader(b, option, repAck, 0)
}

// appendBlockSize appends the information NBD_INFO_BLOCK_SIZE.
func appendBlockSize(b []byte, i *block.Info) []byte {
	b = binary.BigEndian.AppendUint16(b, infoBlockSize)
	b = binary.BigEndian.AppendUint32(b, i.MinimumBlock)
	b = binary.BigEndian.AppendUint32(b, i.PreferredBlock)
	return binary.BigEndian.AppendUint32(b, i.MaximumPayload)
}

// appendReplyHeader appends the header of an option reply with size bytes of
// data.
func appendReplyHeader(b []byte, option, kind uint32, size int) []byte {
	b = binary.BigEndian.AppendUint64(b, magicOptionReply)
	b = binary.BigEndian.AppendUint32(b, option)
	b = binary.BigEndian.AppendUint32(b, kind)
	return binary.BigEndian.AppendUint32(b, uint32(size))
}

// answer sends one reply.
func (n *negotiation) answer(option, kind uint32, data []byte) error {
	b := appendReplyHeader(n.reply[:0], option, kind, len(data))
	return n.write(append(b, data...))
}

// refuse sends an error reply with a text for people.
func (n *negotiation) refuse(option, kind uint32, text string) error {
	return n.answer(option, kind, []byte(clip(text)))
}

// read returns the next size bytes, valid until the next call. The caller has
// checked size against the limits.
func (n *negotiation) read(size int) ([]byte, error) {
	if cap(n.data) < size {
		n.data = make([]byte, size)
	}
	b := n.data[:size]
	if _, err := io.ReadFull(n.conn, b); err != nil {
		return nil, err
	}
	return b, nil
}

// write sends b and keeps it as the buffer of the next reply.
func (n *negotiation) write(b []byte) error {
	n.reply = b[:0]
	if _, err := n.conn.Write(b); err != nil {
		return fmt.Errorf("write to client: %w", err)
	}
	return nil
}
