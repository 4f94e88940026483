package ethernet

import (
	"bytes"
	"encoding/binary"
	"encoding/hex"
	"net/netip"
	"runtime"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/viablk/viablk/via/roce/port"
	"github.com/viablk/viablk/via/roce/wire"
)

// The station of the samples, and its neighbour, for which frames wait.
var (
	stationMAC   = hardwareAddr{0x02, 0, 0, 0, 0, 0x01}
	neighbourMAC = hardwareAddr{0x52, 0x54, 0, 0x77, 0, 0x02}
	station4     = netip.MustParseAddrPort("10.77.0.1:4791")
	station6     = netip.MustParseAddrPort("[fd77::1]:4791")
	neighbour4   = netip.MustParseAddr("10.77.0.2")
	neighbour6   = netip.MustParseAddr("fd77::2")
)

// sample is a frame and its expected effects.
type sample struct {
	name    string
	hex     string
	ipv6    bool
	segment int

	packets []int  // sizes of what is delivered
	learns  bool   // the neighbour's Ethernet address
	answer  string // frame
}

const (
	toStation  = "020000000001 525400770002 "
	toAll      = "ffffffffffff 525400770002 "
	toNodes    = "333300000001 525400770002 "
	toGroup    = "3333ff000001 525400770002 "
	fromHere   = "525400770002 020000000001 "
	ip6Station = "fd77 0000 0000 0000 0000 0000 0000 0001 "
	ip6Other   = "fd77 0000 0000 0000 0000 0000 0000 0002 "
	ip6Group   = "ff02 0000 0000 0000 0000 0001 ff00 0001 "
	ip6None    = "0000 0000 0000 0000 0000 0000 0000 0000 "

	// An acknowledgement of rdma_rxe in Linux 6.1: IPv4 header, then the rest.
	ack4     = "0800 450000300b65400040111abc0a4d00020a4d0001 "
	ack6     = "86dd 60000000001c1140 " + ip6Other + ip6Station + "c8d512b7001c0000 1100ffff0000007700fffffe1f000001 5e20fcd4"
	ackBytes = "c7e712b7001c0000 1100ffff0000007700fffffe1f000001 5c663931"
)

