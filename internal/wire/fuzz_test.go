package wire

import (
	"bytes"
	"errors"
	"testing"
)

// Each decoder has its own target. Seeds are one encoded message each, written
// by TestGolden with -update.

func FuzzCommand(f *testing.F)          { fuzzMessage[inlineCommand](f) }
func FuzzReply(f *testing.F)            { fuzzMessage[inlineReply](f) }
func FuzzAuth(f *testing.F)             { fuzzMessage[Auth](f) }
func FuzzLoginRequest(f *testing.F)     { fuzzMessage[LoginRequest](f) }
func FuzzLoginResponse(f *testing.F)    { fuzzMessage[LoginResponse](f) }
func FuzzOpenRequest(f *testing.F)      { fuzzMessage[OpenRequest](f) }
func FuzzOpenResponse(f *testing.F)     { fuzzMessage[OpenResponse](f) }
func FuzzCloseRequest(f *testing.F)     { fuzzMessage[CloseRequest](f) }
func FuzzCloseResponse(f *testing.F)    { fuzzMessage[CloseResponse](f) }
func FuzzDiscoverRequest(f *testing.F)  { fuzzMessage[DiscoverRequest](f) }
func FuzzDiscoverResponse(f *testing.F) { fuzzMessage[DiscoverResponse](f) }
func FuzzKeepAlive(f *testing.F)        { fuzzMessage[KeepAlive](f) }
func FuzzEvent(f *testing.F)            { fuzzMessage[Event](f) }
func FuzzEventAck(f *testing.F)         { fuzzMessage[EventAck](f) }
func FuzzAbort(f *testing.F)            { fuzzMessage[Abort](f) }
func FuzzAbortResponse(f *testing.F)    { fuzzMessage[AbortResponse](f) }
func FuzzFence(f *testing.F)            { fuzzMessage[Fence](f) }
func FuzzFenceResponse(f *testing.F)    { fuzzMessage[FenceResponse](f) }
func FuzzLogout(f *testing.F)           { fuzzMessage[Logout](f) }
func FuzzLogoutResponse(f *testing.F)   { fuzzMessage[LogoutResponse](f) }
func FuzzRefused(f *testing.F)          { fuzzMessage[Refused](f) }

// fuzzMessage decodes arbitrary bytes as they are, and with the checksums made
// right so that the rules behind them are reached.
func fuzzMessage[T any, P interface {
	*T
	Message
}](f *testing.F) {
	f.Fuzz(func(t *testing.T, b []byte) {
		checkDecode(t, P(new(T)), b)
		repaired := bytes.Clone(b)
		repair(repaired)
		checkDecode(t, P(new(T)), repaired)
	})
}

// checkDecode requires that a decoder refuses with one of the classes, or that
// what it accepts encodes to the same bytes: there is one encoding of a
// message.
func checkDecode(t *testing.T, m Message, b []byte) {
	before := bytes.Clone(b)
	err := m.Decode(b)
	if !bytes.Equal(before, b) {
		t.Fatal("decoding changed the message")
	}
	if err != nil {
		var r *Refusal
		if !errors.As(err, &r) || r.Rule == "" {
			t.Fatalf("refused without a rule: %v", err)
		}
		return
	}
	if op, err := PeekKind(b); err != nil || !op.known() {
		t.Fatalf("decoded, but PeekKind says %v, %v", op, err)
	}
	buf := make([]byte, len(b))
	n, err := m.Encode(buf)
	if err != nil {
		t.Fatalf("decoded, but not encodable: %v", err)
	}
	if newer(m) {
		return // a later version's message is longer than ours
	}
	if !bytes.Equal(buf[:n], b) {
		t.Fatalf("accepted\n%sencoded\n%s", dump(b), dump(buf[:n]))
	}
}

// newer reports whether m is the login of a later version.
func newer(m Message) bool {
	switch m := m.(type) {
	case *LoginRequest:
		return m.MaxVersion > Version
	case *LoginResponse:
		return m.Version > Version
	}
	return false
}

// repair makes the checksums of b right, and what they need.
func repair(b []byte) {
	if len(b) < HeaderSize {
		return
	}
	h := (*[HeaderSize]byte)(b)
	op, extra := Opcode(b[0]), 0
	if op.IsControl() {
		le.PutUint32(b[controlHeaderAtMagic:], magic)
		le.PutUint32(b[controlHeaderAtBodyLength:], uint32(len(b)-HeaderSize))
		le.PutUint32(b[controlHeaderAtBodyCRC:], DataCRC(b[HeaderSize:]))
	} else if op.IsCommand() && b[commandAtNumSegments] > 1 {
		extra = (int(b[commandAtNumSegments]) - 1) * SegmentSize
		extra = min(extra, len(b)-HeaderSize)
	}
	le.PutUint16(b[headerAtHeaderLength:], uint16(HeaderSize+extra))
	crc := headerCRC(h, b[HeaderSize:HeaderSize+extra])
	le.PutUint32(b[headerAtHeaderCRC:], crc)
}

// FuzzPeek requires that the verified dispatch never accepts what the headers
// contradict.
func FuzzPeek(f *testing.F) {
	for _, s := range samples() {
		f.Add(mustEncode(s.msg))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		for range 2 {
			op, err := PeekKind(b)
			if err == nil && (!op.known() || op != RawOpcode(b)) {
				t.Fatalf("PeekKind accepted %v", op)
			}
			header, err := PeekControl(b)
			if err == nil && (header.Opcode != op || !op.IsControl()) {
				t.Fatalf("PeekControl says %v, PeekKind %v", header.Opcode, op)
			}
			repair(b)
		}
	})
}
