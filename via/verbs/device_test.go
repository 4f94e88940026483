//go:build verbs && cgo

package verbs_test

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/viablk/viablk/via"
	"github.com/viablk/viablk/via/rdmahost"
	"github.com/viablk/viablk/via/verbs"
)

// timeout bounds each wait of a test.
const timeout = time.Minute

func check(tb testing.TB, err error) {
	tb.Helper()
	if err != nil {
		tb.Fatal(err)
	}
}

// recorder keeps the adapters that a provider opens.
type recorder struct {
	via.Provider
	opened []via.Adapter
}

func (k *recorder) Open(device string) (via.Adapter, error) {
	a, err := k.Provider.Open(device)
	k.opened = append(k.opened, a)
	return a, err
}

// side is one end: a NIC, a completion queue and memory.
type side struct {
	nic   *via.NIC
	tag   via.Ptag
	cq    *via.CQ
	arena *via.Arena
	mem   *via.Memory
	used  int

	mu    sync.Mutex
	async []via.AsyncError
}

func newSide(tb testing.TB, p via.Provider, entries int) *side {
	tb.Helper()
	s := &side{}
	var err error
	s.nic, err = via.OpenNic(p, "")
	check(tb, err)
	s.nic.ErrorCallback(func(e via.AsyncError) {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.async = append(s.async, e)
	})
	s.tag, err = s.nic.CreatePtag()
	check(tb, err)
	s.cq, err = s.nic.CreateCQ(entries)
	check(tb, err)
	s.arena, err = s.nic.NewArena(1 << 20)
	check(tb, err)
	s.mem, err = s.nic.RegisterMem(s.arena.Bytes(), via.MemAttributes{Ptag: s.tag, EnableRdmaWrite: true})
	check(tb, err)
	return s
}

// reported reports whether an asynchronous error arrived.
func (s *side) reported(code via.AsyncCode) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.ContainsFunc(s.async, func(e via.AsyncError) bool { return e.Code == code })
}

func (s *side) newVI(tb testing.TB, depth int) *via.VI {
	tb.Helper()
	vi, err := s.nic.CreateVi(via.ViAttributes{Reliability: via.ReliableDelivery, Ptag: s.tag, EnableRdmaWrite: true},
		via.ViConfig{SendCQ: s.cq, RecvCQ: s.cq, SendDepth: depth, RecvDepth: depth})
	check(tb, err)
	return vi
}

// message returns a descriptor of 64 bytes.
func (s *side) message(tb testing.TB, op via.Opcode) *via.Descriptor {
	tb.Helper()
	d, err := s.mem.NewDescriptor(s.used, 64)
	check(tb, err)
	s.used += 128
	d.Reset(op)
	d.AddSegment(s.mem.Addr()+512<<10, s.mem.Handle(), 64)
	return d
}

// join connects two VIs.
func join(tb testing.TB, client, server *side, mine, theirs *via.VI, host string) {
	tb.Helper()
	ctx, cancel := context.WithTimeout(tb.Context(), timeout)
	defer cancel()
	to := via.Address{Host: host, Discriminator: "device"}
	l, err := server.nic.Listen(to)
	check(tb, err)
	done := make(chan error, 1)
	go func() {
		_, err := mine.Connect(ctx, to)
		done <- err
	}()
	r, err := l.Wait(ctx)
	check(tb, err)
	check(tb, r.Accept(ctx, theirs))
	check(tb, <-done)
	check(tb, l.Close())
}

// await polls sides until something holds.
func await(tb testing.TB, what string, cond func() bool, sides ...*side) (done []via.Completion) {
	tb.Helper()
	batch := make([]via.Completion, 64)
	for end := time.Now().Add(timeout); !cond(); {
		found := 0
		for _, s := range sides {
			n := s.cq.Poll(batch)
			done = append(done, batch[:n]...)
			found += n
		}
		if time.Now().After(end) {
			tb.Fatalf("timed out waiting for %s", what)
		}
		if found == 0 {
			time.Sleep(time.Millisecond) // others may need the processor for it
		}
	}
	return done
}

// close frees all resources of the side.
func (s *side) close(tb testing.TB, vis ...*via.VI) {
	tb.Helper()
	for _, vi := range vis {
		check(tb, vi.Disconnect())
		for {
			if _, err := vi.SendDone(); errors.Is(err, via.ErrNotDone) || err != nil && vi.State() == via.StateIdle {
				break
			}
		}
	}
	batch := make([]via.Completion, 64)
	for s.cq.Poll(batch) != 0 {
	}
	for _, vi := range vis {
		check(tb, vi.Destroy())
	}
	check(tb, s.cq.Destroy())
	check(tb, s.mem.Deregister())
	check(tb, s.arena.Close())
	check(tb, s.nic.DestroyPtag(s.tag))
	check(tb, s.nic.Close())
}

func run(tb testing.TB, command string) {
	tb.Helper()
	words := strings.Fields(command)
	if out, err := exec.Command(words[0], words[1:]...).CombinedOutput(); err != nil {
		tb.Fatalf("%s: %v: %s", command, err, out)
	}
}

