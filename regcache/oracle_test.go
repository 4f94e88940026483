package regcache

import (
	"context"
	"fmt"
	"os"
	"sync"
	"sync/atomic"
	"testing"

	"go.uber.org/goleak"
	"golang.org/x/sys/unix"

	"github.com/viablk/viablk/via"
)

func TestMain(m *testing.M) {
	goleak.VerifyTestMain(m)
}

// oracle is an adapter that tracks registrations and panics at the first wrong
// registration or use. It moves no bytes.
type oracle struct {
	limits via.Limits

	// The hooks run inside Register and Deregister, before either takes effect.
	onRegister   atomic.Pointer[func(*via.Memory) error]
	onDeregister atomic.Pointer[func(*via.Memory)]

	mu                       sync.Mutex
	live                     map[*via.Memory]*registered
	registered, deregistered int
	most                     int // panics beyond; 0 means no limit
	discards                 int
	discarded                int // bytes
	noDiscard                bool
	complaint                error // of Deregister
}

type registered struct {
	live  atomic.Bool
	users atomic.Int32
}

func newOracle() *oracle {
	return &oracle{
		live: make(map[*via.Memory]*registered),
		limits: via.Limits{
			MaxRegisterBytes: 64 << 30, MaxRegisterRegions: 65536, MaxRegisterBlockBytes: 1 << 30,
			MaxPtags: 1024, RdmaReadLevels: via.ReliableDelivery,
		},
	}
}

func (o *oracle) Name() string                     { return "oracle" }
func (o *oracle) Open(string) (via.Adapter, error) { return o, nil }
func (o *oracle) Limits() via.Limits               { return o.limits }
func (o *oracle) Update(*via.Memory) error         { return nil }
func (o *oracle) Close() error                     { return nil }
func (o *oracle) NewCQ(int) (via.AdapterCQ, error) { return nil, via.ErrNotSupported }
func (o *oracle) Listen(string, func(via.Incoming)) (via.Listening, error) {
	return nil, via.ErrNotSupported
}

func (o *oracle) Connect(context.Context, string, []byte, via.LinkConfig) (via.Link, []byte, error) {
	return nil, nil, via.ErrNotSupported
}

