package netbed

import (
	"fmt"
	"net"
	"os"
	"slices"
	"testing"
	"time"

	"github.com/viablk/viablk/internal/netns"
)

// eachFamily runs a test with datagrams of IPv4 and of IPv6.
func eachFamily(t *testing.T, test func(t *testing.T, b *Bed, f *traffic)) {
	for _, family := range families {
		t.Run(fmt.Sprintf("IPv%d", family), func(t *testing.T) {
			b := New(t, Options{})
			test(t, b, newTraffic(t, b, family))
		})
	}
}

func TestBedIsClean(t *testing.T) {
	for _, mtu := range []int{1500, 4500, 9000} {
		for _, family := range families {
			b := New(t, Options{MTU: mtu})
			f := newTraffic(t, b, family)
			f.size = mtu - 48
			f.clean(300)
		}
	}
}

func TestLoseEveryTenthPacket(t *testing.T) {
	eachFamily(t, func(t *testing.T, b *Bed, f *traffic) {
		lost := b.B.Lose(Datagrams, Every(10))
		f.send(1000, func() int { return f.sent - lost.Hits() })
		if got := f.missing(); !slices.Equal(got, multiples(10, 1000)) {
			t.Errorf("%v are missing", got)
		}
		lost.Stop()
		f.clean(100)
	})
}

// Of 2000 datagrams 600 are lost on average, and 20.5 is the standard
// deviation: outside of six of them is one run of 10⁹.
func TestLoseRandomPackets(t *testing.T) {
	eachFamily(t, func(t *testing.T, b *Bed, f *traffic) {
		lost := b.B.Lose(Datagrams, Randomly(0.3))
		f.send(2000, func() int { return f.sent - lost.Hits() })
		n := len(f.missing())
		if n != lost.Hits() || n < 600-123 || n > 600+123 {
			t.Errorf("%d datagrams are missing, %d were hit", n, lost.Hits())
		}
		// Losses that follow each other independently, and not a pattern: 180
		// of them.
		pairs, missing := 0, f.missing()
		for i := range missing[1:] {
			if missing[i+1] == missing[i]+1 {
				pairs++
			}
		}
		if pairs < 60 || pairs > 300 {
			t.Errorf("%d losses follow another one", pairs)
		}
		lost.Stop()
		f.clean(100)
	})
}

func TestLossProbability(t *testing.T) {
	for p, want := range map[float64]Chance{
		0.001: "numgen random mod 1000000 < 1000", 0.05: "numgen random mod 1000000 < 50000", 1: "numgen random mod 1000000 < 1000000",
	} {
		if got := Randomly(p); got != want {
			t.Errorf("%v is %q", p, got)
		}
	}
}

// Loss of one kind of packet leaves the others alone, and counts its own alone.
func TestLoseOneKindOfPacket(t *testing.T) {
	const first, middle, last, only, acknowledge, write = 0x0d, 0x0e, 0x0f, 0x10, 0x11, 0x0a
	opcodes := []byte{write, first, middle, last, only, acknowledge, 0x0c, 0x12}
	for _, c := range []struct {
		name string
		kind Packets
		hit  []byte
	}{
		{"acknowledgements", Acknowledgements, []byte{acknowledge}},
		{"read responses", ReadResponses, []byte{first, middle, last, only}},
	} {
		t.Run(c.name, func(t *testing.T) {
			eachFamily(t, func(t *testing.T, b *Bed, f *traffic) {
				f.opcode = func(i int) byte { return opcodes[i%len(opcodes)] }
				lost := b.B.Lose(c.kind, Always)
				f.send(800, func() int { return f.sent - lost.Hits() })
				if want := 100 * len(c.hit); lost.Hits() != want {
					t.Errorf("%d were hit, want %d", lost.Hits(), want)
				}
				for _, i := range f.missing() {
					if !slices.Contains(c.hit, f.opcode(i)) {
						t.Errorf("number %d, opcode %#x, is missing", i, f.opcode(i))
					}
				}
				lost.Stop()
				f.clean(100)
			})
		})
	}
}

// The other direction is not concerned.
func TestLossInOneDirection(t *testing.T) {
	b := New(t, Options{})
	f := newTraffic(t, b, 4)
	lost := b.A.Lose(Datagrams, Always)
	f.clean(100)
	if n := lost.Hits(); n != 0 {
		t.Errorf("%d datagrams were hit on the way back, where there were none", n)
	}
}

func TestDuplicatesArrive(t *testing.T) {
	eachFamily(t, func(t *testing.T, b *Bed, f *traffic) {
		twice := b.B.Duplicate(Datagrams, Every(5))
		f.send(1000, func() int { return f.sent + twice.Hits() })
		if twice.Hits() != 200 || len(f.missing()) > 0 {
			t.Errorf("%d were hit, %v are missing", twice.Hits(), f.missing())
		}
		count := make(map[int]int)
		for _, i := range f.arrived {
			count[i]++
		}
		for i := range f.sent {
			want := 1
			if i%5 == 0 {
				want = 2
			}
			if count[i] != want {
				t.Errorf("number %d arrived %d times, want %d", i, count[i], want)
			}
		}
		twice.Stop()
		f.clean(100)
	})
}

