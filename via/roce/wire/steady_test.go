package wire

import (
	"net/netip"
	"testing"
)

// station is a receiver and sender of one kind of packet.
type station struct {
	name     string
	src, dst netip.AddrPort
	id       Identification
	check    func(c *ICRC, b []byte) bool
}

var stations = []station{
	{"ipv6", sampleSrc, sampleDst, Identification{}, func(c *ICRC, b []byte) bool {
		return c.Verify(b, Identification{})
	}},
	{"ipv4", sampleSr4, sampleDs4, Identification{ID: 3}, func(c *ICRC, b []byte) bool {
		return c.Verify(b, Identification{ID: 3})
	}},
	{"ipv4-solved", sampleSr4, sampleDs4, Identification{ID: 0x0b65}, func(c *ICRC, b []byte) bool {
		id, ok := c.Solve(b, 0)
		return ok && id == 0x0b65
	}},
}

// steadyPacket is a write of n bytes, in two parts.
func steadyPacket(n int) (*Packet, [2][]byte) {
	b := count(n)
	p := &Packet{
		BTH:  BTH{Opcode: RCWriteOnly, PKey: DefaultPKey, DestQP: 0x123456, PSN: 1},
		RETH: RETH{Addr: 1 << 32, Key: 7, Length: uint32(n)},
	}
	p.Payload = b
	return p, [2][]byte{b[:n/2], b[n/2:]}
}

func TestPacketAllocatesNothing(t *testing.T) {
	for _, s := range stations {
		for _, n := range []int{61, 4096} {
			p, parts := steadyPacket(n)
			c := checksum(s.src, s.dst)
			b := p.Append(nil, c, s.id)
			whole := make([]byte, 0, MaxPacket)
			var got Packet
			var header [MaxHeader]byte
			trailer := make([]byte, 7)
			for name, f := range map[string]func(){
				"receive": func() {
					c.Set(s.src, s.dst)
					if got.Decode(b, DefaultPKey) != Accepted || !s.check(c, b) {
						t.Fatal("refused")
					}
				},
				"refuse": func() {
					if got.Decode(b[:len(b)-4], DefaultPKey) != RefusedMessage {
						t.Fatal("not refused")
					}
				},
				"send": func() {
					h := header[:p.Put(header[:], n)]
					c.Seal(trailer, s.id, h, parts[0], parts[1])
				},
				"send parts": func() {
					h := header[:p.Put(header[:], n)]
					c.Seal(trailer, s.id, h, parts[:]...)
				},
				"append": func() { whole = p.Append(whole[:0], c, s.id) },
			} {
				if allocs := testing.AllocsPerRun(100, f); allocs != 0 {
					t.Errorf("%s of %d bytes, %s: %v allocations", name, n, s.name, allocs)
				}
			}
		}
	}
}

func TestMessageAllocatesNothing(t *testing.T) {
	for _, s := range sampleMessages() {
		b, got := encodeMessage(s.msg), fresh(s.msg)
		if n := testing.AllocsPerRun(100, func() {
			if got.Decode(b) != Accepted {
				t.Fatal("refused")
			}
			got.Encode(b)
		}); n != 0 {
			t.Errorf("%s: %v allocations", s.name, n)
		}
	}
	h := CMA{1, sampleSrc.Addr(), sampleDst.Addr()}
	b := make([]byte, CMASize)
	if n := testing.AllocsPerRun(100, func() {
		h.Encode(b)
		h.Decode(b)
	}); n != 0 {
		t.Errorf("address header: %v allocations", n)
	}
}

func BenchmarkReceive(b *testing.B) {
	for _, s := range stations {
		for _, n := range []struct {
			name string
			size int
		}{{"64", 64}, {"4096", 4096}} {
			b.Run(s.name+"/"+n.name, func(b *testing.B) {
				p, _ := steadyPacket(n.size)
				var c ICRC
				c.Set(s.src, s.dst)
				packet := p.Append(nil, &c, s.id)
				var got Packet
				b.SetBytes(int64(n.size))
				b.ReportAllocs()
				for b.Loop() {
					c.Set(s.src, s.dst)
					if got.Decode(packet, DefaultPKey) != Accepted || !s.check(&c, packet) {
						b.Fatal("refused")
					}
				}
			})
		}
	}
}

func BenchmarkSend(b *testing.B) {
	for _, s := range stations[:2] {
		for _, n := range []struct {
			name string
			size int
		}{{"64", 64}, {"4096", 4096}} {
			b.Run(s.name+"/"+n.name, func(b *testing.B) {
				p, parts := steadyPacket(n.size)
				c := checksum(s.src, s.dst)
				header, trailer := make([]byte, MaxHeader), make([]byte, 7)
				b.SetBytes(int64(n.size))
				b.ReportAllocs()
				for b.Loop() {
					p.PSN = p.PSN.Add(1)
					h := header[:p.Put(header, n.size)]
					c.Seal(trailer, s.id, h, parts[0], parts[1])
				}
			})
		}
	}
}
