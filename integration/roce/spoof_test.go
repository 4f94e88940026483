package roce

import (
	"encoding/binary"
	"flag"
	"net"
	"net/netip"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/viablk/viablk/integration/netbed"
	"github.com/viablk/viablk/integration/testbed"
	"github.com/viablk/viablk/via/roce/wire"
	"golang.org/x/sys/unix"
)

var spoofTime = flag.Duration("spoof.time", 5*time.Second, "how long TestSpoofedRequests floods the target")

// The flood of spoofed requests, and what it may cost the target: the 32
// requests that are taken without a cookie have no threads.
const (
	spoofRate    = 5000 // a second
	spoofThreads = 12
	spoofMemory  = 16 << 20 // bytes of resident memory more
)

// spoofer sends requests for connections in the name of other addresses, to
// which their answers go.
type spoofer struct {
	*flooder
	conn     *net.UDPConn
	to       netip.AddrPort
	sent     int
	answers  atomic.Int64
	received atomic.Int64 // bytes of the answers
	ended    chan struct{}
}

// spoofed is the network of the addresses.
var spoofed = netip.MustParsePrefix("10.66.0.0/16")

// newSpoofer makes the addresses local to host A, which receives what the
// target sends to them.
func newSpoofer(t testing.TB, b *netbed.Bed, known observed) *spoofer {
	t.Helper()
	b.A.LocalNetwork(spoofed, b.B)
	s := &spoofer{
		flooder: newFlooder(t, b, 4, 0, known),
		conn:    b.A.ListenUDP(netip.IPv4Unspecified(), wire.Port),
		to:      netip.AddrPortFrom(b.B.Addr(4), wire.Port),
		ended:   make(chan struct{}),
	}
	raw, err := s.conn.SyscallConn()
	testbed.Must(t, err)
	testbed.Must(t, raw.Control(func(fd uintptr) {
		err = unix.SetsockoptInt(int(fd), unix.IPPROTO_IP, unix.IP_MTU_DISCOVER, unix.IP_PMTUDISC_DO)
	}))
	testbed.Must(t, err)
	go s.routineCount()
	return s
}

// routineCount counts the answers until the socket is closed.
func (s *spoofer) routineCount() {
	defer close(s.ended)
	for b := make([]byte, wire.MaxPacket); ; {
		n, err := s.conn.Read(b)
		if err != nil {
			return
		}
		s.answers.Add(1)
		s.received.Add(int64(n))
	}
}

// stop closes the socket.
func (s *spoofer) stop() {
	s.conn.Close()
	<-s.ended
}

// requestFrom sends a request in the name of an address of its own, as a viablk
// end or as another.
func (s *spoofer) requestFrom(n int) int {
	s.t.Helper()
	base := spoofed.Addr().As4()
	binary.BigEndian.PutUint16(base[2:], uint16(n))
	from := netip.AddrPortFrom(netip.AddrFrom4(base), wire.Port)
	s.gids[0] = from.Addr().As16()
	var m wire.REQ
	m.Decode(s.flooder.request())
	if n%2 == 0 {
		m.VendorID = 0
	}
	mad := make([]byte, wire.MADSize)
	m.Encode(mad)
	socket := &roceSocket{}
	socket.icrc.Set(from, s.to)
	packet := s.management(socket, nil, 0, mad)
	_, _, err := s.conn.WriteMsgUDPAddrPort(packet, sourceControl(base), s.to)
	testbed.Must(s.t, err)
	return len(packet)
}

// sourceControl is the control message with the source address of a datagram
// (ip(7), IP_PKTINFO).
func sourceControl(from [4]byte) []byte {
	b := make([]byte, unix.CmsgSpace(12))
	order := binary.NativeEndian
	order.PutUint64(b, uint64(unix.CmsgLen(12)))
	order.PutUint32(b[8:], unix.IPPROTO_IP)
	order.PutUint32(b[12:], unix.IP_PKTINFO)
	copy(b[unix.CmsgLen(0)+4:], from[:])
	return b
}

// routineFlood sends requests until stop is closed, and returns their number
// and bytes.
func (s *spoofer) routineFlood(stop <-chan struct{}) (bytes int) {
	for began := time.Now(); ; {
		select {
		case <-stop:
			return bytes
		default:
		}
		for due := int(time.Since(began).Seconds() * spoofRate); s.sent < due; s.sent++ {
			bytes += s.requestFrom(s.sent)
		}
		time.Sleep(time.Millisecond)
	}
}

// TestSpoofedRequests sends a target five thousand requests a second, each in
// the name of another address. Clients connect meanwhile, the addresses get at
// most twice as many packets and bytes as are sent in their names, and the
// target has few threads and little memory more.
func TestSpoofedRequests(t *testing.T) {
	testbed.Alone(t)
	b := netbed.New(t, netbed.Options{})
	program := testbed.PlainProgram(t)
	r, known := overhear(t, program, b, 4, testbed.Disk{Name: "disk", Spec: "memory:16MiB"})
	s := newSpoofer(t, b, known)
	connect := func() time.Duration {
		at := time.Now()
		testbed.Succeed(t, testbed.StartPathAt(t, b.A.StartGroup, nil, program, "info", r.Target.URI("disk", "via+roce")))
		return time.Since(at)
	}
	// Clients cost memory until their connections are forgotten, and the
	// collector has run as often as it does under them.
	var calm []time.Duration
	for began := time.Now(); len(calm) < 40 || time.Since(began) < *spoofTime/4; {
		calm = append(calm, connect())
	}
	threads, memory := r.Target.Threads(), r.Target.Memory("VmRSS")

	stop, flooded := make(chan struct{}), make(chan int, 1)
	go func() { flooded <- s.routineFlood(stop) }()
	var durations []time.Duration
	mostThreads, mostMemory := 0, int64(0)
	for began := time.Now(); time.Since(began) < *spoofTime; {
		durations = append(durations, connect())
		mostThreads = max(mostThreads, r.Target.Threads())
		mostMemory = max(mostMemory, r.Target.Memory("VmRSS"))
	}
	close(stop)
	bytes := <-flooded
	testbed.Eventually(t, "the end of the spoofed requests", func() (any, bool) {
		n := r.Target.Status().Network[0].Manager.Pending
		return n, n == 0
	})
	s.stop()
	r.Unharmed(t)

	slices.Sort(calm)
	slices.Sort(durations)
	answers, received := int(s.answers.Load()), int(s.received.Load())
	t.Logf("%d requests in the name of others, %d answers; %d bytes, %d back; %d clients connected, "+
		"median %v, 99th percentile %v, without the flood %v, %v; %d threads more, %d KiB more; %+v",
		s.sent, answers, bytes, received, len(durations), durations[len(durations)/2], durations[len(durations)*99/100],
		calm[len(calm)/2], calm[len(calm)*99/100],
		mostThreads-threads, (mostMemory-memory)>>10, r.Target.Status().Network[0].Manager)
	if answers > 2*s.sent || received > 2*bytes {
		t.Errorf("%d answers of %d bytes to %d requests of %d", answers, received, s.sent, bytes)
	}
	if answers < s.sent/2 {
		t.Errorf("%d answers to %d requests: the flood has not arrived", answers, s.sent)
	}
	if mostThreads-threads > spoofThreads {
		t.Errorf("the target has %d threads more, %d are allowed", mostThreads-threads, spoofThreads)
	}
	if mostMemory-memory > spoofMemory {
		t.Errorf("the target has grown by %d bytes", mostMemory-memory)
	}
}
