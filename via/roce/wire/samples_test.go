package wire

import (
	"net/netip"
	"strings"
	"testing"
	"time"
)

// The ends of the sample packets.
var (
	sampleSrc = netip.MustParseAddrPort("[fd77::2]:51413")
	sampleDst = netip.MustParseAddrPort("[fd77::1]:4791")
	sampleSr4 = netip.MustParseAddrPort("10.77.0.2:51413")
	sampleDs4 = netip.MustParseAddrPort("10.77.0.1:4791")
)

func checksum(src, dst netip.AddrPort) *ICRC {
	var c ICRC
	c.Set(src, dst)
	return &c
}

// count returns n bytes that differ from their neighbours.
func count(n int) []byte {
	b := make([]byte, n)
	for i := range b {
		b[i] = byte(i + i>>8 + 1)
	}
	return b
}

// samplePacket returns a packet of an opcode whose fields all differ.
func samplePacket(op Opcode) *Packet {
	info := &opcodes[op]
	p := &Packet{BTH: BTH{
		Opcode: op, Solicited: info.flags&End != 0, AckRequest: info.flags&Response == 0,
		PKey: DefaultPKey, DestQP: 0x123456, PSN: 0xfffffe,
	}}
	switch info.payload {
	case payloadAny:
		p.Payload = count(6)
	case payloadSome:
		p.Payload = count(5)
	case payloadFull:
		p.Payload = count(256)
	case payloadReserved:
		p.Payload = make([]byte, cnpReserved)
		p.BECN = true
	default:
		p.Payload = []byte{}
	}
	p.Pad = uint8(-len(p.Payload) & 3)
	p.fill(info.extensions)
	return p
}

// fill sets the fields of extension headers.
func (p *Packet) fill(has Extensions) {
	if has&ExtDETH != 0 {
		p.DETH = DETH{QKey: GSIQKey, SourceQP: 0x654321}
	}
	if has&ExtRETH != 0 {
		p.RETH = RETH{Addr: 0x0102_0304_0506_0708, Key: 0x0a0b_0c0d, Length: uint32(len(p.Payload))}
		if p.Opcode.Flags()&End == 0 || p.Opcode == RCReadRequest {
			p.RETH.Length = 0x0001_e240
		}
	}
	if has&ExtAETH != 0 {
		p.AETH = AETH{Syndrome: ACK, MSN: 0x0f1e2d}
	}
	if has&ExtImmDt != 0 {
		p.Immediate = 0xcafe_f00d
	}
	if has&ExtIETH != 0 {
		p.Invalidate = 0x5566_7788
	}
}

// known returns the known opcodes.
func known() (ops []Opcode) {
	for op := range 256 {
		if Opcode(op).IsKnown() {
			ops = append(ops, Opcode(op))
		}
	}
	return ops
}

// slug converts an opcode's name to a file name.
func slug(op Opcode) string {
	return strings.ReplaceAll(strings.ToLower(op.String()), " ", "-")
}

// encodePacket encodes a packet between the sample ends.
func encodePacket(p *Packet) []byte {
	return p.Append(nil, checksum(sampleSrc, sampleDst), Identification{})
}

// sampleMessage is one message of the connection manager.
type sampleMessage struct {
	name string
	msg  Message
}

// fresh returns an empty message of the same type.
func fresh(m Message) Message {
	switch m.(type) {
	case *REQ:
		return new(REQ)
	case *REP:
		return new(REP)
	case *RTU:
		return new(RTU)
	case *REJ:
		return new(REJ)
	case *MRA:
		return new(MRA)
	case *DREQ:
		return new(DREQ)
	case *DREP:
		return new(DREP)
	}
	panic("not a message")
}

func encodeMessage(m Message) []byte {
	b := make([]byte, MADSize)
	m.Encode(b)
	return b
}

