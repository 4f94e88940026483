package netbed

import (
	"bytes"
	"encoding/binary"
	"path/filepath"
	"slices"
	"sync/atomic"
	"testing"
)

// The middle sees each datagram, and the host receives what it decides: the
// same, others, several, later ones or none.
func TestMiddleDecides(t *testing.T) {
	b := New(t, Options{MTU: 4500})
	f := newTraffic(t, b, 4)
	f.size = 2000
	var seen atomic.Int64
	number := func(frame []byte) int { return int(binary.BigEndian.Uint32(frame[len(frame)-4:])) }
	var held []byte
	var last atomic.Pointer[[]byte]
	m := b.Interpose(func(to *Host, frame []byte) [][]byte {
		if frame == nil || to != b.B {
			return nil
		}
		seen.Add(1)
		copied := bytes.Clone(frame)
		last.Store(&copied)
		switch i := number(frame); {
		case i%10 == 1:
			frame[FramePayload+7] ^= 4
		case i%10 == 3:
			return nil
		case i%10 == 5:
			return [][]byte{frame, bytes.Clone(frame)}
		case i%10 == 7:
			held = bytes.Clone(frame)
			return nil
		case i%10 == 8:
			return [][]byte{frame, held}
		}
		return [][]byte{frame}
	})
	const n = 300
	// Of each ten one is lost, one is there twice, and one waits for the next.
	f.send(n, func() int {
		k := f.sent % 10
		arrived := f.sent
		if k > 3 {
			arrived--
		}
		if k > 5 {
			arrived++
		}
		if k == 8 {
			arrived--
		}
		return arrived
	})
	if seen.Load() != n {
		t.Errorf("the middle saw %d of %d datagrams", seen.Load(), n)
	}
	var want []int
	for i := range n {
		switch i % 10 {
		case 3, 7:
		case 5:
			want = append(want, i, i)
		case 8:
			want = append(want, i, i-1)
		default:
			want = append(want, i)
		}
	}
	if !slices.Equal(f.arrived, want) {
		t.Errorf("%v arrived", f.arrived)
	}
	for i := range n {
		if at := f.flipped[i]; i%10 == 1 != slices.Equal(at, []int{7}) || i%10 != 1 && len(at) != 0 {
			t.Errorf("bytes %v of datagram %d are flipped", at, i)
		}
	}
	f.forget()
	d := Forge(*last.Load(), f.datagram(0))
	if err := m.Send(b.B, d); err != nil {
		t.Fatal(err)
	}
	f.sent++
	f.receiveUntil(f.all)
	m.Stop()
	f.forget()
	f.send(100, f.all)
}

// A frame that was captured, or forged after one, arrives as if its host had
// sent it again.
func TestSenderRepeats(t *testing.T) {
	b := New(t, Options{})
	f := newTraffic(t, b, 4)
	path := filepath.Join(t.TempDir(), "frames")
	c := b.A.Capture(path)
	f.send(20, f.all)
	c.Stop()
	all, err := Frames(path)
	if err != nil {
		t.Fatal(err)
	}
	f.forget()
	s := b.A.Sender()
	for _, frame := range all {
		d, err := ParseDatagram(frame)
		if err != nil {
			continue // the hosts look for each other
		}
		if err := s.Send(Forge(frame, d.Payload)); err != nil {
			t.Fatal(err)
		}
		f.sent++
	}
	f.receiveUntil(func() int { return 20 })
	long := f.size + 100
	for _, frame := range all {
		if _, err := ParseDatagram(frame); err == nil {
			f.size = long
			if err := s.Send(Forge(frame, f.datagram(0))); err != nil {
				t.Fatal(err)
			}
			break
		}
	}
	f.receiveUntil(func() int { return 21 })
	if f.arrived[20] != 0 || len(f.flipped) != 0 {
		t.Errorf("%v arrived, with %v flipped", f.arrived, f.flipped)
	}
}