// Checksums of the messages below are what Linux computes.
var samples = []sample{
	{name: "rxe-ack-ipv4", hex: toStation + ack4 + ackBytes, packets: []int{20}},
	{name: "rxe-ack-ipv4-with-pad-of-ethernet", hex: toStation + ack4 + ackBytes + strings.Repeat("00", 14), packets: []int{20}},
	{name: "rxe-ack-ipv6", ipv6: true, hex: toStation + ack6, packets: []int{20}},
	{name: "rxe-ack-other-family", ipv6: true, hex: toStation + ack4 + ackBytes},
	{name: "rxe-ack-to-all", hex: toAll + ack4 + ackBytes},
	{name: "rxe-ack-truncated", hex: toStation + ack4 + ackBytes[:len(ackBytes)-2]},
	{name: "wrong-header-checksum", hex: toStation + "0800 450000300b65400040111abd0a4d00020a4d0001 " + ackBytes},
	{name: "fragment", hex: toStation + "0800 450000300b65600040111abc0a4d00020a4d0001 " + ackBytes},
	{name: "other-udp-port", ipv6: true, hex: toStation + strings.Replace(ack6, "12b7", "12b8", 1)},
	{name: "udp-length", ipv6: true, hex: toStation + strings.Replace(ack6, "12b7001c", "12b7001b", 1)},
	{
		name: "run", ipv6: true, segment: 20, packets: []int{20, 20, 16},
		hex: toStation + strings.ReplaceAll(ack6, "001c", "0040") + strings.Repeat("11", 36),
	},
	{
		name: "run-of-short-ones", ipv6: true, segment: 6, packets: []int{6, 6, 6, 2},
		hex: toStation + ack6,
	},
	{
		name: "arp-request",
		hex:  toAll + "0806 0001080006040001 525400770002 0a4d0002 000000000000 0a4d0001", learns: true,
		answer: fromHere + "0806 0001080006040002 020000000001 0a4d0001 525400770002 0a4d0002",
	},
	{
		name: "arp-request-of-a-other", hex: toAll + "0806 0001080006040001 525400770009 0a4d0009 000000000000 0a4d0001",
		answer: "525400770009 020000000001 0806 0001080006040002 020000000001 0a4d0001 525400770009 0a4d0009",
	},
	{name: "arp-request-for-another", hex: toAll + "0806 0001080006040001 525400770002 0a4d0002 000000000000 0a4d0005", learns: true},
	{name: "arp-reply", hex: toStation + "0806 0001080006040002 525400770002 0a4d0002 020000000001 0a4d0001", learns: true},
	{name: "arp-reply-with-group", hex: toStation + "0806 0001080006040002 535400770002 0a4d0002 020000000001 0a4d0001"},
	{name: "arp-for-ieee802", hex: toStation + "0806 0006080006040002 525400770002 0a4d0002 020000000001 0a4d0001"},
	{name: "arp-truncated", hex: toStation + "0806 0001080006040002 525400770002 0a4d0002"},
	{
		name: "ping", hex: toStation + "0800 4500001e00014000 40012642 0a4d0002 0a4d0001 0800f7fd 00010001 0000",
		answer: fromHere + "0800 4500001e00004000 40012643 0a4d0001 0a4d0002 0000fffd 00010001 0000",
	},
	{name: "ping-wrong-checksum", hex: toStation + "0800 4500001e00014000 40012642 0a4d0002 0a4d0001 0800f7fe 00010001 0000"},
	{
		name: "ping6", ipv6: true, hex: toStation + "86dd 60000000 0009 3a40 " + ip6Other + ip6Station + "8000 7dc7 00010001 07",
		answer: fromHere + "86dd 60000000 0009 3a40 " + ip6Station + ip6Other + "8100 7cc7 00010001 07",
	},
	{
		name: "solicitation", ipv6: true, learns: true,
		hex:    toGroup + "86dd 60000000 0020 3aff " + ip6Other + ip6Group + "8700 SUM 00000000 " + ip6Station + "0101 525400770002",
		answer: fromHere + "86dd 60000000 0020 3aff " + ip6Station + ip6Other + "8800 SUM 60000000 " + ip6Station + "0201 020000000001",
	},
	{
		name: "solicitation-by-another-with-the-address", ipv6: true,
		hex:    toGroup + "86dd 60000000 0018 3aff " + ip6None + ip6Group + "8700 SUM 00000000 " + ip6Station,
		answer: "333300000001 020000000001 86dd 60000000 0020 3aff " + ip6Station + "ff020000000000000000000000000001 8800 SUM 20000000 " + ip6Station + "0201 020000000001",
	},
	{
		name: "solicitation-through-a-router", ipv6: true,
		hex: toGroup + "86dd 60000000 0020 3afe " + ip6Other + ip6Group + "8700 SUM 00000000 " + ip6Station + "0101 525400770002",
	},
	{
		name: "advertisement", ipv6: true, learns: true,
		hex: toStation + "86dd 60000000 0020 3aff " + ip6Other + ip6Station + "8800 SUM 60000000 " + ip6Other + "0201 525400770002",
	},
	{
		name: "advertisement-to-all", ipv6: true, learns: true,
		hex: toNodes + "86dd 60000000 0028 3aff " + ip6Other + "ff020000000000000000000000000001 8800 SUM 20000000 " + ip6Other + "0e01 000000000000 0201 525400770002",
	},
	{
		name: "advertisement-with-endless-option", ipv6: true,
		hex: toStation + "86dd 60000000 0020 3aff " + ip6Other + ip6Station + "8800 SUM 60000000 " + ip6Other + "0200 525400770002",
	},
	{name: "no-header", hex: "02000000"},
	{name: "from-a-group", hex: "020000000001 535400770002 " + ack4 + ackBytes},
	{name: "to-another", hex: "020000000002 525400770002 " + ack4 + ackBytes},
}

// frame returns the bytes of a hexadecimal frame. SUM stands for the checksum
// of ICMPv6, which a byte-wise sum computes here.
func frame(tb testing.TB, s string) []byte {
	tb.Helper()
	s = strings.ReplaceAll(s, " ", "")
	b, err := hex.DecodeString(strings.Replace(s, "SUM", "0000", 1))
	if err != nil {
		tb.Fatal(err)
	}
	if strings.Contains(s, "SUM") {
		words := slices.Concat(b[14+8:14+40], []byte{0, 0, b[14+4], b[14+5], 0, 0, 0, 58}, b[14+40:])
		total := uint32(0)
		for i := 0; i < len(words); i += 2 {
			total += uint32(binary.BigEndian.Uint16(words[i:]))
		}
		total = total>>16 + total&0xffff
		total = total>>16 + total&0xffff
		binary.BigEndian.PutUint16(b[14+40+2:], ^uint16(total))
	}
	return b
}

