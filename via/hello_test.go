package via

import (
	"bytes"
	"encoding/hex"
	"strings"
	"testing"

	"pgregory.net/rapid"
)

func TestHelloGolden(t *testing.T) {
	got := hex.EncodeToString(encodeHello(hello{attrs: ViAttributes{
		Reliability: ReliableDelivery, MaxTransferSize: 0x11223344, QoS: 0x55667788, EnableRdmaWrite: true,
	}, discriminator: "ab"}))
	want := strings.ReplaceAll("5641 01 01 0200 02 00 44332211 88776655 6162", " ", "")
	if got != want {
		t.Errorf("connect message is %s, want %s", got, want)
	}
}

func TestHelloFitsRdmaCM(t *testing.T) {
	b := encodeHello(hello{attrs: ViAttributes{}, discriminator: strings.Repeat("x", MaxDiscriminatorLen)})
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
		want := hello{attrs: attrs, discriminator: name, peer: rapid.Bool().Draw(rt, "peer")}
		if got, err := decodeHello(encodeHello(want)); err != nil || got != want {
			rt.Fatalf("%+v became %+v, %v", want, got, err)
		}
	})
}

// RDMA CM carries a connect message in 56 bytes, whatever its length.
func TestHelloPadded(t *testing.T) {
	want := hello{attrs: ViAttributes{Reliability: ReliableDelivery}, discriminator: "ends in\x00", peer: true}
	b := encodeHello(want)
	if got, err := decodeHello(append(b, make([]byte, 56-len(b))...)); err != nil || got != want {
		t.Errorf("%+v became %+v, %v", want, got, err)
	}
}

func TestHelloRefusals(t *testing.T) {
	good := encodeHello(hello{attrs: ViAttributes{Reliability: ReliableDelivery, MaxTransferSize: 4096}, discriminator: "name"})
	change := func(i int, v byte) []byte {
		b := bytes.Clone(good)
		b[i] = v
		return b
	}
	for name, b := range map[string][]byte{
		"nothing": nil, "short": good[:15], "cut": good[:len(good)-1], "too long": append(bytes.Clone(good), 0, 1),
		"magic": change(0, 0), "version": change(2, 2), "unknown flag": change(3, 8), "reserved byte": change(7, 1),
		"longer name than message": change(6, 5), "shorter name than message": change(6, 3),
		"name beyond the limit": append(change(6, MaxDiscriminatorLen+1), make([]byte, MaxDiscriminatorLen+1-4)...),
	} {
		if _, err := decodeHello(b); err == nil {
			t.Errorf("%s: accepted", name)
		}
	}
}

func FuzzDecodeHello(f *testing.F) {
	f.Add(encodeHello(hello{attrs: ViAttributes{Reliability: ReliableDelivery}}))
	f.Add(encodeHello(hello{attrs: ViAttributes{EnableRdmaRead: true, QoS: 1}, discriminator: strings.Repeat("d", MaxDiscriminatorLen)}))
	f.Fuzz(func(t *testing.T, b []byte) {
		h, err := decodeHello(b)
		if err != nil {
			return
		}
		if len(h.discriminator) > MaxDiscriminatorLen {
			t.Fatalf("name of %d bytes", len(h.discriminator))
		}
		if again := encodeHello(h); !bytes.HasPrefix(b, again) || !zero(b[len(again):]) {
			t.Fatalf("%x decodes to what encodes as %x", b, again)
		}
	})
}
