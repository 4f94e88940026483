package wire

import (
	"bytes"
	"reflect"
	"strings"
	"testing"

	"pgregory.net/rapid"
)

// enumerations draws only values that the protocol knows; everything else of a
// message is arbitrary, then makeValid has it obey the rules between fields.
var enumerations = rapid.MakeConfig{
	Types: map[reflect.Type]*rapid.Generator[any]{
		reflect.TypeFor[Status](): rapid.SampledFrom([]Status{
			StatusOK, StatusOK, StatusIO, StatusShutdown, StatusRetry,
			StatusContinue,
		}).AsAny(),
		reflect.TypeFor[Role]():         between(RoleControl, roleEnd-1),
		reflect.TypeFor[DataModes]():    below(modesKnown),
		reflect.TypeFor[Digest]():       below(digestKnown),
		reflect.TypeFor[Seal]():         below(sealKnown),
		reflect.TypeFor[AuthMethods]():  below(authKnown),
		reflect.TypeFor[AuthKind]():     between(AuthHello, authKindEnd-1),
		reflect.TypeFor[Features]():     below(featuresKnown),
		reflect.TypeFor[PortalState]():  below(portalEnd - 1),
		reflect.TypeFor[OpenMode]():     between(OpenReadOnly, openEnd-1),
		reflect.TypeFor[EntryKind]():    below(entryEnd - 1),
		reflect.TypeFor[EventKind]():    between(EventResize, eventEnd-1),
		reflect.TypeFor[AbortOutcome](): between(AbortUnknown, abortEnd-1),
		reflect.TypeFor[CommandFlags](): below(CommandFlags(flagsKnown)),
		reflect.TypeFor[ReplyFlags]():   below(ReplyFlags(replyFlagsKnown)),
		reflect.TypeFor[Opcode](): rapid.SampledFrom([]Opcode{
			OpRead, OpWrite, OpFlush, OpTrim, OpWriteZeroes, OpPrefetch, OpBlockStatus,
		}).AsAny(),
		reflect.TypeFor[DataMode](): below(ModePlace),
	},
}

type number interface{ ~uint8 | ~uint16 | ~uint32 }

func between[T number](low, high T) *rapid.Generator[any] {
	return rapid.Map(rapid.Uint32Range(uint32(low), uint32(high)),
		func(n uint32) T { return T(n) }).AsAny()
}

func below[T number](high T) *rapid.Generator[any] { return between(0, high) }

// makeValid changes what is left to make the message one that may be sent.
func makeValid(t *rapid.T, m Message) {
	switch m := m.(type) {
	case *inlineCommand:
		makeValidCommand(t, m)
	case *inlineReply:
		makeValidReply(m)
	case *LoginRequest:
		makeValidLoginRequest(m)
	case *LoginResponse:
		makeValidLoginResponse(m)
	case *Auth:
		makeValidAuth(m)
	case *OpenRequest:
		m.Name = makeValidName(m.Name)
	case *OpenResponse:
		m.Name = makeValidName(m.Name)
		m.Size >>= 1
		m.MinimumBlock = 1 << (m.MinimumBlock % 17)
		m.PreferredBlock = m.MinimumBlock << (m.PreferredBlock % 10)
	case *DiscoverRequest:
		m.MaxMessage %= MaxControlSize + 1
	case *DiscoverResponse:
		for i := range m.Entries {
			m.Entries[i].Name = makeValidName(m.Entries[i].Name)
			m.Entries[i].Size >>= 1
		}
	case *Event:
		m.Name = makeValidName(m.Name)
		m.Size >>= 1
	case *Fence:
		m.Cursor %= 1 << 16
		m.MaxMessage %= MaxControlSize + 1
	case *FenceResponse:
		for i := range m.Entries {
			e := &m.Entries[i]
			e.Slot = uint16(i)
			if !e.Executed {
				e.Status = StatusOK
			}
		}
		m.Next = 65535
	case *Refused:
		m.Status = StatusNotSupported
		m.Text = clip(m.Text, MaxReason)
	}
}

func makeValidLoginRequest(m *LoginRequest) {
	m.MinVersion, m.MaxVersion = Version, Version
	m.SessionID[0] |= 1
	m.Conns = m.Conns%MaxConns + 1
	m.Conn = [roleEnd]uint16{RoleIO: m.Conn%m.Conns + 1}[m.Role]
	m.Depth %= MaxDepth + 1
	m.InlineMax %= MaxInline + 1
	m.MaxIO %= MaxIO + 1
}

func makeValidLoginResponse(m *LoginResponse) {
	m.Version = Version
	m.DataModes &= modesKnown
	m.Credits %= MaxDepth + 1
	m.Conns %= MaxConns + 1
	m.SlotBase, m.SlotCount = m.SlotBase/2, m.SlotCount/2
	m.InlineMax %= MaxInline + 1
	m.MaxIO %= MaxIO + 1
	m.Text = clip(m.Text, MaxReason)
}

func makeValidAuth(m *Auth) {
	m.Version = AuthVersion
	if m.Kind != AuthJoin {
		m.Conn, m.Proof = 0, [32]byte{}
	}
	if !m.Answer {
		m.Status, m.RetryAfter = StatusOK, 0
	}
	if !m.Answer && m.Kind != AuthJoin {
		m.Session = [16]byte{}
	}
	if len(m.Data) == 0 {
		m.Data = nil
	}
}

