package wire

import (
	"bytes"
	"net/netip"
	"path/filepath"
	"reflect"
	"testing"

	"pgregory.net/rapid"
)

// The captured messages between librdmacm on Linux and others decode, and
// encode to the same bytes.
func TestCaptures(t *testing.T) {
	from, to := netip.MustParseAddr("10.77.0.2"), netip.MustParseAddr("10.77.0.1")
	req := &REQ{
		TID: 0x2bd1d2088, LocalID: 0x88201dbd, ServiceID: TCPService(7174),
		LocalGUID: 0x505400fffe770002, LocalQP: 0x11, ResponderResources: 1, InitiatorDepth: 1,
		RemoteTimeout: 20, Transport: RC, StartingPSN: 0x886bac, LocalTimeout: 20, RetryCount: 7,
		PKey: DefaultPKey, MTU: MTU1024, RNRRetryCount: 7, MaxCMRetries: 15,
		Primary: Path{
			LocalLID: NoLID, RemoteLID: NoLID, LocalGID: from.As16(), RemoteGID: to.As16(),
			FlowLabel: 0x91588, HopLimit: 64, AckTimeout: 19,
		},
	}
	cma := CMA{SrcPort: 0xce3e, Src: from, Dst: to}
	cma.Encode(req.Private[:])
	for _, c := range []struct {
		name string
		want Message
	}{
		{"req-librdmacm", req},
		{"rep-answered", &REP{
			TID: 0x2bd1d2088, LocalID: 0x55667788, RemoteID: 0x88201dbd, LocalQP: 0x55,
			StartingPSN: 0x700001, ResponderResources: 1, InitiatorDepth: 1, TargetAckDelay: 15,
			RNRRetryCount: 7, LocalGUID: 0x0200000000000001,
		}},
		{"rep-rxe", &REP{
			TID: 0x1122334455667788, LocalID: 0x50dc2bdd, RemoteID: 0x11223344, LocalQP: 0x14,
			StartingPSN: 0x046e61, ResponderResources: 4, InitiatorDepth: 4, TargetAckDelay: 15,
			RNRRetryCount: 7, LocalGUID: 0x505400fffe770002,
		}},
		{"rtu-librdmacm", &RTU{TID: 0x2bd1d2088, LocalID: 0x88201dbd, RemoteID: 0x55667788}},
		{"dreq-librdmacm", &DREQ{
			TID: 0x2bd1d2089, LocalID: 0x88201dbd, RemoteID: 0x55667788, RemoteQP: 0x55,
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			b := undump(t, filepath.Join("testdata", "captures", c.name+".hex"))
			got := fresh(c.want)
			if r := got.Decode(b); r != Accepted {
				t.Fatal(r)
			}
			if !reflect.DeepEqual(got, c.want) {
				t.Errorf("decoded\n%+v\nwant\n%+v", got, c.want)
			}
			if again := encodeMessage(got); !bytes.Equal(again, b) {
				t.Errorf("encoded\n%swant\n%s", dump(again), dump(b))
			}
		})
	}
	var got CMA
	if r := got.Decode(req.Private[:]); r != Accepted || got != cma {
		t.Errorf("address header %+v, %v, want %+v", got, r, cma)
	}
	if port, ok := req.ServiceID.TCPPort(); !ok || port != 7174 {
		t.Errorf("port %d, %v", port, ok)
	}
	if _, ok := ServiceID(0x0111_1c06).TCPPort(); ok {
		t.Error("a UDP service has a TCP port")
	}
}

// reserved holds the reserved bits of a message, by offset in its body.
var reserved = map[Attribute]map[int]byte{
	AttributeREQ: {
		4:  0xff,
		90: 0x0f, 91: 0xc0, 94: 0x07, 95: 0x07, // of the primary path
		134: 0x0f, 135: 0xc0, 138: 0x07, 139: 0x07, // of the alternate one
	},
	AttributeREP:  {15: 0xff, 19: 0xff, 23: 0xff, 27: 0x0f},
	AttributeRTU:  {},
	AttributeREJ:  {8: 0x3f, 9: 0x01},
	AttributeMRA:  {8: 0x3f, 9: 0x07},
	AttributeDREQ: {11: 0xff},
	AttributeDREP: {},
}

// A message keeps every bit except the reserved ones from Decode to Encode.
func TestMessageRoundTrip(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		s := rapid.SampledFrom(sampleMessages()).Draw(t, "message")
		attribute, _, _ := PeekMAD(encodeMessage(s.msg))
		b := make([]byte, MADSize)
		body := startMAD(b, attribute, rapid.Uint64().Draw(t, "tid"))
		copy(body, rapid.SliceOfN(rapid.Byte(), len(body), len(body)).Draw(t, "body"))
		m := fresh(s.msg)
		if r := m.Decode(b); r != Accepted {
			t.Fatal(r)
		}
		for offset, bits := range reserved[attribute] {
			body[offset] &^= bits
		}
		if got := encodeMessage(m); !bytes.Equal(got, b) {
			t.Fatalf("%s: encoded\n%swant\n%s", s.name, dump(got), dump(b))
		}
	})
}