func TestDeviceList(t *testing.T) {
	address(t)
	list, err := verbs.Devices()
	check(t, err)
	if len(list) != 1 || list[0].Name != "rxe0" || list[0].State != "active" || list[0].MTU != 4096 ||
		list[0].Link != "Ethernet" || !slices.Equal(list[0].Interfaces, []string{"near"}) || list[0].GUID == 0 {
		t.Errorf("devices are %+v", list)
	}
	_, err = verbs.New(verbs.Options{}).Open("rxe7")
	if !errors.Is(err, verbs.ErrNoDevice) || !errors.Is(err, via.ErrInvalidParameter) {
		t.Errorf("open a missing device: %v", err)
	}
}

// One call into C posts a batch, and one polls its completions.
func TestDeviceCounts(t *testing.T) {
	k := &recorder{Provider: verbs.New(verbs.Options{})}
	client, server := newSide(t, k, 256), newSide(t, k, 256)
	const batch, rounds = 32, 20
	mine, theirs := client.newVI(t, 64), server.newVI(t, 64)
	join(t, client, server, mine, theirs, address(t)+":19001")
	counts := func() [2]verbs.Counts {
		return [2]verbs.Counts{k.opened[0].(verbs.Counter).Counts(), k.opened[1].(verbs.Counter).Counts()}
	}
	var sends, receives []*via.Descriptor
	for range batch {
		sends = append(sends, client.message(t, via.OpSend))
		receives = append(receives, server.message(t, via.OpRecv))
	}
	completions := make([]via.Completion, 2*batch)
	drain := func(s *side) {
		for taken, end := 0, time.Now().Add(timeout); taken < batch; {
			if taken += s.cq.Poll(completions); taken < batch {
				time.Sleep(20 * time.Millisecond) // polls are counted: poll only once completions are ready
			}
			if time.Now().After(end) {
				t.Fatal("timed out waiting for a batch")
			}
		}
	}
	before := counts()
	for range rounds {
		for _, d := range receives {
			check(t, theirs.PostRecv(d))
		}
		theirs.Doorbell()
		for _, d := range sends {
			check(t, mine.StageSend(d))
		}
		mine.Doorbell()
		time.Sleep(20 * time.Millisecond)
		drain(client)
		drain(server)
	}
	after := counts()
	t.Logf("%d batches of %d: client %+v, server %+v", rounds, batch, after[0], after[1])
	for i, s := range []string{"client", "server"} {
		if n := after[i].Messages + after[i].Receives - before[i].Messages - before[i].Receives; n != batch*rounds {
			t.Errorf("%s: %d works were posted, want %d", s, n, batch*rounds)
		}
	}
	for i, calls := range []uint64{1, 2} { // the first receive does not wait for others
		if n := after[i].Posts - before[i].Posts; n > calls*rounds {
			t.Errorf("%d calls posted %d batches, want %d for each", n, rounds, calls)
		}
		if n := after[i].Polls - before[i].Polls; n > 2*rounds {
			t.Errorf("%d calls took the completions of %d batches", n, rounds)
		}
	}
	client.close(t, mine)
	server.close(t, theirs)
}

// A completion queue grows with its links and loses no completion.
func TestDeviceQueueGrows(t *testing.T) {
	p := verbs.New(verbs.Options{})
	client, server := newSide(t, p, 16), newSide(t, p, 16)
	const vis, depth = 24, 128
	var mine, theirs []*via.VI
	for i := range vis {
		mine = append(mine, client.newVI(t, depth))
		theirs = append(theirs, server.newVI(t, depth))
		join(t, client, server, mine[i], theirs[i], address(t)+":19002")
		check(t, theirs[i].PostRecv(server.message(t, via.OpRecv)))
		check(t, mine[i].PostSend(client.message(t, via.OpSend))) // while the queues grow
	}
	done := 0
	for end := time.Now().Add(timeout); done < 2*vis; {
		batch := make([]via.Completion, 64)
		for _, s := range []*side{client, server} {
			n := s.cq.Poll(batch)
			for _, c := range batch[:n] {
				if c.Status.Failed() {
					t.Fatal(c.Status)
				}
			}
			done += n
		}
		if time.Now().After(end) {
			t.Fatalf("%d of %d completions", done, 2*vis)
		}
	}
	client.close(t, mine...)
	server.close(t, theirs...)
}

