package rights

import (
	"bytes"
	"crypto/tls"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"time"

	"github.com/viablk/viablk/internal/nbd/nbdtest"
)

// Numbers of the NBD protocol.
const (
	nbdList, nbdGo, nbdStartTLS      = 3, 7, 5
	nbdAck, nbdServer, nbdInfo       = 1, 2, 3
	nbdUnknown, nbdTLSReqd           = 1<<31 | 6, 1<<31 | 5
	nbdFlagsOfExport, nbdReadOnlyBit = 0, 1 << 1
)

// nbdClient speaks NBD by raw bytes.
type nbdClient struct {
	net.Conn
	raw bytes.Buffer // received
}

// dialNBD connects, and speaks TLS if there is a configuration.
func dialNBD(network, address string, secure *tls.Config) (*nbdClient, error) {
	c, err := net.Dial(network, address)
	if err != nil {
		return nil, err
	}
	n := &nbdClient{Conn: c}
	_ = c.SetDeadline(time.Now().Add(testTimeout))
	if _, err = n.read(18); err == nil {
		_, err = c.Write([]byte{0, 0, 0, 3})
	}
	if err == nil && secure != nil {
		if _, err = n.option(nbdStartTLS); err == nil {
			n.Conn = tls.Client(c, secure)
		}
	}
	if err != nil {
		return nil, errors.Join(err, c.Close())
	}
	return n, nil
}

func (n *nbdClient) read(size int) ([]byte, error) {
	b := make([]byte, size)
	_, err := io.ReadFull(n.Conn, b)
	n.raw.Write(b)
	return b, err
}

// nbdReply is an answer to an option.
type nbdReply struct {
	kind uint32
	data []byte
}

// option sends an option and returns its answers, of which the last is an
// acknowledgement or an error.
func (n *nbdClient) option(id uint32, data ...[]byte) (replies []nbdReply, err error) {
	n.raw.Reset()
	if _, err := n.Write(nbdtest.Option(id, data...)); err != nil {
		return nil, err
	}
	for {
		h, err := n.read(20)
		if err != nil {
			return nil, err
		}
		data, err := n.read(int(binary.BigEndian.Uint32(h[16:])))
		if err != nil {
			return nil, err
		}
		r := nbdReply{binary.BigEndian.Uint32(h[12:]), data}
		replies = append(replies, r)
		if r.kind == nbdAck || r.kind>>31 != 0 {
			return replies, nil
		}
	}
}

// list implements [client].
func (n *nbdClient) list() (names []string, err error) {
	replies, err := n.option(nbdList)
	for _, r := range replies {
		if r.kind == nbdServer {
			length := binary.BigEndian.Uint32(r.data)
			names = append(names, string(r.data[4:4+length]))
		}
	}
	return names, err
}

// open implements [client]. NBD asks for no mode: the client is told that it
// may only read.
func (n *nbdClient) open(name string, m mode) (outcome, error) {
	replies, err := n.option(nbdGo, nbdtest.GoData(name))
	if err != nil {
		return 0, err
	}
	got := hidden
	for _, r := range replies {
		switch {
		case r.kind == nbdInfo && binary.BigEndian.Uint16(r.data) == nbdFlagsOfExport:
			got = granted
			if binary.BigEndian.Uint16(r.data[10:])&nbdReadOnlyBit != 0 && m.writes {
				got = refused
			}
		case r.kind == nbdUnknown, r.kind == nbdTLSReqd, r.kind == nbdAck, r.kind == nbdInfo:
		default:
			return 0, fmt.Errorf("export %q is answered by %#x: %q", name, r.kind, r.data)
		}
	}
	return got, nil
}

// refusal implements [client].
func (n *nbdClient) refusal(name string) ([]byte, error) {
	_, err := n.option(nbdGo, nbdtest.GoData(name))
	return bytes.Clone(n.raw.Bytes()), err
}