func makeValidName(s string) string { return strings.ReplaceAll(s, "\x00", "0") }

func makeValidCommand(t *rapid.T, m *inlineCommand) {
	c := &m.Command
	for modesOf[c.Opcode]>>c.Mode&1 == 0 {
		c.Mode = (c.Mode + 1) % (ModePlace + 1)
	}
	c.InlineLength, c.HeaderLength = 0, HeaderSize
	switch c.Opcode {
	case OpRead, OpWrite:
		c.Length %= MaxInline
	case OpFlush:
		c.Offset, c.Length = 0, 0
	}
	if c.Mode == ModeNone {
		c.Flags &^= FlagDataDigest
	}
	if c.Opcode != OpWrite || c.Flags&FlagDataDigest == 0 {
		c.DataCRC = 0
	}
	if c.Mode < ModePull {
		c.NumSegments = 0
	} else {
		c.NumSegments = c.NumSegments%MaxSegments + 1
		c.HeaderLength += uint16(c.NumSegments-1) * SegmentSize
		c.Length = 0
	}
	for i := range c.Segments {
		s := &c.Segments[i]
		if i >= int(c.NumSegments) {
			*s = Segment{}
			continue
		}
		s.Addr >>= 1
		s.Length = s.Length%(MaxIO/MaxSegments) + 1
		c.Length += s.Length
	}
	m.Payload = nil
	if c.Opcode == OpWrite && c.Mode == ModeInline {
		c.Length %= 4096
		c.InlineLength = c.Length
		m.Payload = fill(c.Length)
	}
}

func makeValidReply(m *inlineReply) {
	r := &m.Reply
	if r.Status != StatusOK {
		r.Flags &^= ReplyDataDigest
	}
	if r.Flags&ReplyDataDigest == 0 {
		r.DataCRC = 0
	}
	if r.Status == StatusOK {
		r.RetryAfter = 0
		r.Flags &^= ReplyRetry | ReplyDNR
	} else {
		r.Length = 0
	}
	if r.Flags&ReplyRetry != 0 {
		r.Flags &^= ReplyDNR
	}
	if r.InlineLength%2 == 0 {
		r.InlineLength = 0
	} else {
		r.Length %= 4096
		r.InlineLength = r.Length
	}
	m.Payload = fill(r.InlineLength)
	if r.Status != StatusOK {
		r.InlineLength, m.Payload = 0, nil
	}
}

// fill makes a payload of n bytes, nil for none.
func fill(n uint32) []byte {
	if n == 0 {
		return nil
	}
	b := make([]byte, n)
	for i := range b {
		b[i] = byte(i * 7)
	}
	return b
}

// roundTrip draws messages of type T and requires that decoding returns what
// was encoded, through memory that held another message before.
func roundTrip[T any, P interface {
	*T
	Message
}](t *testing.T) {
	t.Helper()
	var m P = new(T)
	t.Run(typeName(m), func(t *testing.T) {
		messages := rapid.MakeCustom[T](enumerations)
		reused := P(new(T))
		buf := make([]byte, MaxHeader+MaxControlSize)
		rapid.Check(t, func(t *rapid.T) {
			drawn := messages.Draw(t, "message")
			sent := P(&drawn)
			makeValid(t, sent)
			n, err := sent.Encode(buf)
			if err != nil {
				t.Fatalf("encode: %v", err)
			}
			for _, got := range []P{new(T), reused} {
				if err := got.Decode(buf[:n]); err != nil {
					t.Fatalf("decode: %v\n%s", err, dump(buf[:n]))
				}
				again := mustEncode(got)
				if !bytes.Equal(again, buf[:n]) {
					t.Fatalf("again:\n%sfirst:\n%s", dump(again), dump(buf[:n]))
				}
				emptyIsNil(got)
				emptyIsNil(sent)
				if !reflect.DeepEqual(got, sent) {
					t.Fatalf("decoded\n%+v\nsent\n%+v", got, sent)
				}
			}
		})
	})
}

// emptyIsNil makes lists comparable.
func emptyIsNil(m Message) {
	switch m := m.(type) {
	case *DiscoverResponse:
		if len(m.Entries) == 0 {
			m.Entries = nil
		}
	case *FenceResponse:
		if len(m.Entries) == 0 {
			m.Entries = nil
		}
	}
}

func TestRoundTrip(t *testing.T) {
	roundTrip[inlineCommand](t)
	roundTrip[inlineReply](t)
	roundTrip[Auth](t)
	roundTrip[LoginRequest](t)
	roundTrip[LoginResponse](t)
	roundTrip[OpenRequest](t)
	roundTrip[OpenResponse](t)
	roundTrip[CloseRequest](t)
	roundTrip[CloseResponse](t)
	roundTrip[DiscoverRequest](t)
	roundTrip[DiscoverResponse](t)
	roundTrip[KeepAlive](t)
	roundTrip[Event](t)
	roundTrip[EventAck](t)
	roundTrip[Abort](t)
	roundTrip[AbortResponse](t)
	roundTrip[Fence](t)
	roundTrip[FenceResponse](t)
	roundTrip[Logout](t)
	roundTrip[LogoutResponse](t)
	roundTrip[Refused](t)
}
