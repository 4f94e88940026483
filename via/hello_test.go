package via

import (
	"bytes"
	"encoding/hex"
	"strings"
	"testing"

	"pgregory.net/rapid"
)

func TestHelloGolden(t *testing.T) {
	got := hex.EncodeToString(encodeHello(ViAttributes{
		Reliability: ReliableDelivery, MaxTransferSize: 0x11223344, QoS: 0x55667788, EnableRdmaWrite: true,
	}, "ab"))
	want := strings.ReplaceAll("5641 01 01 0200 02 00 44332211 88776655 6162", " ", "")
	if got != want {
		t.Errorf("connect message is %s, want %s", got, want)
	}
}

func TestHelloFitsRdmaCM(t *testing.T) {
	b := encodeHello(ViAttributes{}, strings.Repeat("x", MaxDiscriminatorLen))
	if len(b) > 56 {
		t.Errorf("the longest connect message has %d bytes, RDMA CM leaves 56", len(b))
	}
}

func TestHelloRoundTrip(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		attrs := ViAttributes{
			Reliability:     ReliabilityLevel(rapid.Uint16().Draw(rt, "level")),
			MaxTransferSize: rapid.Uint32().Draw(rt, "size"),
			QoS:             rapid.Uint32().Draw(rt, "qos"),
			EnableRdmaWrite: rapid.Bool().Draw(rt, "write"),
			EnableRdmaRead:  rapid.Bool().Draw(rt, "read"),
		}
		name := string(rapid.SliceOfN(rapid.Byte(), 0, MaxDiscriminatorLen).Draw(rt, "discriminator"))
		got, gotName, err := decodeHello(encodeHello(attrs, name))
		if err != nil || got != attrs || gotName != name {
			rt.Fatalf("%+v %q became %+v %q, %v", attrs, name, got, gotName, err)
		}
	})
}

func TestHelloRefusals(t *testing.T) {
	good := encodeHello(ViAttributes{Reliability: ReliableDelivery, MaxTransferSize: 4096}, "name")
	change := func(i int, v byte) []byte {
		b := bytes.Clone(good)
		b[i] = v
		return b
	}
	for name, b := range map[string][]byte{
		"nothing": nil, "short": good[:15], "cut": good[:len(good)-1], "too long": append(bytes.Clone(good), 0),
		"magic": change(0, 0), "version": change(2, 2), "unknown flag": change(3, 4), "reserved byte": change(7, 1),
		"longer name than message": change(6, 5), "shorter name than message": change(6, 3),
		"name beyond the limit": append(change(6, MaxDiscriminatorLen+1), make([]byte, MaxDiscriminatorLen+1-4)...),
	} {
		if _, _, err := decodeHello(b); err == nil {
			t.Errorf("%s: accepted", name)
		}
	}
}

func FuzzDecodeHello(f *testing.F) {
	f.Add(encodeHello(ViAttributes{Reliability: ReliableDelivery}, ""))
	f.Add(encodeHello(ViAttributes{EnableRdmaRead: true, QoS: 1}, strings.Repeat("d", MaxDiscriminatorLen)))
	f.Fuzz(func(t *testing.T, b []byte) {
		attrs, name, err := decodeHello(b)
		if err != nil {
			return
		}
		if len(name) > MaxDiscriminatorLen {
			t.Fatalf("name of %d bytes", len(name))
		}
		if again := encodeHello(attrs, name); !bytes.Equal(again, b) {
			t.Fatalf("%x decodes to what encodes as %x", b, again)
		}
	})
}
