package hook_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/viablk/viablk/via"
	"github.com/viablk/viablk/via/hook"
	"github.com/viablk/viablk/via/viatest/loopback"
	"pgregory.net/rapid"
)

// tester is a test or a rapid check.
type tester interface {
	rapid.TB
	Cleanup(f func())
}

// station is a device of a network with what a conversation needs.
type station struct {
	nic   *via.NIC
	cq    *via.CQ
	vi    *via.VI
	mem   *via.Memory
	used  int
	codes []via.AsyncCode // of the error callback
	lost  int
	cause error
	done  []via.Completion
}

func newStation(t tester, p via.Provider) *station {
	t.Helper()
	return newStationAt(t, p, via.ReliableDelivery)
}

func newStationAt(t tester, p via.Provider, level via.ReliabilityLevel) *station {
	t.Helper()
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	s := &station{}
	var err error
	s.nic, err = via.OpenNic(p, "")
	must(err)
	s.nic.ErrorCallback(func(a via.AsyncError) {
		s.codes = append(s.codes, a.Code)
		if a.Code == via.AsyncConnectionLost {
			s.lost, s.cause = s.lost+1, a.Cause
		}
	})
	tag, err := s.nic.CreatePtag()
	must(err)
	arena, err := s.nic.NewArena(1 << 20)
	must(err)
	s.mem, err = s.nic.RegisterMem(arena.Bytes(), via.MemAttributes{Ptag: tag, EnableRdmaRead: true, EnableRdmaWrite: true})
	must(err)
	s.cq, err = s.nic.CreateCQ(256)
	must(err)
	reads := s.nic.Limits().RdmaReadLevels&level != 0
	s.vi, err = s.nic.CreateVi(via.ViAttributes{Reliability: level, Ptag: tag, EnableRdmaRead: reads, EnableRdmaWrite: true},
		via.ViConfig{SendCQ: s.cq, RecvCQ: s.cq, SendDepth: 64, RecvDepth: 64})
	must(err)
	t.Cleanup(func() {
		must(s.vi.Disconnect())
		s.poll()
		must(s.vi.Destroy())
		must(s.cq.Destroy())
		must(s.mem.Deregister())
		must(s.nic.Close())
	})
	return s
}

// poll takes all completions that are there.
func (s *station) poll() {
	var batch [16]via.Completion
	for {
		n := s.cq.Poll(batch[:])
		s.done = append(s.done, batch[:n]...)
		if n == 0 {
			return
		}
	}
}

// post posts a descriptor over n bytes of the station's memory.
func (s *station) post(t tester, op via.Opcode, n int, remote *via.Memory, imm uint32) *via.Descriptor {
	t.Helper()
	d, err := s.mem.NewDescriptor(s.used, 128)
	if err != nil {
		t.Fatal(err)
	}
	s.used += 128
	d.Reset(op)
	if remote != nil {
		d.SetRemote(remote.Addr()+512<<10, remote.Handle())
	}
	d.AddSegment(s.mem.Addr()+512<<10, s.mem.Handle(), uint32(n))
	if imm != 0 {
		d.SetImmediate(imm)
	}
	if op == via.OpRecv {
		err = s.vi.PostRecv(d)
	} else {
		err = s.vi.PostSend(d)
	}
	if err != nil {
		t.Fatal(err)
	}
	return d
}

// meet connects two stations.
func meet(t tester, a, b *station) error {
	t.Helper()
	addr := via.Address{Host: "here", Discriminator: "pair"}
	l, err := b.nic.Listen(addr)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	accepted := make(chan error, 1)
	go func() {
		r, err := l.Wait(ctx)
		if err == nil {
			err = r.Accept(ctx, b.vi)
		}
		accepted <- err
	}()
	_, err = a.vi.Connect(ctx, addr)
	if err := l.Close(); err != nil {
		t.Error(err)
	}
	if accept := <-accepted; err == nil && accept != nil {
		t.Fatal(accept)
	}
	return err
}

// legend has a pattern for each line of the package comment.
var legend = []string{
	`dev \d+ open loopback`, `dev \d+ reg [0-9a-f]+ \+\d+ tag \d+ (rw|r|w|-)`, `dev \d+ upd [0-9a-f]+ tag \d+ (rw|r|w|-)`,
	`dev \d+ dereg [0-9a-f]+`, `dev \d+ cq \d+`, `dev \d+ link \d+ depth \d+/\d+ cq \d+/\d+`,
	`\d+ > (send|recv) #\d+ \d+/\d+( imm [0-9a-f]+)?`,
	`\d+ > (write|read) #\d+ \d+/\d+( imm [0-9a-f]+)? @[0-9a-f]+ [0-9a-f]+`,
	`\d+ x (send|write|read) #\d+`, `\d+ bell`, `\d+ close`,
	`\d+ < (send|recv|write|read) #\d+ [a-z, ]+ \d+( imm [0-9a-f]+)?( broken)?(: .+)?`, `\d+ ! [a-z ]+( broken)?(: .+)?`,
}