// A listener holds as many pending requests of an address as it has places,
// refuses the next one, and takes another when one is answered.
func TestDevicePlaces(t *testing.T) {
	p := verbs.New(verbs.Options{})
	client, server := newSide(t, p, 256), newSide(t, p, 256)
	to := via.Address{Host: address(t) + ":19005", Discriminator: "device"}
	l, err := server.nic.Listen(to)
	check(t, err)
	ctx, cancel := context.WithTimeout(t.Context(), timeout)
	defer cancel()
	var vis []*via.VI
	ended := make(chan error, 2*rdmahost.MaxRequestsPerAddr)
	connect := func() {
		vi := client.newVI(t, 4)
		vis = append(vis, vi)
		go func() {
			_, err := vi.Connect(ctx, to)
			ended <- err
		}()
	}
	rejected := func(isFull bool) {
		t.Helper()
		if err := <-ended; !errors.Is(err, via.ErrReject) || strings.Contains(err.Error(), "was full") != isFull {
			t.Errorf("connect: %v", err)
		}
	}
	var pending []*via.ConnRequest
	hold := func() {
		connect()
		r, err := l.Wait(ctx)
		check(t, err)
		pending = append(pending, r)
	}
	for range rdmahost.MaxRequestsPerAddr {
		hold()
	}
	for range 3 {
		connect()
		rejected(true)
	}
	check(t, pending[0].Reject())
	rejected(false)
	hold()
	connect()
	rejected(true)
	for _, r := range pending[1:] {
		check(t, r.Reject())
		rejected(false)
	}
	check(t, l.Close())
	client.close(t, vis...)
	server.close(t)
}

// Both ends close a connection at once: an end may disconnect while the event
// of its peer's disconnect arrives.
func TestDeviceBothDisconnect(t *testing.T) {
	p := verbs.New(verbs.Options{})
	client, server := newSide(t, p, 256), newSide(t, p, 256)
	var mine, theirs []*via.VI
	for i := range 40 {
		mine, theirs = append(mine, client.newVI(t, 4)), append(theirs, server.newVI(t, 4))
		join(t, client, server, mine[i], theirs[i], address(t)+":19006")
	}
	var all sync.WaitGroup
	for _, vis := range [][]*via.VI{mine, theirs} {
		all.Go(func() {
			for _, vi := range vis {
				if err := vi.Disconnect(); err != nil {
					t.Error(err)
				}
			}
		})
	}
	all.Wait()
	client.close(t, mine...)
	server.close(t, theirs...)
}

// A listener of via/roce that has eight requests of an address asks for a
// cookie, which the device's connection manager returns in another request. The
// owner of the listener holds all requests until the last is there.
func TestCookies(t *testing.T) {
	host := os.Getenv("VIABLK_VERBS_HOLDER")
	if host == "" {
		t.Fatal("VIABLK_VERBS_HOLDER must be where the program end of integration/vm/interop holds 12 requests")
	}
	client := newSide(t, verbs.New(verbs.Options{}), 256)
	ctx, cancel := context.WithTimeout(t.Context(), timeout)
	defer cancel()
	var vis []*via.VI
	ended := make(chan error, 12)
	for range cap(ended) {
		vi := client.newVI(t, 4)
		vis = append(vis, vi)
		go func() {
			_, err := vi.Connect(ctx, via.Address{Host: host, Discriminator: "hold"})
			ended <- err
		}()
	}
	for range cap(ended) {
		if err := <-ended; !errors.Is(err, via.ErrReject) || strings.Contains(err.Error(), "was full") {
			t.Errorf("connect: %v", err)
		}
	}
	client.close(t, vis...)
}

// A port that goes down raises an asynchronous error; Open fails.
func TestDevicePortDown(t *testing.T) {
	p := verbs.New(verbs.Options{})
	client, server := newSide(t, p, 16), newSide(t, p, 16)
	mine, theirs := client.newVI(t, 4), server.newVI(t, 4)
	join(t, client, server, mine, theirs, address(t)+":19003")
	run(t, "ip link set near down")
	await(t, "the event of the port", func() bool { return client.reported(via.AsyncRdmaTransport) && server.reported(via.AsyncRdmaTransport) }, client, server)
	if _, err := p.Open(""); !errors.Is(err, verbs.ErrPortDown) {
		t.Errorf("open a device whose port is down: %v", err)
	}
	run(t, "ip link set near up")
	client.close(t, mine)
	server.close(t, theirs)
}

// The removal of a device is a catastrophic error, and all resources can be
// freed. librdmacm keeps every device open until the process ends, so the
// removal completes only then: this is the last test.
func TestDeviceRemoved(t *testing.T) {
	p := verbs.New(verbs.Options{})
	client, server := newSide(t, p, 16), newSide(t, p, 16)
	mine, theirs := client.newVI(t, 4), server.newVI(t, 4)
	join(t, client, server, mine, theirs, address(t)+":19004")
	check(t, exec.Command("rdma", "link", "delete", "rxe0").Start()) // ends after this process
	await(t, "the event of the device", func() bool { return client.reported(via.AsyncCatastrophic) && server.reported(via.AsyncCatastrophic) }, client, server)
	if mine.State() != via.StateError || theirs.State() != via.StateError {
		t.Errorf("the VIs are %v and %v", mine.State(), theirs.State())
	}
	if _, err := client.nic.CreateCQ(4); !errors.Is(err, via.ErrResource) {
		t.Errorf("create a completion queue: %v", err)
	}
	client.close(t, mine)
	server.close(t, theirs)
}
