package shm

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"time"

	"golang.org/x/sys/unix"

	"github.com/viablk/viablk/via"
)

// Messages of the control socket, one per packet (SOCK_SEQPACKET), with file
// descriptors attached:
//
//	magic u32 │ kind u16 │ body length u16 │ value u64 │ size u64 │ body
const (
	controlMagic  = 0x4d485356 // "VSHM"
	controlHeader = 24
	maxBody       = 256
	maxControlFDs = 3

	controlHello  = 1 // requester: segment, data eventfd, space eventfd; body is the connect message
	controlAccept = 2 // accepter: the same; body is the reply
	controlRefuse = 3 // accepter: body is the reply
	controlReady  = 4 // requester: everything is mapped
	controlArena  = 5 // either: an arena; value is its number, size its bytes

	maxArenas    = 256     // of one peer
	maxArenaSize = 1 << 42 // bytes

	handshakeTimeout = 5 * time.Second
)

// control is a control message in private memory.
type control struct {
	kind        uint16
	value, size uint64
	body        []byte
	fds         []int
}

func sendControl(c *net.UnixConn, m control) error {
	b := make([]byte, controlHeader+len(m.body))
	binary.LittleEndian.PutUint32(b[0:], controlMagic)
	binary.LittleEndian.PutUint16(b[4:], m.kind)
	binary.LittleEndian.PutUint16(b[6:], uint16(len(m.body)))
	binary.LittleEndian.PutUint64(b[8:], m.value)
	binary.LittleEndian.PutUint64(b[16:], m.size)
	copy(b[controlHeader:], m.body)
	var oob []byte
	if len(m.fds) > 0 {
		oob = unix.UnixRights(m.fds...)
	}
	if _, _, err := c.WriteMsgUnix(b, oob, nil); err != nil {
		return fmt.Errorf("send control message: %w", err)
	}
	return nil
}

// receiveControl receives a message and checks its form. The caller owns the
// file descriptors; on error there are none.
func receiveControl(c *net.UnixConn) (control, error) {
	b := make([]byte, controlHeader+maxBody)
	oob := make([]byte, unix.CmsgSpace(maxControlFDs*4))
	n, oobn, flags, _, err := c.ReadMsgUnix(b, oob)
	if err != nil {
		return control{}, err
	}
	fds := parseRights(oob[:oobn])
	m, err := parseControl(b[:n])
	if err == nil && flags&(unix.MSG_TRUNC|unix.MSG_CTRUNC) != 0 {
		err = errors.New("control message is too long")
	}
	if err == nil && len(fds) != controlFDs(m.kind) {
		err = fmt.Errorf("control message %d with %d file descriptors", m.kind, len(fds))
	}
	if err != nil {
		closeEvents(fds...)
		return control{}, err
	}
	m.fds = fds
	return m, nil
}

// parseControl decodes a message that a peer sent.
func parseControl(b []byte) (control, error) {
	if len(b) < controlHeader || binary.LittleEndian.Uint32(b) != controlMagic {
		return control{}, fmt.Errorf("control message of %d bytes is not ours", len(b))
	}
	m := control{
		kind:  binary.LittleEndian.Uint16(b[4:]),
		value: binary.LittleEndian.Uint64(b[8:]),
		size:  binary.LittleEndian.Uint64(b[16:]),
		body:  b[controlHeader:],
	}
	if int(binary.LittleEndian.Uint16(b[6:])) != len(m.body) || len(m.body) > maxBody {
		return control{}, fmt.Errorf("control message with a wrong length")
	}
	if m.kind < controlHello || m.kind > controlArena {
		return control{}, fmt.Errorf("control message of unknown kind %d", m.kind)
	}
	return m, nil
}

func controlFDs(kind uint16) int {
	switch kind {
	case controlHello, controlAccept:
		return 3
	case controlArena:
		return 1
	default:
		return 0
	}
}

// parseRights returns the file descriptors of ancillary data.
func parseRights(oob []byte) []int {
	messages, err := unix.ParseSocketControlMessage(oob)
	if err != nil {
		return nil
	}
	var fds []int
	for i := range messages {
		if got, err := unix.ParseUnixRights(&messages[i]); err == nil {
			fds = append(fds, got...)
		}
	}
	for _, fd := range fds {
		unix.CloseOnExec(fd)
	}
	return fds
}

// sendArena passes an arena to the peer.
func (l *link) sendArena(a *arena) error {
	_ = l.conn.SetWriteDeadline(time.Now().Add(handshakeTimeout))
	return sendControl(l.conn, control{kind: controlArena, value: a.id, size: uint64(len(a.mem)), fds: []int{a.fd}})
}

// serveControl is the agent goroutine of a link: it maps the arenas that the peer
// passes, until the peer or Close ends the connection.
func (l *link) serveControl() {
	defer close(l.done)
	count := 0
	for {
		m, err := receiveControl(l.conn)
		if err == nil {
			count++
			err = l.addArena(m, count)
		}
		if err != nil {
			break
		}
		ringEvent(l.sendCQ.fd)
	}
	l.gone.Store(true)
	ringEvent(l.sendCQ.fd)
	if l.recvCQ != l.sendCQ {
		ringEvent(l.recvCQ.fd)
	}
}

// addArena maps an arena of the peer.
func (l *link) addArena(m control, count int) error {
	if m.kind != controlArena || count > maxArenas || m.size == 0 || m.size > maxArenaSize {
		closeEvents(m.fds...)
		return fmt.Errorf("unexpected control message %d", m.kind)
	}
	mem, err := mapPeer(m.fds[0], int(m.size), unix.PROT_READ|unix.PROT_WRITE)
	if err != nil {
		return fmt.Errorf("map the peer's arena: %w", err)
	}
	l.arenas.Store(&peerArena{id: m.value, mem: mem, next: l.arenas.Load()})
	return nil
}

// newLink prepares one end of a connection.
func newLink(a *adapter, conn *net.UnixConn, own *segment, peer control, cfg via.LinkConfig) (*link, error) {
	seg, err := attachSegment(peer.fds[0])
	if err != nil {
		closeEvents(peer.fds[1:]...)
		return nil, err
	}
	l := &link{
		adapter: a, cfg: cfg, conn: conn, own: own, peer: seg,
		sendCQ: cfg.SendCQ.(*cq), recvCQ: cfg.RecvCQ.(*cq),
		out: writer{ring: own.ring()}, in: reader{ring: seg.ring()},
		sq: newWorkRing(cfg.SendDepth), rq: newWorkRing(cfg.RecvDepth),
		dataFD: peer.fds[1], spaceFD: peer.fds[2],
		exposed:    make(map[*via.Memory]struct{}),
		sentArenas: make(map[uint64]struct{}),
		done:       make(chan struct{}),
	}
	for _, w := range cfg.Receives {
		l.rq.push(w)
	}
	return l, nil
}

// start makes a link live.
func (l *link) start() {
	_ = l.own.seal()
	_ = l.conn.SetDeadline(time.Time{})
	l.sendCQ.bind(l)
	l.recvCQ.bind(l)
	go l.serveControl()
	l.adapter.add(l)
}

// seal closes the owner's file descriptor once the peer has it.
func (s *segment) seal() error {
	err := unix.Close(s.fd)
	s.fd = -1
	return err
}