func TestTraceSpeaksItsLegend(t *testing.T) {
	var log bytes.Buffer
	p := hook.Trace(loopback.New(), &log)
	a, b := newStation(t, p), newStation(t, p)
	b.post(t, via.OpRecv, 100, nil, 0)
	if err := meet(t, a, b); err != nil {
		t.Fatal(err)
	}
	a.post(t, via.OpSend, 64, nil, 0x1f)
	a.post(t, via.OpRdmaRead, 512, b.mem, 0)
	a.post(t, via.OpRdmaWrite, 4096, b.mem, 0)
	a.poll()
	b.poll()
	if err := b.mem.SetAttributes(via.MemAttributes{Ptag: b.mem.Attributes().Ptag}); err != nil {
		t.Fatal(err)
	}
	a.post(t, via.OpRdmaRead, 8, b.mem, 0)
	a.poll()
	b.poll()
	used := make([]bool, len(legend))
	for line := range strings.Lines(log.String()) {
		known := false
		for i, p := range legend {
			if regexp.MustCompile(`^` + p + "\n$").MatchString(line) {
				used[i], known = true, true
			}
		}
		if !known {
			t.Errorf("line %q is not in the legend", line)
		}
	}
	for _, want := range []string{
		"dev 1 open loopback\n", " tag 1 rw\n", " upd ", " > recv #1 100/1\n", " > send #1 64/1 imm 1f\n", " bell\n",
		" < send #1 ok 64\n", " < recv #1 ok 64 imm 1f\n", " > read #2 512/1 @", " > write #3 4096/1 @",
		" < read #4 remote protection error 0\n", " ! rdma read protection error broken: ", " close\n",
	} {
		if !strings.Contains(log.String(), want) {
			t.Errorf("no line has %q in:\n%s", want, &log)
		}
	}
}

func TestTraceDoesNotAllocate(t *testing.T) {
	p := hook.Trace(loopback.New(), io.Discard)
	a, b := newStation(t, p), newStation(t, p)
	if err := meet(t, a, b); err != nil {
		t.Fatal(err)
	}
	d := a.post(t, via.OpRdmaWrite, 64, b.mem, 0)
	var batch [4]via.Completion
	if n := testing.AllocsPerRun(300, func() {
		for a.cq.Poll(batch[:]) == 0 {
		}
		d.Reset(via.OpRdmaWrite)
		d.SetRemote(b.mem.Addr(), b.mem.Handle())
		_ = a.vi.PostSend(d) // a failure shows as an endless loop's end: the next poll has it
	}); n != 0 {
		t.Errorf("%.1f allocations per traced operation", n)
	}
}

func TestStatsCount(t *testing.T) {
	p := hook.Stats(loopback.New())
	a, b := newStation(t, p), newStation(t, p)
	for range 3 {
		b.post(t, via.OpRecv, 100, nil, 0)
	}
	if err := meet(t, a, b); err != nil {
		t.Fatal(err)
	}
	for range 3 {
		a.post(t, via.OpSend, 50, nil, 0)
	}
	for range 2 {
		a.post(t, via.OpRdmaWrite, 1000, b.mem, 0)
	}
	a.post(t, via.OpRdmaRead, 10, b.mem, 0)
	a.poll()
	b.poll()
	c := p.Counters()
	for _, w := range []struct {
		name        string
		got         hook.OpCounters
		posts, size uint64
	}{{"send", c.Send, 3, 150}, {"write", c.RdmaWrite, 2, 2000}, {"read", c.RdmaRead, 1, 10}, {"recv", c.Recv, 3, 150}} {
		total := uint64(0)
		for _, n := range w.got.Latency {
			total += n
		}
		if w.got.Posts != w.posts || w.got.Completions != w.posts || w.got.Bytes != w.size || total != w.posts || w.got.Errors != 0 {
			t.Errorf("%s: %+v", w.name, w.got)
		}
		if w.got.Quantile(0.5) <= 0 || w.got.Quantile(0.5) > w.got.Quantile(1) {
			t.Errorf("%s: median %v, maximum %v", w.name, w.got.Quantile(0.5), w.got.Quantile(1))
		}
	}
	if c.Links != 2 || c.Doorbells != 6 || c.Registrations != 2 || c.Polls == 0 || c.EmptyPolls == 0 || c.LinksBroken != 0 {
		t.Errorf("counters: %+v", c)
	}
	text, err := json.Marshal(c)
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Contains(text, []byte(`"rdma_write":{"posts":2,`)) {
		t.Errorf("as JSON: %s", text)
	}
	if (&hook.OpCounters{}).Quantile(0.5) != 0 {
		t.Errorf("the quantile of nothing is not 0")
	}
	a.post(t, via.OpSend, 1, nil, 0) // there is no receive for it
	b.poll()
	if c := p.Counters(); c.LinksBroken != 1 || c.Events != 0 {
		t.Errorf("%d links broken, %d events beside; want 1 and none", c.LinksBroken, c.Events)
	}
}

func TestEventsThatBreakNothing(t *testing.T) {
	var log bytes.Buffer
	stats := hook.Stats(loopback.New())
	p := hook.Trace(stats, &log)
	a, b := newStationAt(t, p, via.UnreliableDelivery), newStationAt(t, p, via.UnreliableDelivery)
	if err := meet(t, a, b); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		a.post(t, via.OpSend, 8, nil, 0) // there is no receive for it
	}
	b.poll()
	if c := stats.Counters(); c.Events != 2 || c.LinksBroken != 0 || b.vi.State() != via.StateConnected {
		t.Errorf("%d events, %d links broken, the vi is %v", c.Events, c.LinksBroken, b.vi.State())
	}
	if n := strings.Count(log.String(), " ! receive queue empty: a message met no receive\n"); n != 2 {
		t.Errorf("%d lines for 2 events in:\n%s", n, &log)
	}
}

func TestNamesAreTheInner(t *testing.T) {
	for _, p := range []via.Provider{
		hook.Trace(loopback.New(), io.Discard), hook.Stats(loopback.New()), hook.Fault(loopback.New(), hook.Plan{}),
	} {
		if p.Name() != "loopback" {
			t.Errorf("a decorated loopback is called %q", p.Name())
		}
		if _, err := via.OpenNic(p, "no such device"); !errors.Is(err, via.ErrInvalidParameter) {
			t.Errorf("open of an unknown device: %v", err)
		}
	}
}
