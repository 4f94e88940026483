package compare

import (
	"encoding/binary"
	"fmt"
	"net"
	"slices"
	"testing"
	"time"

	"github.com/viablk/viablk/integration/testbed"
)

// besides is how many clients misbehave at a time: each loop has some.
const besides = 4

// A badClient is one that misbehaves.
type badClient struct {
	name  string
	start func(t testing.TB, uri string) (stop func())
}

var badClients = []badClient{
	{"read no replies", func(t testing.TB, uri string) func() { return misbehave(t, uri, readNothing) }},
	{"send a byte a second", func(t testing.TB, uri string) func() { return misbehave(t, uri, sendSlowly) }},
	{"flood", flood},
}

// orderly are the loads of clients that do not misbehave: a fixed rate, below
// what the machine can do beside a flood.
var orderly = []cell{
	{op: "randread", size: "4k", depth: 1, rate: 500, jobs: 4},
	{op: "randread", size: "128k", depth: 2, rate: 100, jobs: 4},
}

// compareBad measures what clients of a server lose beside others that
// misbehave. The rounds with and without these take turns.
func (b *comparison) compareBad(t testing.TB, server *contender, list []cell) (outcomes []outcome) {
	t.Helper()
	for _, n := range badClients {
		for _, c := range list {
			o := outcome{Cell: n.name + ", " + c.String(), Figures: []figure{{Server: "beside"}, {Server: "alone"}}}
			for range b.rounds {
				o.Figures[1].add(b.runCell(t, server, c))
				stop := n.start(t, server.uri)
				o.Figures[0].add(b.runCell(t, server, c))
				stop()
			}
			r := compareFigures(&o.Figures[0], &o.Figures[1])
			o.Ratios = []ratio{r}
			t.Logf("%s, %s, beside clients that %s to alone: %.2f (%.2f..%.2f; %s)", server.name, c, n.name, r.Median, r.Least, r.Most, r.costs())
			outcomes = append(outcomes, o)
		}
	}
	return outcomes
}

// flood has a client send as fast as replies come.
func flood(t testing.TB, uri string) func() {
	t.Helper()
	client := testbed.StartFio(t, uri, "--rw=randwrite", "--bs=64k", "--iodepth=128", "--size=16m", "--time_based", "--runtime=600")
	time.Sleep(500 * time.Millisecond) // until it does
	return client.Kill
}

// misbehave connects clients that do something until stop closes them.
func misbehave(t testing.TB, uri string, do func(net.Conn)) (stop func()) {
	t.Helper()
	_, socket := testbed.AddressOf(t, uri)
	crowd := testbed.NewCrowdAt(t, socket)
	ended := make(chan struct{})
	for range besides {
		conn := crowd.Join()
		testbed.Must(t, testbed.Negotiate(conn, "disk"))
		go func() {
			do(conn)
			ended <- struct{}{}
		}()
	}
	return func() {
		for _, conn := range crowd.Conns {
			_ = conn.Close()
		}
		for range besides {
			<-ended
		}
	}
}

// readRequest is a READ of so many bytes.
func readRequest(size uint32) []byte {
	request := binary.BigEndian.AppendUint32(nil, 0x25609513)
	return binary.BigEndian.AppendUint32(append(request, make([]byte, 20)...), size)
}

// readNothing sends requests as long as the server takes them, and reads no
// reply.
func readNothing(conn net.Conn) {
	for {
		if _, err := conn.Write(readRequest(1 << 20)); err != nil {
			return
		}
	}
}

// sendSlowly sends a byte each second.
func sendSlowly(conn net.Conn) {
	for {
		for _, b := range readRequest(4 << 10) {
			if _, err := conn.Write([]byte{b}); err != nil {
				return
			}
			time.Sleep(time.Second)
		}
	}
}

// The clients misbehave as their names say.
func TestBadClients(t *testing.T) {
	here, there := net.Pipe()
	sent := make(chan []byte)
	go func() {
		b := make([]byte, 28)
		n, _ := there.Read(b)
		sent <- slices.Clone(b[:n])
		_ = there.Close()
	}()
	go sendSlowly(here)
	if first := <-sent; len(first) != 1 || first[0] != 0x25 {
		t.Errorf("a slow client sent % x at once", first)
	}
	here, there = net.Pipe()
	defer here.Close()
	go readNothing(here)
	b := make([]byte, 28)
	for range 3 {
		if _, err := there.Read(b); err != nil || fmt.Sprintf("%x", b[:4]) != "25609513" || binary.BigEndian.Uint32(b[24:]) != 1<<20 {
			t.Errorf("request % x: %v", b, err)
		}
	}
	_ = there.Close()
}
