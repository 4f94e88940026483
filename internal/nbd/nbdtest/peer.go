package nbdtest

import (
	"bytes"
	"crypto/tls"
	"encoding/binary"
	"errors"
	"io"
	"net"
	"syscall"
	"time"
)

// replyMode is how replies look.
type replyMode int

const (
	simple replyMode = iota
	structured
	extended
)

// peer is a client that speaks raw bytes. An unexpected reply ends the
// probe.
type peer struct {
	*probe
	net.Conn
	replyMode replyMode

	advertised uint16 // flags of the handshake
	flags      uint16 // of the export
	size       uint64 // of the export, bytes
	context    uint32 // of base:allocation, if it is selected
	selected   bool
}

// dial connects and does nothing else.
func (p *probe) dial() *peer { return p.dialBy(p.Dial) }

func (p *probe) dialBy(dial func() (net.Conn, error)) *peer {
	c, err := dial()
	if err != nil {
		p.failf("connect: %v", err)
	}
	p.conns = append(p.conns, c)
	_ = c.SetDeadline(time.Now().Add(timeout)) // a read tells
	return &peer{probe: p, Conn: c}
}

// send sends bytes in one piece.
func (x *peer) send(parts ...[]byte) {
	if _, err := x.Write(bytes.Join(parts, nil)); err != nil {
		x.failf("the server does not take %d bytes: %v", len(bytes.Join(parts, nil)), err)
	}
}

// trySend sends bytes that the server need not take.
func (x *peer) trySend(parts ...[]byte) { _, _ = x.Write(bytes.Join(parts, nil)) }

// receive receives exactly n bytes.
func (x *peer) receive(n int) []byte {
	b := make([]byte, n)
	if got, err := io.ReadFull(x, b); err != nil {
		x.failf("%d bytes of %d, then %v", got, n, err)
	}
	return b
}

// receive32 receives a number of 32 bits.
func (x *peer) receive32() uint32 { return binary.BigEndian.Uint32(x.receive(4)) }

// wantEnd checks that the server sends nothing more and closes.
func (x *peer) wantEnd() {
	b, err := io.ReadAll(x)
	switch {
	case isTimeout(err):
		x.failf("the connection stays open")
	case len(b) > 0:
		x.failf("%d bytes (% x) come before the end", len(b), b[:min(len(b), 32)])
	case err != nil && !errors.Is(err, syscall.ECONNRESET):
		x.failf("%v in place of the end", err)
	}
}

// ends reports whether the server closes, whatever it sends before.
func (x *peer) ends() bool {
	_, err := io.Copy(io.Discard, x)
	return !isTimeout(err)
}

// Flags of the handshake.
const (
	fixedNewstyle = 1 << 0
	noZeroes      = 1 << 1
)

// greet exchanges flags.
func (x *peer) greet(flags uint32) {
	b := x.receive(18)
	if !bytes.Equal(b[:16], []byte("NBDMAGICIHAVEOPT")) {
		x.failf("greeting % x", b)
	}
	if x.advertised = binary.BigEndian.Uint16(b[16:]); x.advertised&fixedNewstyle == 0 {
		x.notOffered("fixed newstyle")
	}
	x.send(be32(flags))
}

// haggle dials and exchanges flags, under TLS where the server wants it.
func (p *probe) haggle() *peer {
	x := p.dial()
	x.greet(fixedNewstyle | noZeroes)
	if p.Forced {
		x.startTLS()
	}
	return x
}

// startTLS starts TLS.
func (x *peer) startTLS() {
	x.option(optStartTLS)
	x.wantReply(optStartTLS, repAck)
	secure := tls.Client(x.Conn, x.TLS)
	if err := secure.Handshake(); err != nil {
		x.failf("TLS: %v", err)
	}
	x.Conn = secure
}

// The options.
const (
	optExportName      = 1
	optAbort           = 2
	optList            = 3
	optStartTLS        = 5
	optInfo            = 6
	optGo              = 7
	optStructuredReply = 8
	optListMeta        = 9
	optSetMeta         = 10
	optExtendedHeaders = 11
	optUnknown         = 0x0badf00d
)

// The types of option replies.
const (
	repAck         = 1
	repServer      = 2
	repInfo        = 3
	repMetaContext = 4
	repError       = 1 << 31
	errUnsup       = repError | 1
	errPolicy      = repError | 2
	errInvalid     = repError | 3
	errTLSReqd     = repError | 5
	errUnknown     = repError | 6
	errTooBig      = repError | 9
	errExtReqd     = repError | 10
)

