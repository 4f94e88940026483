package wire

import (
	"bytes"
	"reflect"
	"strings"
)

// inlineCommand and inlineReply make whole messages, payload and all, of the
// two capsules, so that every test of messages runs on them too.
type inlineCommand struct {
	Command
	Payload []byte
}

func (m *inlineCommand) Encode(b []byte) (int, error) {
	n := m.Command.Encode(b)
	return n + copy(m.Inline(b), m.Payload), nil
}

func (m *inlineCommand) Decode(b []byte) error {
	if err := m.Command.Decode(b); err != nil {
		return err
	}
	m.Payload = append([]byte(nil), m.Inline(b)...)
	return nil
}

type inlineReply struct {
	Reply
	Payload []byte
}

func (m *inlineReply) Encode(b []byte) (int, error) {
	n := m.Reply.Encode(b)
	return n + copy(m.Inline(b), m.Payload), nil
}

func (m *inlineReply) Decode(b []byte) error {
	if err := m.Reply.Decode(b); err != nil {
		return err
	}
	m.Payload = append([]byte(nil), m.Inline(b)...)
	return nil
}

// sample is a valid message and the name of its golden file.
type sample struct {
	name string
	msg  Message
}

// fresh returns an empty message of the same kind.
func (s sample) fresh() Message { return freshLike(s.msg) }

func freshLike(m Message) Message {
	return reflect.New(reflect.TypeOf(m).Elem()).Interface().(Message)
}

// id makes 16 recognisable bytes.
func id(first byte) (b [16]byte) {
	for i := range b {
		b[i] = first + byte(i)
	}
	return b
}

// key makes 32 recognisable bytes.
func key(first byte) (b [32]byte) {
	for i := range b {
		b[i] = first + byte(i)
	}
	return b
}

// samples has at least one message of every kind, each field with a value of
// its own where the rules allow it.
func samples() []sample {
	return append(capsuleSamples(), controlSamples()...)
}

func capsuleSamples() []sample {
	payload := bytes.Repeat([]byte("viablk!\n"), 4)
	return []sample{
		{"command-read-inline", &inlineCommand{Command: Command{
			Opcode: OpRead, Mode: ModeInline, Slot: 0x0102, Export: 0x0304,
			Seq: 0x05060708, PathEpoch: 0x090a0b0c, Offset: 0x0d0e0f1011121314,
			Length: 4096, AgeBudget: 0x15161718, Priority: 0x191a,
			Flags: FlagDataDigest | FlagNoDeadline, HeaderLength: 64,
		}}},
		{"command-read-place", &inlineCommand{Command: Command{
			Opcode: OpRead, Mode: ModePlace, Slot: 7, Export: 1, Seq: 2,
			PathEpoch: 3, Offset: 1 << 40, Length: 3 << 16, NumSegments: 2,
			HeaderLength: 80, Segments: [MaxSegments]Segment{
				{0x7f0011223344, 0xaabbccdd, 1 << 16},
				{0x7f5566778899, 0x11223344, 2 << 16},
			},
		}}},
		{"command-write-inline", &inlineCommand{Command: Command{
			Opcode: OpWrite, Mode: ModeInline, Flags: FlagFUA | FlagDataDigest,
			Slot: 9, Seq: 10, PathEpoch: 11, Offset: 512, Length: 32,
			InlineLength: 32, DataCRC: DataCRC(payload), HeaderLength: 64,
		}, Payload: payload}},
		{"command-write-pull", &inlineCommand{Command: Command{
			Opcode: OpWrite, Mode: ModePull, Flags: FlagReplay, Slot: 1,
			Seq: 1 << 31, PathEpoch: 2, Length: MaxIO, NumSegments: 4,
			HeaderLength: MaxHeader, Segments: [MaxSegments]Segment{
				{1, 2, MaxIO / 2}, {3, 4, MaxIO / 4}, {5, 6, MaxIO/4 - 1}, {7, 8, 1},
			},
		}}},
		{"command-flush", &inlineCommand{Command: Command{
			Opcode: OpFlush, Slot: 3, Seq: 4, PathEpoch: 5, HeaderLength: 64,
		}}},
		{"command-write-zeroes", &inlineCommand{Command: Command{
			Opcode: OpWriteZeroes, Flags: FlagNoHole | FlagFastZero | FlagFUA,
			Offset: 1 << 20, Length: 0xfffff000, HeaderLength: 64,
		}}},
		{"command-block-status", &inlineCommand{Command: Command{
			Opcode: OpBlockStatus, Mode: ModeInline, Slot: 5, Export: 6, Seq: 7,
			PathEpoch: 8, Offset: 1 << 41, Length: 1 << 31, HeaderLength: 64,
		}}},
		{"reply-ok-inline", &inlineReply{Reply: Reply{
			Flags: ReplyDataDigest, Slot: 0x0102, CreditDelta: -2,
			Seq: 0x05060708, PathEpoch: 0x090a0b0c, Length: 32,
			InlineLength: 32, Verifier: 0x1122334455667788,
			DataCRC: DataCRC(payload), QueueMicros: 12, BackendMicros: 345,
		}, Payload: payload}},
		{"reply-ok-extents", &inlineReply{Reply: Reply{
			Slot: 5, Seq: 7, PathEpoch: 8, Length: 24, InlineLength: 24, Verifier: 1,
		}, Payload: extentList(Extent{1 << 20, 0}, Extent{1 << 30, ExtentHole | ExtentZero}, Extent{4096, ExtentZero})}},
		{"reply-error", &inlineReply{Reply: Reply{
			Flags: ReplyRetry | ReplyFenced, Status: StatusRetry, Slot: 4,
			CreditDelta: 5, Seq: 6, PathEpoch: 7, Verifier: 8, RetryAfter: 250,
		}}},
	}
}

