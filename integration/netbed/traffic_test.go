package netbed

import (
	"encoding/binary"
	"errors"
	"net"
	"net/netip"
	"os"
	"slices"
	"testing"
	"time"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// families are those of the hosts' addresses.
var families = []int{4, 6}

// traffic sends numbered datagrams from A to B.
type traffic struct {
	t        *testing.T
	from, to *net.UDPConn
	target   netip.AddrPort
	size     int              // bytes of a datagram
	opcode   func(i int) byte // its first byte
	sent     int
	arrived  []int         // numbers, in the order of arrival
	flipped  map[int][]int // offsets of wrong bytes, by number
}

// waitLimit bounds the wait for an expected event.
const waitLimit = 30 * time.Second

const opcodeAcknowledge = 0x11

func newTraffic(t *testing.T, b *Bed, family int) *traffic {
	t.Helper()
	f := &traffic{
		t: t, size: 300, opcode: func(int) byte { return opcodeAcknowledge },
		from: b.A.ListenUDP(b.A.Addr(family), 0), to: b.B.ListenUDP(b.B.Addr(family), 4791),
		flipped: make(map[int][]int),
	}
	f.target = f.to.LocalAddr().(*net.UDPAddr).AddrPort()
	// Until the kernel knows the neighbour, it holds only 200 KiB of datagrams.
	f.send(1, f.all)
	f.forget()
	return f
}

// datagram is number i: its opcode, its number, and bytes that follow from
// both.
func (f *traffic) datagram(i int) []byte {
	d := make([]byte, f.size)
	for k := range d {
		d[k] = byte(i + k)
	}
	d[0] = f.opcode(i)
	binary.BigEndian.PutUint32(d[f.size-4:], uint32(i))
	return d
}

// send sends n datagrams, a hundred at a time, and receives until the number of
// datagrams is want: a law of conservation, not a time.
func (f *traffic) send(n int, want func() int) {
	f.t.Helper()
	for n > 0 {
		batch := min(n, 100)
		n -= batch
		for range batch {
			if _, err := f.from.WriteToUDPAddrPort(f.datagram(f.sent), f.target); err != nil {
				f.t.Fatal(err)
			}
			f.sent++
		}
		f.receiveUntil(want)
	}
}

// receiveUntil receives until the number of datagrams is want.
func (f *traffic) receiveUntil(want func() int) {
	f.t.Helper()
	for deadline := time.Now().Add(waitLimit); len(f.arrived) != want(); {
		if time.Now().After(deadline) {
			f.t.Fatalf("%d of %d datagrams arrived, want %d", len(f.arrived), f.sent, want())
		}
		f.receive()
	}
}

// forget begins again.
func (f *traffic) forget() {
	f.arrived, f.sent, f.flipped = nil, 0, make(map[int][]int)
}

// receive reads the datagrams that have arrived.
func (f *traffic) receive() {
	f.t.Helper()
	b := make([]byte, 1<<16)
	for {
		_ = f.to.SetReadDeadline(time.Now().Add(2 * time.Millisecond)) // the socket is open
		n, _, err := f.to.ReadFromUDPAddrPort(b)
		if errors.Is(err, os.ErrDeadlineExceeded) {
			return
		}
		if err != nil {
			f.t.Fatal(err)
		}
		if n != f.size {
			f.t.Fatalf("%d bytes arrived, not %d", n, f.size)
		}
		i := int(binary.BigEndian.Uint32(b[f.size-4:]))
		f.arrived = append(f.arrived, i)
		for k, want := range f.datagram(i) {
			if b[k] != want {
				f.flipped[i] = append(f.flipped[i], k)
			}
		}
	}
}

// all is what arrives without a fault.
func (f *traffic) all() int { return f.sent }

// missing returns the numbers that did not arrive.
func (f *traffic) missing() []int {
	seen := make([]bool, f.sent)
	for _, i := range f.arrived {
		seen[i] = true
	}
	var none []int
	for i, here := range seen {
		if !here {
			none = append(none, i)
		}
	}
	return none
}

// multiples returns the multiples of step below n.
func multiples(step, n int) []int {
	var all []int
	for i := 0; i < n; i += step {
		all = append(all, i)
	}
	return all
}

// clean checks that the next datagrams arrive once, in order and whole.
func (f *traffic) clean(n int) {
	f.t.Helper()
	f.forget()
	f.send(n, f.all)
	if !slices.Equal(f.arrived, multiples(1, n)) || len(f.flipped) > 0 {
		f.t.Errorf("without a fault %v arrived, with wrong bytes %v", f.arrived, f.flipped)
	}
}
