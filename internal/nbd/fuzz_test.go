package nbd

import (
	"bytes"
	"io"
	"net"
	"testing"
	"time"

	"github.com/viablk/viablk/internal/block"
)

// FuzzHandshake sends a byte stream to a whole server. Whatever it is, the server
// ends when the client does, has leaked nothing, and its replies parse.
func FuzzHandshake(f *testing.F) {
	option := func(id uint32, data []byte) []byte {
		return bytes.Join([][]byte{[]byte("IHAVEOPT"), be32(id), be32(uint32(len(data))), data}, nil)
	}
	for _, seed := range [][]byte{
		{},
		be32(0xffffffff),
		bytes.Join([][]byte{be32(3), option(optAbort, nil)}, nil),
		bytes.Join([][]byte{be32(3), option(optList, nil), option(optInfo, goData("disk", 1, 2, 3)), option(optGo, goData(""))}, nil),
		bytes.Join([][]byte{
			be32(3), option(optStructuredReply, nil), option(optGo, goData("", infoBlockSize)),
			request(0, cmdRead, 1, 0, 512), request(0, cmdDisconnect, 2, 0, 0),
		}, nil),
		bytes.Join([][]byte{be32(1), option(optExportName, []byte("disk")), request(0, cmdWrite, 1, 0, 512), make([]byte, 512)}, nil),
		bytes.Join([][]byte{be32(3), option(optStartTLS, nil), option(optSetMeta, make([]byte, 40)), option(optExtendedHeaders, nil)}, nil),
		bytes.Join([][]byte{be32(3), []byte("IHAVEOPT"), be32(optGo), be32(0xfffffff0)}, nil),
		bytes.Join([][]byte{
			be32(3), option(optStructuredReply, nil), option(optListMeta, metaData("disk", "base:")), option(optSetMeta, metaData("disk", contextName)),
			option(optGo, goData("disk")), request(cmdFlagReqOne, cmdBlockStatus, 1, 0, 1<<20), request(cmdFlagDF, cmdRead, 2, 0, 1<<20),
		}, nil),
		bytes.Join([][]byte{
			be32(3), option(optExtendedHeaders, nil), option(optSetMeta, metaData("disk", contextName)), option(optGo, goData("disk")),
			extendedRequest(cmdFlagPayloadLen, cmdBlockStatus, 1, 4096, 12), be64(4096), be32(contextID),
			extendedRequest(cmdFlagPayloadLen, cmdWrite, 2, 0, 3), []byte("abc"), extendedRequest(0, cmdTrim, 3, 0, 1<<40),
			extendedRequest(cmdFlagPayloadLen, cmdFlush, 4, 0, 3), []byte("abc"), extendedRequest(0, cmdDisconnect, 5, 0, 0),
		}, nil),
	} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, stream []byte) {
		if len(stream) > 1<<20 {
			return
		}
		m := newMemory(1 << 20)
		m.info.MaximumPayload = 1 << 20
		table, err := NewExports(Export{Name: "disk", Device: m})
		if err != nil {
			t.Fatal(err)
		}
		server, client := pair(t)
		s := &Server{Exports: table, Limits: Limits{Progress: -1}}
		ended := make(chan struct{})
		go func() {
			s.serve(s.welcome(nil, server))
			close(ended)
		}()
		exchange(t, client, stream)
		<-ended
		if m.open.Load() != 0 || m.leaked.Load() != 0 {
			t.Fatalf("%d queues open, %d reservations leaked", m.open.Load(), m.leaked.Load())
		}
	})
}