// fixture is a station, what it delivered and what it emitted.
type fixture struct {
	*station
	neighbour *neighbour
	delivered []delivery
	emitted   [][]byte
}

// waiting is the frame held for the neighbour's address.
var waiting = slices.Concat(make([]byte, frameOffset+6), stationMAC[:], []byte{0x08, 0x00, 1, 2, 3})

func newFixture(tb testing.TB, ipv6 bool) *fixture {
	tb.Helper()
	f := new(fixture)
	local, neighbour := station4, neighbour4
	if ipv6 {
		local, neighbour = station6, neighbour6
	}
	emit := func(b []byte) error {
		if !bytes.Equal(b[:frameOffset], make([]byte, frameOffset)) {
			tb.Errorf("the room in front of a frame is %x", b[:frameOffset])
		}
		f.emitted = append(f.emitted, bytes.Clone(b[frameOffset:]))
		return nil
	}
	f.station = newStation(local, stationMAC, emit, func(d delivery) { f.delivered = append(f.delivered, d) })
	f.neighbour = f.around.get(neighbour)
	if f.neighbour.hold(waiting, f.now()) != heldFirst {
		tb.Fatal("a frame is not held")
	}
	return f
}

func TestStation(t *testing.T) {
	for _, s := range samples {
		t.Run(s.name, func(t *testing.T) {
			f := newFixture(t, s.ipv6)
			f.handle(frame(t, s.hex), s.segment)
			var packets []int
			for _, d := range f.delivered {
				for size := d.segment; size > 0 && len(d.payload) > size; d.payload = d.payload[size:] {
					packets = append(packets, size)
				}
				packets = append(packets, len(d.payload))
			}
			if !slices.Equal(packets, s.packets) {
				t.Errorf("packets of %v bytes are delivered, want %v", packets, s.packets)
			}
			mac, known := f.neighbour.resolve()
			if known != s.learns || known && mac != neighbourMAC {
				t.Errorf("the neighbour is at %x, %v", mac, known)
			}
			var want [][]byte
			if s.learns {
				want = append(want, append(neighbourMAC[:], waiting[frameOffset+6:]...))
			}
			if s.answer != "" {
				want = append(want, frame(t, s.answer))
			}
			if !slices.EqualFunc(f.emitted, want, bytes.Equal) {
				t.Errorf("emitted %x\nwant    %x", f.emitted, want)
			}
		})
	}
}

// The ICRC covers the addresses and identification that the samples contain.
func TestStationICRC(t *testing.T) {
	for _, s := range samples[:3] {
		f := newFixture(t, s.ipv6)
		f.handle(frame(t, s.hex), 0)
		d := f.delivered[0]
		var icrc wire.ICRC
		icrc.Set(d.from, f.local)
		if !icrc.Verify(d.payload, d.identification) {
			t.Errorf("%s is not intact: %+v", s.name, d)
		}
		if other := (wire.Identification{ID: d.identification.ID ^ 1}); !s.ipv6 && icrc.Verify(d.payload, other) {
			t.Errorf("%s is intact with any identification", s.name)
		}
	}
}

// A port counts malformed and overrun packets, and numbers the IDs of a run as
// segmentation does.
func TestPortDemux(t *testing.T) {
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = unix.Close(fds[1]) }()
	link, err := TapLink(fds[0])
	if err != nil {
		t.Fatal(err)
	}
	p, err := Open(station4, link, Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = p.Close() }()
	from := netip.AddrPortFrom(neighbour4, 4791)
	deal := p.(*framePort).demuxRun
	deal(delivery{from: from, payload: make([]byte, 20)}) // no shard is open
	l, err := p.Shard(0)
	if err != nil {
		t.Fatal(err)
	}
	deal(delivery{from: from})
	deal(delivery{from: from, payload: make([]byte, wire.MinPacket-1)})
	deal(delivery{from: from, payload: make([]byte, wire.MaxPacket+1)})
	var icrc wire.ICRC
	icrc.Set(from, station4)
	var run []byte
	for _, id := range []uint16{0xffff, 0, 1} {
		b := make([]byte, wire.MaxPacket)
		body := b[:len(b)-wire.ICRCSize]
		icrc.Seal(b[len(body):], wire.Identification{ID: id}, body[:wire.BTHSize], body[wire.BTHSize:])
		run = append(run, b...)
	}
	deal(delivery{from: from, payload: run, segment: wire.MaxPacket, identification: wire.Identification{ID: 0xffff}})
	room := make([]port.Arrival, 10)
	if n, err := l.Receive(room); n != 3 || err != nil {
		t.Fatalf("%d packets, %v", n, err)
	}
	for i := range room[:3] {
		if a := &room[i]; len(a.Bytes) != wire.MaxPacket || !l.Intact(a) {
			t.Errorf("packet %d has %d bytes, or another ID", i, len(a.Bytes))
		}
	}
	for range p.ReceiveRoom() {
		deal(delivery{from: from, payload: make([]byte, 20)})
	}
	if c := l.Counters(); c.Malformed != 3 || c.Overrun != 3 || c.Received != 3 {
		t.Errorf("%+v", c)
	}
}

