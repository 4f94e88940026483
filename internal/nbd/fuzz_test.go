package nbd

import (
	"bytes"
	"encoding/binary"
	"io"
	"net"
	"slices"
	"testing"
	"time"

	"github.com/viablk/viablk/internal/nbd/nbdtest"
)

// The TLS setup of a fuzzed handshake.
const (
	noTLS       = byte(iota) // the server has no certificates
	offeredTLS               // it has some, and the stream is sent in the clear
	requiredTLS              // the same, and nothing is had without TLS
	insideTLS                // the stream is sent inside TLS
	tlsKinds
)

// FuzzHandshake sends a byte stream to a whole server, in the clear or inside
// TLS. In every case the server ends when the client does, has leaked
// nothing, and what it says up to transmission is replies to options.
func FuzzHandshake(f *testing.F) {
	option := func(id uint32, data []byte) []byte {
		return bytes.Join([][]byte{[]byte("IHAVEOPT"), be32(id), be32(uint32(len(data))), data}, nil)
	}
	for _, seed := range [][]byte{
		{},
		be32(0xffffffff),
		bytes.Join([][]byte{be32(3), option(optAbort, nil)}, nil),
		bytes.Join([][]byte{be32(3), option(optList, nil), option(optInfo, nbdtest.GoData("disk", 1, 2, 3)), option(optGo, nbdtest.GoData(""))}, nil),
		bytes.Join([][]byte{
			be32(3), option(optStructuredReply, nil), option(optGo, nbdtest.GoData("", infoBlockSize)),
			request(0, cmdRead, 1, 0, 512), request(0, cmdDisconnect, 2, 0, 0),
		}, nil),
		bytes.Join([][]byte{be32(1), option(optExportName, []byte("disk")), request(0, cmdWrite, 1, 0, 512), make([]byte, 512)}, nil),
		bytes.Join([][]byte{be32(3), option(optStartTLS, nil), option(optSetMeta, make([]byte, 40)), option(optExtendedHeaders, nil)}, nil),
		bytes.Join([][]byte{be32(3), []byte("IHAVEOPT"), be32(optGo), be32(0xfffffff0)}, nil),
		bytes.Join([][]byte{
			be32(3), option(optStructuredReply, nil), option(optListMeta, nbdtest.MetaData("disk", "base:")), option(optSetMeta, nbdtest.MetaData("disk", contextName)),
			option(optGo, nbdtest.GoData("disk")), request(cmdFlagReqOne, cmdBlockStatus, 1, 0, 1<<20), request(cmdFlagDF, cmdRead, 2, 0, 1<<20),
		}, nil),
		bytes.Join([][]byte{
			be32(3), option(optExtendedHeaders, nil), option(optSetMeta, nbdtest.MetaData("disk", contextName)), option(optGo, nbdtest.GoData("disk")),
			extendedRequest(cmdFlagPayloadLen, cmdBlockStatus, 1, 4096, 12), be64(4096), be32(contextID),
			extendedRequest(cmdFlagPayloadLen, cmdWrite, 2, 0, 3), []byte("abc"), extendedRequest(0, cmdTrim, 3, 0, 1<<40),
			extendedRequest(cmdFlagPayloadLen, cmdFlush, 4, 0, 3), []byte("abc"), extendedRequest(0, cmdDisconnect, 5, 0, 0),
		}, nil),
	} {
		f.Add(seed, noTLS)
		f.Add(seed, offeredTLS)
		f.Add(seed, requiredTLS)
		f.Add(seed[min(4, len(seed)):], insideTLS)
	}
	f.Fuzz(func(t *testing.T, stream []byte, kind byte) {
		if len(stream) > 1<<20 {
			return
		}
		kind %= tlsKinds
		m := newMemory(1 << 20)
		m.info.MaximumPayload = 1 << 20
		table, err := NewExports(Export{Name: "disk", Device: m})
		if err != nil {
			t.Fatal(err)
		}
		server, client := pair(t)
		s := &Server{Exports: table, Limits: Limits{Progress: -1}}
		if kind != noTLS {
			s.TLS = TLS{Config: certificates(t).server, Required: kind == requiredTLS}
		}
		ended := make(chan struct{})
		go func() {
			s.serve(s.admitConn(nil, server))
			close(ended)
		}()
		p := newPeer(t, client)
		if kind == insideTLS {
			p.greet(bothFlags)
			p.startTLS("alice")
		}
		replies := exchange(t, p.Conn, stream, max(len(stream), 1))
		client.Close()
		<-ended
		checkHandshake(t, stream, replies, kind)
		if m.open.Load() != 0 || m.leaked.Load() != 0 {
			t.Fatalf("%d queues open, %d reservations leaked", m.open.Load(), m.leaked.Load())
		}
	})
}

