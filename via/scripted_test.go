package via

import (
	"context"
	"errors"
	"testing"
)

// scriptedProvider is a provider that does what a test says: nothing moves, the
// test reports completions itself.
type scriptedProvider struct {
	limits  Limits
	connect func(cfg LinkConfig) (Link, []byte, error)
	listen  func(host string, incoming func(Incoming)) (Listening, error)
	newCQ   func() AdapterCQ
	mapped  func()  // called when an arena is mapped
	self    Adapter // what Open returns
	fail    error   // of Register, Update and Deregister
	inside  bool    // a peer is
}

func newScripted() *scriptedProvider {
	p := &scriptedProvider{limits: Limits{
		MaxDiscriminatorLen: MaxDiscriminatorLen, MaxRegisterBytes: 1 << 20, MaxRegisterRegions: 64,
		MaxRegisterBlockBytes: 1 << 18, MaxVI: 3, MaxDescriptorsPerQueue: 64, MaxSegmentsPerDesc: 252,
		MaxCQ: 3, MaxCQEntries: 256, MaxTransferSize: 1 << 16, MaxPtags: 3,
		ReliabilityLevels: UnreliableDelivery | ReliableDelivery | ReliableReception,
		RdmaReadLevels:    ReliableDelivery | ReliableReception,
	}}
	p.self = p
	p.newCQ, p.mapped = func() AdapterCQ { return &scriptedCQ{} }, func() {}
	p.connect = func(LinkConfig) (Link, []byte, error) { return nil, nil, ErrNotReachable }
	p.listen = func(string, func(Incoming)) (Listening, error) { return scriptedListening{}, nil }
	return p
}

func (p *scriptedProvider) Name() string                 { return "scripted" }
func (p *scriptedProvider) Open(string) (Adapter, error) { return p.self, nil }
func (p *scriptedProvider) Limits() Limits               { return p.limits }
func (p *scriptedProvider) Register(*Memory) error       { return p.fail }
func (p *scriptedProvider) Update(*Memory) error         { return p.fail }
func (p *scriptedProvider) Deregister(*Memory) error     { return p.fail }
func (p *scriptedProvider) Accessed(*Memory) bool        { return p.inside }
func (p *scriptedProvider) NewCQ(int) (AdapterCQ, error) { return p.newCQ(), nil }
func (p *scriptedProvider) Close() error                 { return nil }
func (p *scriptedProvider) MapArena(n int) (ArenaMemory, error) {
	p.mapped()
	return heapArena(make([]byte, n+DescriptorAlignment)), nil
}

func (p *scriptedProvider) Listen(host string, incoming func(Incoming)) (Listening, error) {
	return p.listen(host, incoming)
}

func (p *scriptedProvider) Connect(_ context.Context, _ string, _ []byte, cfg LinkConfig) (Link, []byte, error) {
	return p.connect(cfg)
}

// heapArena is memory that the race detector sees.
type heapArena []byte

func (a heapArena) Bytes() []byte {
	skip := (DescriptorAlignment - addressOf(a)%DescriptorAlignment) % DescriptorAlignment
	return a[skip : skip+uint64(len(a)-DescriptorAlignment)]
}
func (a heapArena) Discard(off, n int) error { clear(a.Bytes()[off : off+n]); return nil }
func (a heapArena) Close() error             { return nil }

type scriptedListening struct{}

func (scriptedListening) Close() error { return nil }

// scriptedCQ reports what the test put in.
type scriptedCQ struct{ done []Done }

func (q *scriptedCQ) Poll(dst []Done) int {
	n := copy(dst, q.done)
	q.done = q.done[n:]
	return n
}
func (q *scriptedCQ) Arm() bool        { return len(q.done) == 0 }
func (q *scriptedCQ) FD() int          { return 7 }
func (q *scriptedCQ) Resize(int) error { return nil }
func (q *scriptedCQ) Close() error     { return nil }

// scriptedLink takes as many sends as the test allows.
type scriptedLink struct {
	cfg    LinkConfig
	begun  []*Work // receives it started with
	room   int
	sends  []*Work
	recvs  []*Work
	bells  int
	closed int
	fail   error // of Start
	inside error // of Close
}

func (l *scriptedLink) Start(receives []*Work) error {
	l.begun = receives
	return l.fail
}