// extentList is the payload of an answer to block-status.
func extentList(extents ...Extent) []byte {
	b := make([]byte, len(extents)*ExtentSize)
	for i, e := range extents {
		e.Encode(b[i*ExtentSize:])
	}
	return b
}

func controlSamples() []sample {
	return append(sessionSamples(), recoverySamples()...)
}

// sessionSamples are what sets sessions and exports up.
func sessionSamples() []sample {
	return []sample{
		{"auth-hello", &Auth{
			ID: 1, PathEpoch: 2, Kind: AuthHello, Methods: AuthCertificates, Seals: SealAESGCM,
			Version: AuthVersion, Nonce: key(0x10), Data: []byte("client hello"),
		}},
		{"auth-flight-last", &Auth{
			ID: 2, PathEpoch: 2, Kind: AuthFlight, Last: true,
			Version: AuthVersion, Nonce: key(0x20), Data: []byte("certificate"),
		}},
		{"auth-join", &Auth{
			ID: 1, PathEpoch: 0x01020304, Kind: AuthJoin, Version: AuthVersion, Conn: 3,
			Session: id(0x30), Nonce: key(0x40), Proof: key(0x60),
		}},
		{"auth-response-continue", &Auth{
			ID: 1, PathEpoch: 2, Answer: true, Status: StatusContinue, Kind: AuthHello,
			Methods: AuthCertificates, Seals: SealAESGCM, Version: AuthVersion,
			Nonce: key(0x10), Data: []byte("server hello"),
		}},
		{"auth-response-ok", &Auth{
			ID: 2, PathEpoch: 2, Answer: true, Kind: AuthRekey, Last: true, Version: AuthVersion,
			Session: id(0x30), Nonce: key(0x50),
		}},
		{"auth-rekey", &Auth{
			ID: 1, PathEpoch: 2, Kind: AuthRekey, Methods: AuthCertificates, Seals: SealAESGCM,
			Version: AuthVersion, Nonce: key(0x40), Data: []byte("client hello inside the seal"),
		}},
		{"auth-rekey-last", &Auth{
			ID: 2, PathEpoch: 2, Kind: AuthRekey, Last: true,
			Version: AuthVersion, Nonce: key(0x50), Data: []byte("certificate"),
		}},
		{"auth-rekey-response", &Auth{
			ID: 1, PathEpoch: 2, Answer: true, Status: StatusContinue, Kind: AuthRekey,
			Methods: AuthCertificates, Seals: SealAESGCM, Version: AuthVersion,
			Nonce: key(0x60), Data: []byte("server hello"),
		}},
		{"auth-response-retry", &Auth{
			ID: 1, PathEpoch: 2, Answer: true, Status: StatusRetry, Kind: AuthHello,
			Version: AuthVersion, RetryAfter: 500, Nonce: key(0x10),
		}},
		{"login-request", &LoginRequest{
			ID: 1, PathEpoch: 2, MinVersion: Version,
			MaxVersion: Version, Role: RoleIO, HostID: id(0x10), SessionID: id(0x20),
			SessionGen: 3, Nonce: 0x1234567890abcdef, ClientNonce: id(0x30),
			PathID: 4, Conn: 3, Conns: 5, Depth: 128, InlineMax: 8192,
			MaxIO: 32 << 20, DataModes: modesKnown, Digest: DigestCRC32C,
			Seal: SealAESGCM, AuthMethods: AuthPSK, Features: FeatureImmediate | FeatureEvents,
			PublicKey: key(0x40), Proof: key(0x60),
		}},
		{"login-response", &LoginResponse{
			ID: 1, PathEpoch: 2, Version: Version,
			TargetID: id(0x10), TargetInstance: id(0x20), ServerNonce: id(0x30),
			Credits: 128, SlotBase: 256, SlotCount: 132, Conns: 2,
			InlineMax: 8192, MaxIO: MaxIO, KeepAliveMillis: 1000,
			DataModes: modesKnown, Digest: DigestCRC32C, Seal: SealAESGCM,
			AuthMethod: AuthPSK, Features: FeatureImmediate,
			PortalState: PortalNonOptimized, PublicKey: key(0x40),
			Proof: key(0x60),
		}},
		{"login-response-refused", &LoginResponse{
			ID: 1, PathEpoch: 2,
			Version: Version, Status: StatusStale, Reason: ReasonGeneration,
			RetryAfter: 500, Text: "a newer process took the session over – gen 7",
		}},
		{"open-request", &OpenRequest{
			ID: 3, PathEpoch: 2, OpenID: 4,
			Mode: OpenReadWrite, Return: true, Preempt: true, WantUUID: id(0x50),
			Writer: id(0x60), Generation: 7, Name: "disks/größe",
		}},
		{"open-response", &OpenResponse{
			ID: 3, PathEpoch: 2, Export: 5,
			ExportUUID: id(0x50), SizeGen: 6, Generation: 8, Size: 1 << 40, MinimumBlock: 512,
			PreferredBlock: 4096, Verifier: 0xfedcba9876543210,
			Features: ExportFlush | ExportFUA | ExportMultiConn, Name: "disks/a",
			Description: "root of the virtual machine",
		}},
		{"open-response-refused", &OpenResponse{
			ID: 3, PathEpoch: 2,
			Status: StatusBusy, Reason: "open read-write by another host",
		}},
		{"close-request", &CloseRequest{ID: 5, PathEpoch: 2, OpenID: 4, Export: 5}},
		{"close-response", &CloseResponse{
			ID: 5, PathEpoch: 2,
			Status: StatusNotFound,
		}},
		{"discover-request", &DiscoverRequest{
			ID: 6, PathEpoch: 2, Cursor: 7,
			MaxMessage: 4096,
		}},
		{"discover-response", &DiscoverResponse{
			ID: 6, PathEpoch: 2,
			Generation: 8, Next: 9, Entries: []ExportEntry{
				{
					Default: true, UUID: id(0x50), Size: 1 << 30,
					Features: ExportTrim | ExportReadOnly, Description: "the default",
				},
				{
					Kind: EntryPortal, State: PortalDraining,
					Name: "via+roce://192.0.2.1/",
				},
			},
		}},
	}
}