// checkHandshake parses what a server said. Behind the greeting there are
// replies to options until the client has chosen an export.
func checkHandshake(t *testing.T, stream, replies []byte, kind byte) {
	if kind != insideTLS {
		if !bytes.HasPrefix(replies, greeting) {
			t.Fatalf("greeting % x", replies)
		}
		replies = replies[len(greeting):]
	}
	for len(replies) >= replyHeaderSize && binary.BigEndian.Uint64(replies) == magicOptionReply {
		option, kind := binary.BigEndian.Uint32(replies[8:]), binary.BigEndian.Uint32(replies[12:])
		size := uint64(replyHeaderSize) + uint64(binary.BigEndian.Uint32(replies[16:]))
		if size > uint64(len(replies)) {
			t.Fatalf("a reply of %d bytes in %d", size, len(replies))
		}
		replies = replies[size:]
		if kind == repAck && (option == optGo || option == optStartTLS) {
			return // requests or TLS from here on
		}
	}
	chosen := bytes.Contains(stream, bytes.Join([][]byte{[]byte("IHAVEOPT"), be32(optExportName)}, nil))
	if len(replies) > 0 && !chosen || kind == requiredTLS && len(replies) > 0 {
		t.Fatalf("%d bytes that answer nothing: % x", len(replies), replies[:min(len(replies), 32)])
	}
}

// exchange sends the stream, piece bytes at a time, closes the sending side,
// and returns what came back.
func exchange(t *testing.T, client net.Conn, stream []byte, piece int) []byte {
	client.SetDeadline(time.Now().Add(testTimeout))
	go func() {
		for part := range slices.Chunk(stream, piece) {
			client.Write(part)
		}
		client.(interface{ CloseWrite() error }).CloseWrite()
	}()
	var b bytes.Buffer
	_, err := io.Copy(&b, client)
	if e, ok := err.(net.Error); ok && e.Timeout() {
		t.Fatal("the server does not end")
	}
	client.Close()
	return b.Bytes()
}

// FuzzClient lets a server say anything to the client side of haggling.
func FuzzClient(f *testing.F) {
	size := exportInformation(4096)
	for _, seed := range [][]byte{
		{},
		greeting,
		bytes.Join([][]byte{greeting, ack, optionReply(optInfo, repInfo, size), optionReply(optInfo, repAck)}, nil),
		bytes.Join([][]byte{
			greeting, ack, optionReply(optList, repServer, be32(4), []byte("disk")), optionReply(optList, repAck),
			optionReply(optInfo, repErrUnknown, []byte("gone")),
		}, nil),
	} {
		f.Add(seed, false)
		f.Add(seed, true)
	}
	f.Fuzz(func(t *testing.T, stream []byte, list bool) {
		server, client := pair(t)
		go func() {
			server.Write(stream)
			server.(*net.UnixConn).CloseWrite()
			io.Copy(io.Discard, server)
			server.Close()
		}()
		if !list {
			if e, err := new(Client).Info(t.Context(), client, "disk"); err == nil && (e.Size < 0 || validName(e.Name, maximumText) != nil) {
				t.Fatalf("%+v", e)
			}
			return
		}
		exports, err := Client{}.List(t.Context(), client)
		for _, e := range exports {
			if err == nil && (e.Size < 0 || validName(e.Name, maximumText) != nil || len(e.Description) > maximumText) {
				t.Fatalf("%+v", e)
			}
		}
	})
}