func (o *oracle) Register(m *via.Memory) error {
	if hook := o.onRegister.Load(); hook != nil {
		if err := (*hook)(m); err != nil {
			return err
		}
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	for other := range o.live {
		if other.Addr() < m.Addr()+uint64(len(m.Bytes())) && m.Addr() < other.Addr()+uint64(len(other.Bytes())) &&
			other.Attributes() == m.Attributes() {
			panic(fmt.Sprintf("oracle: %#x is registered twice", m.Addr()))
		}
	}
	r := &registered{}
	r.live.Store(true)
	m.Provider = r
	o.live[m] = r
	o.registered++
	if o.most != 0 && len(o.live) > o.most {
		panic(fmt.Sprintf("oracle: %d regions are registered, %d allowed", len(o.live), o.most))
	}
	return nil
}

func (o *oracle) Accessed(*via.Memory) bool { return false }

func (o *oracle) Deregister(m *via.Memory) error {
	if hook := o.onDeregister.Load(); hook != nil {
		(*hook)(m)
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	r := o.live[m]
	if r == nil || !r.live.Swap(false) {
		panic(fmt.Sprintf("oracle: %#x is deregistered and not registered", m.Addr()))
	}
	if n := r.users.Load(); n != 0 {
		panic(fmt.Sprintf("oracle: %#x is deregistered under %d users", m.Addr(), n))
	}
	delete(o.live, m)
	o.deregistered++
	return o.complaint
}

// use begins a transfer with a lease; the returned function ends it.
func (o *oracle) use(l *Lease) (done func()) {
	m := l.Memory()
	r := m.Provider.(*registered)
	r.users.Add(1)
	if !r.live.Load() {
		panic(fmt.Sprintf("oracle: use of %#x, which is not registered", l.Addr()))
	}
	if m.Handle() != l.Handle() || l.Addr() < m.Addr() || l.Addr() >= m.Addr()+uint64(len(m.Bytes())) {
		panic(fmt.Sprintf("oracle: lease of %#x names a region at %#x", l.Addr(), m.Addr()))
	}
	return func() { r.users.Add(-1) }
}

func (o *oracle) count() (live, registered, deregistered int) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return len(o.live), o.registered, o.deregistered
}

// failRegister makes the next n registrations fail.
func (o *oracle) failRegister(n int, err error) {
	var left atomic.Int32
	left.Store(int32(n))
	hook := func(*via.Memory) error {
		if left.Add(-1) >= 0 {
			return err
		}
		return nil
	}
	o.onRegister.Store(&hook)
}

// oracleMemory is sparse anonymous memory.
type oracleMemory struct {
	o     *oracle
	bytes []byte
}

func (o *oracle) MapArena(size int) (via.ArenaMemory, error) {
	size = (size + os.Getpagesize() - 1) &^ (os.Getpagesize() - 1)
	b, err := unix.Mmap(-1, 0, size, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANON|unix.MAP_NORESERVE)
	if err != nil {
		return nil, err
	}
	return &oracleMemory{o, b}, nil
}

func (m *oracleMemory) Bytes() []byte { return m.bytes }
func (m *oracleMemory) Close() error  { return unix.Munmap(m.bytes) }
func (m *oracleMemory) Discard(off, n int) error {
	if m.o.noDiscard {
		return via.ErrNotSupported
	}
	m.o.discards++
	m.o.discarded += n
	return unix.Madvise(m.bytes[off:off+n], unix.MADV_DONTNEED)
}

// rig is a cache over an oracle, closed at the end of the test, when every
// lease is released.
type rig struct {
	*Cache
	o     *oracle
	nic   *via.NIC
	tag   via.Ptag
	arena *Arena
}

func newRig(t testing.TB, granules int, cfg Config) *rig {
	t.Helper()
	r := newRigNoCleanup(t, granules, cfg)
	t.Cleanup(func() { r.finish(t) })
	return r
}

// failer is the common part of testing.TB and rapid.T that the rig needs.
type failer interface {
	Helper()
	Fatal(...any)
	Fatalf(string, ...any)
}

// newRigNoCleanup returns a rig whose caller calls finish.
func newRigNoCleanup(t failer, granules int, cfg Config) *rig {
	t.Helper()
	o := newOracle()
	o.most = cfg.MaxRegions
	nic := must(via.OpenNic(o, ""))(t)
	r := &rig{o: o, nic: nic, tag: must(nic.CreatePtag())(t)}
	r.Cache = must(New(nic, cfg))(t)
	r.arena = must(r.NewArena(granules * r.Granule()))(t)
	return r
}

// finish closes everything and checks the books.
func (r *rig) finish(t failer) {
	t.Helper()
	if err := r.Close(); err != nil {
		t.Fatalf("Close: %v", err)
	}
	live, registered, deregistered := r.o.count()
	s := r.Stats()
	if live != 0 || registered != deregistered || s.Regions != 0 || s.Bytes != 0 {
		t.Fatalf("after Close %d regions are live, %d registered, %d deregistered, stats %+v",
			live, registered, deregistered, s)
	}
	if int(s.Registrations) != registered || int(s.Deregistrations) != deregistered {
		t.Fatalf("stats %+v, the oracle counts %d and %d", s, registered, deregistered)
	}
	if err := r.nic.Close(); err != nil {
		t.Fatalf("close nic: %v", err)
	}
}

// buf returns n bytes at an offset of a granule.
func (r *rig) buf(granule, off, n int) []byte {
	off += granule * r.Granule()
	return r.arena.Bytes()[off : off+n : off+n]
}

// acquire leases the first page of a granule.
func (r *rig) acquire(t failer, granule int) Lease {
	t.Helper()
	l, err := r.Acquire(r.buf(granule, 0, 4096), r.tag, RemoteRead)
	if err != nil {
		t.Fatalf("Acquire granule %d: %v", granule, err)
	}
	return l
}

// region returns the registration of a granule for the rig's tag, or nil.
func (r *rig) region(granule int) *region { return r.arena.granules[granule].find(r.tag, RemoteRead) }

func must[T any](v T, err error) func(failer) T {
	return func(t failer) T {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		return v
	}
}