func (l *scriptedLink) PostSend(w *Work) bool {
	if l.room == 0 {
		return false
	}
	l.room--
	l.sends = append(l.sends, w)
	return true
}
func (l *scriptedLink) PostRecv(w *Work) { l.recvs = append(l.recvs, w) }
func (l *scriptedLink) Doorbell()        { l.bells++ }
func (l *scriptedLink) Close() error     { l.closed++; return l.inside }
func (l *scriptedLink) Stats() LinkStats { return LinkStats{Sends: uint64(len(l.sends))} }

// queue returns the receive or the send queue.
func (vi *VI) queue(recv bool) *workQueue {
	if recv {
		return &vi.recv
	}
	return &vi.send
}

// bench is a NIC of a scripted provider with one VI, connected by connect.
type bench struct {
	t    *testing.T
	p    *scriptedProvider
	nic  *NIC
	tag  Ptag
	cq   *CQ
	vi   *VI
	link *scriptedLink
	mem  *Memory
	used int
	errs []AsyncError
}

func newBench(t *testing.T, level ReliabilityLevel) *bench {
	t.Helper()
	return newScripted().bench(t, level)
}

func (p *scriptedProvider) bench(t *testing.T, level ReliabilityLevel) *bench {
	t.Helper()
	b := &bench{t: t, p: p}
	b.nic = b.open()
	var err error
	b.tag, err = b.nic.CreatePtag()
	b.must(err)
	arena, err := b.nic.NewArena(1 << 17)
	b.must(err)
	b.mem, err = b.nic.RegisterMem(arena.Bytes(), MemAttributes{Ptag: b.tag})
	b.must(err)
	b.cq, err = b.nic.CreateCQ(64)
	b.must(err)
	b.vi, err = b.nic.CreateVi(ViAttributes{Reliability: level, Ptag: b.tag},
		ViConfig{SendCQ: b.cq, RecvCQ: b.cq, SendDepth: 8, RecvDepth: 8})
	b.must(err)
	return b
}

func (b *bench) open() *NIC {
	nic, err := OpenNic(b.p, "")
	b.must(err)
	nic.ErrorCallback(func(a AsyncError) { b.errs = append(b.errs, a) })
	return nic
}

func (b *bench) must(err error) {
	b.t.Helper()
	if err != nil {
		b.t.Fatal(err)
	}
}

func (b *bench) wants(err, code error, doing string) {
	b.t.Helper()
	if !errors.Is(err, code) {
		b.t.Errorf("%s: got %v, want %v", doing, err, code)
	}
}

// connect connects the VI to a peer of the same attributes.
func (b *bench) connect() {
	b.t.Helper()
	b.p.connect = func(cfg LinkConfig) (Link, []byte, error) {
		b.link = &scriptedLink{cfg: cfg, room: 1 << 20}
		return b.link, encodeHello(hello{attrs: b.vi.attrs}), nil
	}
	_, err := b.vi.Connect(context.Background(), Address{Host: "peer"})
	b.must(err)
}

// desc returns a descriptor with a data segment of n bytes, or none.
func (b *bench) desc(op Opcode, n int) *Descriptor {
	b.t.Helper()
	d, err := b.mem.NewDescriptor(b.used, 128)
	b.must(err)
	b.used += 128
	d.Reset(op)
	if op == OpRdmaWrite || op == OpRdmaRead {
		d.SetRemote(1, 2)
	}
	if n > 0 {
		d.AddSegment(b.mem.Addr()+1<<16, b.mem.Handle(), uint32(n))
	}
	return d
}

func (b *bench) send(op Opcode, n int) *Descriptor {
	b.t.Helper()
	d := b.desc(op, n)
	b.must(b.vi.PostSend(d))
	return d
}

func (b *bench) recv(n int) *Descriptor {
	b.t.Helper()
	d := b.desc(OpRecv, n)
	b.must(b.vi.PostRecv(d))
	return d
}

// done is the report of a work that is done.
func done(w *Work, s Status, moved uint32) Done {
	w.Status, w.Moved = s, moved
	return Done{Work: w}
}

// report makes the provider report.
func (b *bench) report(d ...Done) {
	switch q := b.cq.adapter.(type) {
	case *scriptedCQ:
		q.done = append(q.done, d...)
	case *eventCQ:
		q.push(d...)
	}
}

// poll returns all completions.
func (b *bench) poll() []Completion {
	var out []Completion
	var batch [16]Completion
	for {
		n := b.cq.Poll(batch[:])
		if n == 0 {
			return out
		}
		out = append(out, batch[:n]...)
	}
}

// codes returns the codes of the asynchronous errors so far.
func (b *bench) codes() []AsyncCode {
	var out []AsyncCode
	for _, e := range b.errs {
		out = append(out, e.Code)
	}
	return out
}