// FuzzTransmission sends a byte stream to the transmission phase, and checks that
// what comes back is a sequence of replies, each to a request that was sent.
func FuzzTransmission(f *testing.F) {
	for _, seed := range [][]byte{
		{},
		request(0, cmdRead, 1, 0, 512),
		bytes.Join([][]byte{request(0, cmdRead, 1, 0, 512), request(0, cmdDisconnect, 2, 0, 0)}, nil),
		bytes.Join([][]byte{request(cmdFlagFUA, cmdWrite, 1, 4096, 3), []byte("abc"), request(0, cmdFlush, 2, 0, 0)}, nil),
		bytes.Join([][]byte{request(0x8000, cmdWrite, 1, 1<<63, 5), []byte("abcde"), request(0, cmdTrim, 2, 0, 1<<20)}, nil),
		bytes.Join([][]byte{request(cmdFlagFastZero, cmdWriteZeroes, 1, 0, 1<<20), request(0, cmdCache, 2, 0, 1), request(0, 77, 3, 0, 1)}, nil),
		request(0, cmdWrite, 1, 0, 0xffffffff),
		make([]byte, requestHeaderSize),
	} {
		f.Add(seed, false)
		f.Add(seed, true)
	}
	f.Fuzz(func(t *testing.T, stream []byte, later bool) {
		if len(stream) > 1<<20 {
			return
		}
		m := newMemory(1 << 20)
		m.later = later
		m.info.MaximumPayload = 1 << 20
		m.info.Features &^= block.CanFastZero
		server, client := pair(t)
		s := &Server{Limits: Limits{Progress: -1, Depth: 8, InFlight: 2 << 20}}
		ended := make(chan error, 1)
		go func() { ended <- s.ServeConn(t.Context(), server, &Export{Device: m}, nil) }()
		replies := exchange(t, client, stream)
		<-ended
		if m.open.Load() != 0 || m.leaked.Load() != 0 {
			t.Fatalf("%d queues open, %d reservations leaked", m.open.Load(), m.leaked.Load())
		}
		checkReplies(t, stream, replies)
	})
}

// exchange sends the stream, closes the sending side, and returns what came back.
func exchange(t *testing.T, client net.Conn, stream []byte) []byte {
	client.SetDeadline(time.Now().Add(patience))
	go func() {
		client.Write(stream)
		client.(*net.UnixConn).CloseWrite()
	}()
	var b bytes.Buffer
	_, err := io.Copy(&b, client)
	if e, ok := err.(net.Error); ok && e.Timeout() {
		t.Fatal("the server does not end")
	}
	client.Close()
	return b.Bytes()
}

// checkReplies reads requests as a plain model does, and matches the replies.
func checkReplies(t *testing.T, stream, replies []byte) {
	type expected struct {
		reads map[uint64]int // READs by length
		other int
	}
	sent := map[uint64]*expected{}
	var h header
	for len(stream) >= requestHeaderSize && h.decode(stream, simple) && h.command != cmdDisconnect {
		stream = stream[requestHeaderSize:]
		if h.payload > uint64(len(stream)) {
			break
		}
		stream = stream[h.payload:]
		e := sent[h.cookie]
		if e == nil {
			e = &expected{reads: map[uint64]int{}}
			sent[h.cookie] = e
		}
		if h.command == cmdRead {
			e.reads[h.length]++
		} else {
			e.other++
		}
	}
	for len(replies) > 0 {
		if len(replies) < simpleReplySize || !bytes.Equal(replies[:4], be32(magicSimpleReply)) {
			// A connection that is cut off may end in a reply; one that is not has
			// another cookie than any that the client sent, or data of two lengths.
			return
		}
		cookie := uint64(0)
		for _, b := range replies[8:16] {
			cookie = cookie<<8 | uint64(b)
		}
		e := sent[cookie]
		if e == nil {
			t.Fatalf("reply to a request that was not sent: % x", replies[:16])
		}
		failed := !bytes.Equal(replies[4:8], be32(0))
		replies = replies[simpleReplySize:]
		if failed || len(e.reads) == 0 {
			continue
		}
		if len(e.reads) > 1 || e.other > 0 {
			return // the model cannot tell which of them this is
		}
		for length := range e.reads {
			if int(length) > len(replies) {
				return
			}
			replies = replies[length:]
		}
	}
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
