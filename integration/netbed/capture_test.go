package netbed

import (
	"bytes"
	"encoding/binary"
	"net"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"golang.org/x/sys/unix"
)

// The file has each packet that passes the cable, at both ends; faults take
// packets behind the capture.
func TestCaptureIsComplete(t *testing.T) {
	eachFamily(t, func(t *testing.T, b *Bed, f *traffic) {
		f.size = 1400
		hosts, paths := []*Host{b.A, b.B}, []string{filepath.Join(t.TempDir(), "a"), filepath.Join(t.TempDir(), "b")}
		var captures []*Capture
		for i, h := range hosts {
			captures = append(captures, h.Capture(paths[i]))
		}
		lost := b.B.Lose(Datagrams, Every(3))
		f.send(300, func() int { return f.sent - lost.Hits() })
		for i, c := range captures {
			n := c.Stop()
			all, err := Frames(paths[i])
			if err != nil || len(all) != n {
				t.Fatalf("%d frames and %v, want %d", len(all), err, n)
			}
			seen := 0
			for _, frame := range all {
				d, err := ParseDatagram(frame)
				if err != nil {
					continue // the hosts look for each other
				}
				if !bytes.Equal(d.Payload, f.datagram(seen)) || d.From != f.from.LocalAddr().(*net.UDPAddr).AddrPort() || d.To != f.target {
					t.Fatalf("datagram %d from %v to %v is %x", seen, d.From, d.To, d.Payload)
				}
				seen++
			}
			if seen != 300 {
				t.Errorf("%d datagrams were captured, want 300", seen)
			}
		}
	})
}

func TestFramesRefuses(t *testing.T) {
	const microseconds, nanoseconds, ethernet = 0xa1b2c3d4, 0xa1b23c4d, 1 // pcap-savefile(5)
	header := func(order binary.ByteOrder, magic, link uint32) []byte {
		b := make([]byte, 24)
		order.PutUint32(b, magic)
		order.PutUint16(b[4:], 2) // version
		order.PutUint16(b[6:], 4)
		order.PutUint32(b[20:], link)
		return b
	}
	record := func(order binary.ByteOrder, kept, length uint32, data ...byte) []byte {
		b := make([]byte, 16, 16+len(data))
		order.PutUint32(b[8:], kept)
		order.PutUint32(b[12:], length)
		return append(b, data...)
	}
	little, big := binary.LittleEndian, binary.BigEndian
	good := header(little, microseconds, ethernet)
	for name, b := range map[string][]byte{
		"empty":             {},
		"short":             good[:23],
		"no capture":        header(little, 1, ethernet),
		"not Ethernet":      header(little, microseconds, 101),
		"short record":      append(slices.Clone(good), 1),
		"cut record":        append(slices.Clone(good), record(little, 2, 2, 1)...),
		"long record":       append(slices.Clone(good), record(little, longestFrame+1, longestFrame+1, make([]byte, longestFrame+1)...)...),
		"cut behind header": append(slices.Clone(good), record(little, 2, 2)...),
		"truncated frame":   append(slices.Clone(good), record(little, 1, 2, 1)...),
	} {
		if all, err := frames(bytes.NewReader(b)); err == nil {
			t.Errorf("%s: %d frames", name, len(all))
		}
	}
	for _, order := range []binary.ByteOrder{little, big} {
		b := slices.Concat(header(order, nanoseconds, ethernet), record(order, 2, 2, 7, 8), record(order, 0, 0))
		all, err := frames(bytes.NewReader(b))
		if err != nil || len(all) != 2 || !bytes.Equal(all[0], []byte{7, 8}) || len(all[1]) != 0 {
			t.Errorf("%v: frames %v and %v", order, all, err)
		}
	}
	if _, err := Frames(filepath.Join(t.TempDir(), "none")); !os.IsNotExist(err) {
		t.Errorf("a missing file: %v", err)
	}
}

func TestParseDatagramRefuses(t *testing.T) {
	udp := []byte{0, 1, 0x12, 0xb7, 0, 9, 0, 0, 0xaa}
	four := slices.Concat(make([]byte, 12), []byte{8, 0}, []byte{0x45, 0, 0, 29, 0, 0, 0x40, 0, 64, 17, 0, 0}, make([]byte, 8), udp)
	six := slices.Concat(make([]byte, 12), []byte{0x86, 0xdd}, []byte{0x60, 0, 0, 0, 0, 9, 17, 64}, make([]byte, 32), udp)
	for name, frame := range map[string][]byte{"IPv4": four, "IPv6": six, "padded": append(slices.Clone(four), 0, 0, 0)} {
		if d, err := ParseDatagram(frame); err != nil || !bytes.Equal(d.Payload, []byte{0xaa}) {
			t.Errorf("%s: %x and %v", name, d.Payload, err)
		}
	}
	change := func(frame []byte, at int, to byte) []byte {
		b := slices.Clone(frame)
		b[at] = to
		return b
	}
	for name, frame := range map[string][]byte{
		"empty": {}, "ARP": change(four, 13, 6), "options": change(four, 14, 0x46), "fragment": change(four, 20, 0x20),
		"TCP": change(four, 23, 6), "long": change(four, 17, 30), "short": change(four, 17, 27), "length of UDP": change(four, 39, 8),
		"version": change(six, 14, 0x40), "extension header": change(six, 20, 0), "cut": six[:50], "cut IPv4": four[:30],
	} {
		if d, err := ParseDatagram(frame); err == nil {
			t.Errorf("%s: %x", name, d.Payload)
		}
	}
	for n := range len(six) {
		_, _ = ParseDatagram(six[:n]) // it does not panic
	}
}

// One call that sends ten segments is ten packets on a cable, and one on a
// cable that leaves segments whole.
func TestSegmentsAreCut(t *testing.T) {
	const segment, segments = 1000, 10
	for _, c := range []struct {
		whole bool
		hits  int
		lost  []int
	}{
		{false, segments, []int{0, 5}},
		{true, 1, multiples(1, segments)},
	} {
		b := New(t, Options{MTU: 4500, Whole: c.whole})
		f := newTraffic(t, b, 4)
		f.size = segment
		seen := b.B.Lose(Datagrams, Always)
		f.burst(segments)
		if n := seen.Hits(); n != c.hits {
			t.Errorf("whole is %v, and %d packets came", c.whole, n)
		}
		seen.Stop()
		f.forget()
		b.B.Lose(Datagrams, Every(5))
		f.burst(segments)
		f.receiveUntil(func() int { return segments - len(c.lost) })
		if got := f.missing(); !slices.Equal(got, c.lost) {
			t.Errorf("whole is %v, and %v are missing", c.whole, got)
		}
	}
}

// burst sends n datagrams as segments of one call (udp(7), UDP_SEGMENT).
func (f *traffic) burst(n int) {
	f.t.Helper()
	var all []byte
	for range n {
		all = append(all, f.datagram(f.sent)...)
		f.sent++
	}
	control := make([]byte, unix.CmsgSpace(2))
	binary.NativeEndian.PutUint64(control, uint64(unix.CmsgLen(2)))
	binary.NativeEndian.PutUint32(control[8:], unix.SOL_UDP)
	binary.NativeEndian.PutUint32(control[12:], unix.UDP_SEGMENT)
	binary.NativeEndian.PutUint16(control[16:], uint16(f.size))
	if _, _, err := f.from.WriteMsgUDPAddrPort(all, control, f.target); err != nil {
		f.t.Fatal(err)
	}
}