// sampleMessages returns messages whose fields all differ.
func sampleMessages() []sampleMessage {
	return []sampleMessage{
		{"req", &REQ{
			TID: 0x0102_0304_0506_0708, LocalID: 0x1112_1314, VendorID: 0x15_1617,
			ServiceID: TCPService(10809), LocalGUID: 0x2122_2324_2526_2728, Tag: 0x292a_2b2c_3132_3334,
			LocalQP: 0x35_3637, ResponderResources: 16, LocalEECN: 0x38_393a, InitiatorDepth: 17,
			RemoteEECN: 0x3b_3c3d, RemoteTimeout: 20, Transport: UC, EndToEnd: true,
			StartingPSN: 0x41_4243, LocalTimeout: 21, RetryCount: 6, PKey: DefaultPKey,
			MTU: MTU2048, RDCExists: true, RNRRetryCount: 5, MaxCMRetries: 15, SRQ: true,
			ExtendedTransport: 3, Primary: samplePath(1), Alternate: samplePath(2),
			Private: [reqPrivateSize]byte(count(reqPrivateSize)),
		}},
		{"rep", &REP{
			TID: 0x0102_0304_0506_0708, LocalID: 0x5152_5354, RemoteID: 0x1112_1314,
			QKey: 0x6162_6364, LocalQP: 0x65_6667, LocalEECN: 0x68_696a, StartingPSN: 0x6b_6c6d,
			ResponderResources: 7, InitiatorDepth: 8, TargetAckDelay: 15, Failover: 2,
			EndToEnd: true, RNRRetryCount: 7, SRQ: true, LocalGUID: 0x7172_7374_7576_7778,
			Private: [repPrivateSize]byte(count(repPrivateSize)),
		}},
		{"rtu", &RTU{
			TID: 1, LocalID: 0x1112_1314, RemoteID: 0x5152_5354,
			Private: [rtuPrivateSize]byte(count(rtuPrivateSize)),
		}},
		{"rej", &REJ{
			TID: 1, LocalID: 0x1112_1314, RemoteID: 0x5152_5354, Answered: AnsweredREP,
			Reason: RejectConsumer, ARILength: ariSize, ARI: [ariSize]byte(count(ariSize)),
			Private: [rejPrivateSize]byte(count(rejPrivateSize)),
		}},
		{"mra", &MRA{
			TID: 1, LocalID: 0x1112_1314, RemoteID: 0x5152_5354, Answered: AnsweredOther,
			ServiceTimeout: TimeoutFor(time.Minute),
			Private:        [mraPrivateSize]byte(count(mraPrivateSize)),
		}},
		{"dreq", &DREQ{
			TID: 2, LocalID: 0x1112_1314, RemoteID: 0x5152_5354, RemoteQP: 0x65_6667,
			Private: [dreqPrivateSize]byte(count(dreqPrivateSize)),
		}},
		{"drep", &DREP{
			TID: 2, LocalID: 0x5152_5354, RemoteID: 0x1112_1314,
			Private: [drepPrivateSize]byte(count(drepPrivateSize)),
		}},
	}
}

func samplePath(n uint8) Path {
	return Path{
		LocalLID: NoLID, RemoteLID: NoLID - uint16(n),
		LocalGID: sampleSrc.Addr().As16(), RemoteGID: sampleDst.Addr().As16(),
		FlowLabel: 0x91588 + uint32(n), Rate: 0x20 + n, TrafficClass: 0x40 + n,
		HopLimit: 64 + n, ServiceLevel: 2 + n, SubnetLocal: n == 1, AckTimeout: 18 + Timeout(n),
	}
}

// Every attribute has a sample, without which no test would cover it.
func TestSamplesCoverEveryAttribute(t *testing.T) {
	seen := map[Attribute]bool{}
	for _, s := range sampleMessages() {
		attribute, _, r := PeekMAD(encodeMessage(s.msg))
		if r != Accepted {
			t.Fatalf("%s: %v", s.name, r)
		}
		seen[attribute] = true
	}
	if len(seen) != int(AttributeDREP-AttributeREQ)+1 {
		t.Errorf("samples of %d attributes", len(seen))
	}
}