// option sends an option whose length is that of its data.
func (x *peer) option(id uint32, data ...[]byte) { x.send(Option(id, data...)) }

// reply receives one option reply.
func (x *peer) reply(option uint32) (kind uint32, data []byte) {
	b := x.receive(20)
	if magic := binary.BigEndian.Uint64(b); magic != 0x3e889045565a9 {
		x.failf("the magic of an option reply is %#x", magic)
	}
	if got := binary.BigEndian.Uint32(b[8:]); got != option {
		x.failf("a reply to option %d, not to %d", got, option)
	}
	n := binary.BigEndian.Uint32(b[16:])
	if n > 1<<20 {
		x.failf("an option reply of %d bytes", n)
	}
	return binary.BigEndian.Uint32(b[12:]), x.receive(int(n))
}

// wantReply receives an option reply of one of some kinds.
func (x *peer) wantReply(option uint32, kinds ...uint32) []byte {
	got, data := x.reply(option)
	for _, kind := range kinds {
		if got == kind {
			if kind&repError != 0 && len(data) > 4096 {
				x.failf("an error text of %d bytes", len(data))
			}
			return data
		}
	}
	x.failf("reply %#x (%q) to option %d, not %#x", got, data[:min(len(data), 64)], option, kinds)
	return nil
}

// wantError receives an option reply that is any error.
func (x *peer) wantError(option uint32) {
	if got, _ := x.reply(option); got&repError == 0 {
		x.failf("reply %#x to option %d, which is no error", got, option)
	}
}

// wantInSync checks that the next option is understood.
func (x *peer) wantInSync() {
	x.option(optUnknown)
	x.wantReply(optUnknown, errUnsup, errTLSReqd)
}

// infos receives the information replies to INFO or GO up to the ACK.
func (x *peer) infos(option uint32) map[uint16][]byte {
	infos := map[uint16][]byte{}
	for {
		kind, data := x.reply(option)
		if kind == repAck {
			break
		}
		if kind != repInfo || len(data) < 2 {
			x.failf("reply %#x (%q) to option %d, neither information nor ACK", kind, data, option)
		}
		infos[binary.BigEndian.Uint16(data)] = data[2:]
	}
	export := infos[infoExport]
	if len(export) != 10 {
		x.failf("the information about the export has %d bytes", len(export))
	}
	x.size, x.flags = binary.BigEndian.Uint64(export), binary.BigEndian.Uint16(export[8:])
	return infos
}

// Numbers of informations.
const (
	infoExport    = 0
	infoBlockSize = 3
)

// connect dials and negotiates up to transmission in a reply mode, with
// base:allocation where the server has it.
func (p *probe) connect(d replyMode) *peer {
	x := p.haggle()
	x.setReplyMode(d)
	if d != simple {
		x.selectContext()
	}
	x.goTo(p.Export)
	return x
}

// goTo enters transmission.
func (x *peer) goTo(export string) {
	x.option(optGo, GoData(export, infoBlockSize))
	x.infos(optGo)
}

// setReplyMode agrees on a reply mode.
func (x *peer) setReplyMode(d replyMode) {
	option := map[replyMode]uint32{structured: optStructuredReply, extended: optExtendedHeaders}[d]
	if option == 0 {
		return
	}
	x.option(option)
	if kind, _ := x.reply(option); kind == errUnsup {
		x.notOffered([]string{"", "structured replies", "extended headers"}[d])
	} else if kind != repAck {
		x.failf("reply %#x to option %d", kind, option)
	}
	x.replyMode = d
}

// selectContext selects base:allocation, if the server has it.
func (x *peer) selectContext() {
	var n int
	x.context, n = x.setMeta(x.Export, "base:allocation")
	x.selected = n == 1
}

// setMeta selects contexts and returns the id of the last one, and how many
// there are.
func (x *peer) setMeta(export string, queries ...string) (id uint32, n int) {
	x.option(optSetMeta, MetaData(export, queries...))
	for {
		kind, data := x.reply(optSetMeta)
		switch {
		case kind == repAck || kind == errUnsup:
			return id, n
		case kind != repMetaContext || len(data) < 4:
			x.failf("reply %#x (%q) to SET_META_CONTEXT", kind, data)
		}
		id = binary.BigEndian.Uint32(data)
		n++
	}
}
