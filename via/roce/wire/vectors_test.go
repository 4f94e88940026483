package wire

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"encoding/hex"
	"hash/crc32"
	"net/netip"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
)

// vector is a captured packet, from the IP header on.
type vector struct {
	ip, udp, ib, icrc []byte
	masked            []byte // the ICRC's input; empty if unknown
}

func readVector(t *testing.T, name string) vector {
	t.Helper()
	file, err := os.Open(filepath.Join("testdata", "vectors", name+".txt"))
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	fields := map[string][]byte{}
	for lines := bufio.NewScanner(file); lines.Scan(); {
		key, digits, _ := strings.Cut(lines.Text(), " ")
		if key == "#" {
			continue
		}
		if fields[key], err = hex.DecodeString(digits); err != nil {
			t.Fatalf("%s: %s: %v", name, key, err)
		}
	}
	return vector{fields["ip"], fields["udp"], fields["ib"], fields["icrc"], fields["masked"]}
}

// ends returns source and destination of the packet.
func (v vector) ends() (src, dst netip.AddrPort) {
	at, n := 12, 4
	if v.ip[0]>>4 == 6 {
		at, n = 8, 16
	}
	from, _ := netip.AddrFromSlice(v.ip[at : at+n])
	to, _ := netip.AddrFromSlice(v.ip[at+n : at+2*n])
	return netip.AddrPortFrom(from, binary.BigEndian.Uint16(v.udp)),
		netip.AddrPortFrom(to, binary.BigEndian.Uint16(v.udp[2:]))
}

// id returns the identification; zero for IPv6.
func (v vector) id() Identification {
	if v.ip[0]>>4 == 6 {
		return Identification{}
	}
	return Identification{binary.BigEndian.Uint16(v.ip[4:]), v.ip[6]&0x40 == 0}
}

// packet returns the payload of the datagram.
func (v vector) packet() []byte { return append(bytes.Clone(v.ib), v.icrc...) }

// maskOf repeats the specification's definition of the ICRC's input, for
// headers on the wire, without regard to speed.
func maskOf(ip, udp, ib []byte) []byte {
	ip, udp, ib = bytes.Clone(ip), bytes.Clone(udp), bytes.Clone(ib)
	if ip[0]>>4 == 4 {
		ip[1], ip[8], ip[10], ip[11] = 0xff, 0xff, 0xff, 0xff
	} else {
		ip[0] |= 0x0f
		ip[1], ip[2], ip[3], ip[7] = 0xff, 0xff, 0xff, 0xff
	}
	udp[6], udp[7] = 0xff, 0xff
	ib[4] = 0xff
	return bytes.Join([][]byte{bytes.Repeat([]byte{0xff}, 8), ip, udp, ib}, nil)
}

// icrcOf returns the ICRC on the wire.
func icrcOf(masked []byte) []byte {
	return binary.LittleEndian.AppendUint32(nil, crc32.ChecksumIEEE(masked))
}

// The captured packets of other implementations decode, verify, and encode to
// the same bytes.
func TestVectors(t *testing.T) {
	rping := append([]byte("rdma-ping-0: hello from pure Go over UDP sockets .........."), 0)
	for _, c := range []struct {
		name string
		want Packet
	}{
		{"v1-connectx4-cnp", Packet{
			BTH:     BTH{Opcode: CongestionNotification, BECN: true, PKey: 0xffff, DestQP: 0x118},
			Payload: make([]byte, 16),
		}},
		{"v2-rxe-ack-ipv4", Packet{
			BTH:  BTH{Opcode: RCAcknowledge, PKey: 0xffff, DestQP: 0x77, PSN: 0xfffffe},
			AETH: AETH{ACK, 1}, Payload: []byte{},
		}},
		{"v3-rxe-ack-ipv6", Packet{
			BTH:  BTH{Opcode: RCAcknowledge, PKey: 0xffff, DestQP: 0x77, PSN: 0xfffffe},
			AETH: AETH{ACK, 1}, Payload: []byte{},
		}},
		{"v4-socket-ack-ipv4", Packet{
			BTH:  BTH{Opcode: RCAcknowledge, PKey: 0xffff, DestQP: 0x11, PSN: 0x0f9f1a},
			AETH: AETH{ACK, 1}, Payload: []byte{},
		}},
		{"v5-rxe-read-request", Packet{
			BTH:  BTH{Opcode: RCReadRequest, PKey: 0xffff, DestQP: 0x99, AckRequest: true, PSN: 0x123456},
			RETH: RETH{0x5000, 5, 0x40}, Payload: []byte{},
		}},
		{"v6-rxe-write-only", Packet{
			BTH:  BTH{Opcode: RCWriteOnly, PKey: 0xffff, DestQP: 0x99, AckRequest: true, PSN: 0x123458},
			RETH: RETH{0x6000, 6, 60}, Payload: rping,
		}},
		{"v7-uc-send-only", Packet{
			BTH:     BTH{Opcode: UCSendOnly, Migrated: true, Pad: 2, PKey: 0xffff, DestQP: 211, PSN: 13571856},
			Payload: []byte("F0\x81\x8b\xe2\x895\xd9\x0e\x9a\x95PT\x01\xbe\x88^P"),
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			v := readVector(t, c.name)
			masked := maskOf(v.ip, v.udp, v.ib)
			if len(v.masked) != 0 && !bytes.Equal(masked, v.masked) {
				t.Errorf("masked\n%swant\n%s", dump(masked), dump(v.masked))
			}
			if got := icrcOf(masked); !bytes.Equal(got, v.icrc) {
				t.Errorf("the definition gives %x, want %x", got, v.icrc)
			}
			sum, b := checksum(v.ends()), v.packet()
			if !sum.Verify(b, v.id()) {
				t.Error("the ICRC is called wrong")
			}
			if id, ok := sum.Solve(b, 0); !ok || id != v.id().ID {
				t.Errorf("the ID is solved as %d, %v, want %d", id, ok, v.id().ID)
			}
			var got Packet
			if r := got.Decode(b, DefaultPKey); r != Accepted {
				t.Fatal(r)
			}
			if !reflect.DeepEqual(got, c.want) {
				t.Errorf("decoded\n%+v\nwant\n%+v", got, c.want)
			}
			if again := got.Append(nil, sum, v.id()); !bytes.Equal(again, b) {
				t.Errorf("encoded\n%swant\n%s", dump(again), dump(b))
			}
		})
	}
}