// A held datagram comes behind those up to the one that is held next.
func TestReorderedPacketsArriveLate(t *testing.T) {
	eachFamily(t, func(t *testing.T, b *Bed, f *traffic) {
		late := b.B.Reorder(Datagrams, 10, time.Hour)
		f.send(1000, func() int { return f.sent - 1 }) // the last one is held
		if got := f.missing(); !slices.Equal(got, []int{990}) || late.Hits() != 100 {
			t.Errorf("%v are missing, %d were held", got, late.Hits())
		}
		for at, i := range f.arrived {
			before := 0 // later numbers that arrived before it
			for _, k := range f.arrived[:at] {
				if k > i {
					before++
				}
			}
			if held := i%10 == 0; held != (before >= 9) || !held && before > 0 {
				t.Errorf("number %d came behind %d later ones", i, before)
			}
		}
		late.Stop()
		f.receiveUntil(f.all)
		f.clean(100)
	})
}

// A held datagram is released when no other follows it.
func TestHeldPacketIsReleasedAtStop(t *testing.T) {
	b := New(t, Options{})
	f := newTraffic(t, b, 4)
	late := b.B.Reorder(Datagrams, 1, time.Millisecond)
	f.send(10, f.all)
	if late.Hits() != 10 {
		t.Errorf("%d were held", late.Hits())
	}
}

// A flipped bit arrives: the checksum of UDP does not notice.
func TestCorruptPacketArrives(t *testing.T) {
	for _, offset := range []int{0, 12, 200, 246} {
		t.Run(fmt.Sprint(offset), func(t *testing.T) {
			eachFamily(t, func(t *testing.T, b *Bed, f *traffic) {
				wrong := b.B.Corrupt(Datagrams, Every(4), offset)
				f.send(400, f.all)
				if wrong.Hits() != 100 || len(f.flipped) != 100 {
					t.Errorf("%d were hit, %d are wrong, want 100", wrong.Hits(), len(f.flipped))
				}
				for i, at := range f.flipped {
					if i%4 != 0 || !slices.Equal(at, []int{offset}) {
						t.Errorf("number %d is wrong at %v", i, at)
					}
				}
				wrong.Stop()
				f.clean(100)
			})
		})
	}
}

func TestUnpluggedHostReceivesNothing(t *testing.T) {
	eachFamily(t, func(t *testing.T, b *Bed, f *traffic) {
		f.clean(10)
		plug := b.B.Unplug()
		for i := range 50 {
			_, _ = f.from.WriteToUDPAddrPort(f.datagram(i), f.target) // it may say that the link is down
		}
		if _, err := f.to.WriteToUDPAddrPort([]byte("x"), f.from.LocalAddr().(*net.UDPAddr).AddrPort()); err == nil {
			t.Error("a host without a link can send")
		}
		f.receive()
		if len(f.arrived) != 10 {
			t.Errorf("%d arrived without a link", len(f.arrived)-10)
		}
		plug()
		f.clean(100)
	})
}

// quiet keeps the kernel of host A from sending packets, which a limit of the
// cable counts, too: IPv6 solicits routers and reports multicast groups, ARP
// probes a neighbour that is stale.
func quiet(t *testing.T, b *Bed) {
	t.Helper()
	err := b.A.Do(func() error {
		return os.WriteFile("/proc/sys/net/ipv6/conf/"+netns.Device+"/disable_ipv6", []byte("1"), 0)
	})
	if err != nil {
		t.Fatal(err)
	}
	b.A.run("ip", "", "neigh", "change", b.B.IPv4.String(), "dev", netns.Device, "nud", "permanent")
}

// A slow cable takes its time, and loses what finds no room.
func TestLimitedCable(t *testing.T) {
	b := New(t, Options{})
	f := newTraffic(t, b, 4)
	quiet(t, b)
	f.size = 1472 // 1514 bytes of Ethernet
	const rate, frame = 20_000_000, 1514
	slow := b.B.Limit(rate, 1<<20)
	start := time.Now()
	f.send(300, func() int { return f.sent - slow.Hits() })
	// The limiter delayed all but the burst: no machine is too slow for
	// that.
	least := time.Duration((300*frame - burst) * 8 * int(time.Second) / rate)
	if elapsed := time.Since(start); slow.Hits() > 0 || elapsed < least {
		t.Errorf("%d bytes took %v, less than %v; %d were lost", 300*frame, elapsed, least, slow.Hits())
	}
	slow.Stop()
	f.clean(100)

	tight := b.B.Limit(1_000_000, 10*frame)
	f.forget()
	f.send(100, func() int { return f.sent - tight.Hits() })
	if n := tight.Hits(); n == 0 || n > 100-burst/frame {
		t.Errorf("%d of 100 were lost in a queue of 10 behind a burst of %d", n, burst/frame)
	}
	tight.Stop()

	busy := b.B.Slow(rate, 1<<20)
	f.forget()
	f.clean(10)
	if n := busy.Hits(); n != 0 {
		t.Errorf("%d hits by packets that found the cable free", n)
	}
	f.clean(300)
	if busy.Hits() == 0 {
		t.Error("packets that had to wait are not counted")
	}
}