// recoverySamples are what keeps sessions alive and ends them.
func recoverySamples() []sample {
	return []sample{
		{"keepalive", &KeepAlive{ID: 10, PathEpoch: 2}},
		{"keepalive-ack", &KeepAlive{ID: 10, PathEpoch: 2, Ack: true}},
		{"event-resize", &Event{
			ID: 11, PathEpoch: 2, Kind: EventResize,
			Export: 5, SizeGen: 7, UUID: id(0x50), Size: 1 << 41,
		}},
		{"event-goaway", &Event{
			ID: 12, PathEpoch: 2, Kind: EventGoAway,
			RetryAfter: 3000, PortalState: PortalDraining,
		}},
		{"event-rekey", &Event{ID: 13, PathEpoch: 2, Kind: EventRekey}},
		{"event-removed", &Event{
			ID: 12, PathEpoch: 2, Kind: EventExportRemoved,
			UUID: id(0x50), Verifier: 9, Name: "disks/a",
		}},
		{"event-ack", &EventAck{ID: 12, PathEpoch: 2, Kind: EventGoAway}},
		{"abort", &Abort{ID: 13, PathEpoch: 2, Seq: 0x01020304, Slot: 0x0506}},
		{"abort-response", &AbortResponse{
			ID: 13, PathEpoch: 2, Seq: 0x01020304,
			Slot: 0x0506, Outcome: AbortRunning, AgeMillis: 31000,
		}},
		{"fence", &Fence{
			ID: 14, PathEpoch: 2, Epoch: 8, PathID: 4, Force: true,
			Cursor: 65535, MaxMessage: 4096,
		}},
		{"fence-response", &FenceResponse{
			ID: 14, PathEpoch: 2, Epoch: 8,
			PathID: 4, Next: 300, Entries: []FenceEntry{
				{Seq: 1, Slot: 0, Executed: true, Status: StatusIO},
				{Seq: 2, Slot: 7, Executed: true},
				{Seq: 3, Slot: 299},
			},
		}},
		{"fence-response-busy", &FenceResponse{
			ID: 14, PathEpoch: 2, Epoch: 8,
			PathID: 4, Status: StatusBusy, Busy: 3, OldestMillis: 12000,
		}},
		{"logout", &Logout{ID: 16, PathEpoch: 2, KeepSession: true}},
		{"logout-response", &LogoutResponse{ID: 16, PathEpoch: 2, Durable: true}},
		{"refused", &Refused{
			ID: 17, PathEpoch: 2, Status: StatusNotSupported,
			Request: 0x7e, Text: "unknown request",
		}},
	}
}

// mustEncode encodes a message that fits.
func mustEncode(m Message) []byte {
	b := make([]byte, MaxHeader+MaxControlSize)
	n, err := m.Encode(b)
	if err != nil {
		panic(err)
	}
	return b[:n]
}

// typeName is the name of the message type, as docs and fuzz targets have it.
func typeName(m Message) string {
	return strings.TrimPrefix(reflect.TypeOf(m).Elem().Name(), "inline")
}