// A neighbour is asked at intervals until it answers; the held frames are
// bounded, and dropped after giveUp.
func TestNeighbourTimeout(t *testing.T) {
	n := &neighbour{addr: neighbour4}
	asked := 0
	for now := askAgain / 2; now < giveUp; now += askAgain / 2 {
		if n.hold(waiting, now); n.isDue(now) {
			asked++
		}
		if n.isDue(now) {
			t.Fatal("asked twice at a time")
		}
		if !n.isAwaited(now) {
			t.Fatal("nothing waits")
		}
	}
	if want := int(giveUp / askAgain); asked != want {
		t.Errorf("asked %d times, want %d", asked, want)
	}
	if n.isAwaited(giveUp + askAgain) {
		t.Error("frames wait for ever")
	}
	for i := range mostFrames {
		if h := n.hold(waiting, giveUp); h == heldNot {
			t.Fatalf("%d frames wait", i)
		}
	}
	if n.hold(waiting, giveUp) != heldNot {
		t.Error("too many frames wait")
	}
	sent := 0
	n.learn(neighbourMAC, giveUp, func([]byte) error { sent++; return nil })
	if sent != mostFrames || n.isAwaited(giveUp) || n.hold(waiting, giveUp) != resolved {
		t.Errorf("%d frames are sent", sent)
	}
	if n.isDue(giveUp+askAnew/2) || !n.isDue(giveUp+askAnew) {
		t.Error("not asked again, or too soon")
	}
}

// A frame that waits is sent although its sender has forgotten the peer.
func TestForgottenNeighbour(t *testing.T) {
	f := newFixture(t, false)
	f.around.keep(f.neighbour)
	f.neighbour = nil
	for range 3 {
		runtime.GC()
	}
	if !f.askAgain() {
		t.Fatal("the frame is lost")
	}
	f.emitted = nil
	f.learn(neighbour4, neighbourMAC)
	if len(f.emitted) != 1 {
		t.Fatalf("%d frames are sent", len(f.emitted))
	}
	if f.askAgain() {
		t.Error("a frame still waits")
	}
	for range 100 {
		runtime.GC()
		if f.around.find(neighbour4) == nil {
			return
		}
		runtime.Gosched()
	}
	t.Error("a neighbour for which nothing waits stays alive")
}

// FuzzFrame requires that no frame makes a station read out of bounds, send
// more than one answer, or deliver bytes that are not part of the frame.
func FuzzFrame(f *testing.F) {
	f.Fuzz(func(t *testing.T, ipv6 bool, segment uint16, b []byte) {
		before := bytes.Clone(b)
		x := newFixture(t, ipv6)
		x.handle(b, int(segment))
		if !bytes.Equal(b, before) {
			t.Fatal("the frame was changed")
		}
		if len(x.delivered) > 1 || len(x.emitted) > 2 || len(x.delivered) > 0 && len(x.emitted) > 0 {
			t.Fatalf("%d deliveries, %d frames", len(x.delivered), len(x.emitted))
		}
		for _, d := range x.delivered {
			if !d.from.IsValid() || d.from.Addr().Is6() != ipv6 || !bytes.Contains(b, d.payload) {
				t.Fatalf("delivered %+v", d)
			}
		}
		for _, e := range x.emitted {
			if len(e) > max(len(b), etherHeaderSize+ip6HeaderSize+ndSize) || hardwareAddr(e[6:]) != stationMAC {
				t.Fatalf("emitted %x", e)
			}
		}
		if mac, ok := x.neighbour.resolve(); ok && mac.isGroup() {
			t.Fatalf("the neighbour is at %x", mac)
		}
	})
}
