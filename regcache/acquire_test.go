package regcache

import (
	"errors"
	"syscall"
	"testing"

	"github.com/viablk/viablk/via"
)

func TestAcquireOfAnyBuffer(t *testing.T) {
	r := newRig(t, 4, Config{MaxRegions: 4})
	g := r.Granule()
	other := must(r.NewArena(g))(t)
	cases := []struct {
		name  string
		buf   []byte
		want  error
		reach int
	}{
		{"nil", nil, ErrNotArena, 0},
		{"no bytes inside the arena", r.arena.Bytes()[64:64], ErrNotArena, 0},
		{"no bytes at the end", r.arena.Bytes()[4*g:], ErrNotArena, 0},
		{"go heap", make([]byte, 4096), ErrNotArena, 0},
		{"first byte", r.buf(0, 0, 1), nil, 1},
		{"last byte", r.buf(3, g-1, 1), nil, 1},
		{"unaligned", r.buf(1, 4095, 3), nil, 3},
		{"whole granule", r.buf(2, 0, g), nil, g},
		{"up to the end of a granule", r.buf(2, 1, g-1), nil, g - 1},
		{"one byte over the end of a granule", r.buf(1, g-1, 2), ErrSpans, 1},
		{"two granules", r.buf(1, 0, 2*g), ErrSpans, g},
		{"other arena", other.Bytes()[g-1:], nil, 1},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			if got := r.Reach(c.buf); got != c.reach {
				t.Errorf("Reach = %d, want %d", got, c.reach)
			}
			l, err := r.Acquire(c.buf, r.tag, RemoteRead|RemoteWrite)
			if err != c.want {
				t.Fatalf("Acquire: %v, want %v", err, c.want)
			}
			defer l.Release()
			if err != nil {
				if l != (Lease{}) {
					t.Error("a lease comes with the error")
				}
				if _, ok := r.AcquireCached(c.buf, r.tag, RemoteRead|RemoteWrite); ok {
					t.Error("AcquireCached leases it nevertheless")
				}
				return
			}
			defer r.o.use(&l)()
			if l.Addr() != addressOf(c.buf) {
				t.Errorf("address %#x, want %#x", l.Addr(), addressOf(c.buf))
			}
			m := l.Memory()
			if m.Addr()%uint64(g) != 0 || len(m.Bytes()) != g {
				t.Errorf("region of %d bytes at %#x is no granule", len(m.Bytes()), m.Addr())
			}
			if end := l.Addr() + uint64(len(c.buf)); end > m.Addr()+uint64(g) {
				t.Error("the region ends before the buffer")
			}
			if !m.RemoteRead() || !m.RemoteWrite() || m.Attributes().Ptag != r.tag {
				t.Errorf("attributes %+v", m.Attributes())
			}
		})
	}
}

func TestSecondAcquireHits(t *testing.T) {
	r := newRig(t, 2, Config{})
	if _, ok := r.AcquireCached(r.buf(0, 0, 512), r.tag, RemoteRead); ok {
		t.Fatal("AcquireCached registers")
	}
	a := r.acquire(t, 0)
	b := r.acquire(t, 0)
	if a.Memory() != b.Memory() || a.Handle() != b.Handle() {
		t.Error("two registrations of one granule")
	}
	a.Release()
	b.Release()
	c, ok := r.AcquireCached(r.buf(0, 8192, 512), r.tag, RemoteRead)
	if !ok {
		t.Fatal("the idle registration is not found")
	}
	c.Release()
	if s := r.Stats(); s.Hits != 2 || s.Misses != 1 || s.Registrations != 1 || s.Regions != 1 || s.LeasedRegions != 0 {
		t.Errorf("stats %+v", s)
	}
}

func TestTagAndAccessAreExact(t *testing.T) {
	r := newRig(t, 1, Config{MaxRegions: 16})
	second := must(r.nic.CreatePtag())(t)
	seen := map[uint32]bool{}
	for _, tag := range []via.Ptag{r.tag, second} {
		for access := range RemoteRead | RemoteWrite + 1 {
			l := must(r.Acquire(r.buf(0, 0, 1), tag, access))(t)
			m := l.Memory()
			if seen[l.Handle()] {
				t.Errorf("tag %d access %d shares a registration", tag.ID(), access)
			}
			seen[l.Handle()] = true
			if m.Attributes() != access.attributes(tag) {
				t.Errorf("tag %d access %d got %+v", tag.ID(), access, m.Attributes())
			}
			l.Release()
		}
	}
	if s := r.Stats(); s.Regions != 8 || s.Bytes != 8<<20 {
		t.Errorf("stats %+v", s)
	}
	if err := r.InvalidateTag(second); err != nil {
		t.Fatal(err)
	}
	if s := r.Stats(); s.Regions != 4 || s.Invalidated != 4 {
		t.Errorf("stats after InvalidateTag %+v", s)
	}
	if err := r.nic.DestroyPtag(second); err != nil {
		t.Errorf("the tag is still in use: %v", err)
	}
	if _, err := r.Acquire(r.buf(0, 0, 1), second, 0); !errors.Is(err, via.ErrInvalidPtag) {
		t.Errorf("Acquire with a dead tag: %v", err)
	}
}

func TestReleaseTwice(t *testing.T) {
	r := newRig(t, 1, Config{})
	var none Lease
	none.Release()
	l := r.acquire(t, 0)
	kept := l
	l.Release()
	l.Release()
	if s := r.region(0).state.Load(); s != stateRetained {
		t.Fatalf("state %#x after releasing one lease twice", s)
	}
	func() {
		defer func() {
			if recover() == nil {
				t.Error("releasing a copy does not panic")
			}
		}()
		kept.Release()
	}()
	if s := r.region(0).state.Load(); s != stateRetained {
		t.Fatalf("state %#x after the panic", s)
	}
}

func TestBudgetIsHard(t *testing.T) {
	for _, policy := range []Policy{PolicyRistretto, PolicyClock} {
		t.Run(string(policy), func(t *testing.T) {
			r := newRig(t, 16, Config{MaxBytes: 4 << 20, Policy: policy})
			r.o.most = 4
			var leases []Lease
			for g := range 4 {
				leases = append(leases, r.acquire(t, g))
			}
			if _, err := r.Acquire(r.buf(4, 0, 1), r.tag, RemoteRead); err != ErrBudget {
				t.Fatalf("fifth registration: %v", err)
			}
			again := r.acquire(t, 3) // p hit needs no budget
			again.Release()
			leases[1].Release()
			l := r.acquire(t, 4)
			l.Release()
			for i := range leases {
				leases[i].Release()
			}
			for g := range 16 {
				l := r.acquire(t, g)
				l.Release()
			}
			if s := r.Stats(); s.PeakRegions != 4 || s.OverBudget != 1 || s.MaxBytes != 4<<20 {
				t.Errorf("stats %+v", s)
			}
		})
	}
}

// Room is made of what is idle: what is leased stays as it is.
func TestSweepSkipsLeasedRegions(t *testing.T) {
	_, cfg := newScripted(Config{MaxRegions: 3})
	r := newRig(t, 8, cfg)
	first, second := r.acquire(t, 0), r.acquire(t, 1)
	for g := 2; g < 8; g++ {
		l := r.acquire(t, g)
		l.Release()
		for i := range 2 {
			leased := r.region(i)
			leased.used.Store(false) // no reason to prefer another
			if s := leased.state.Load(); s != stateRetained|1 {
				t.Fatalf("granule %d, leased, has state %#x", i, s)
			}
		}
	}
	first.Release()
	second.Release()
}

func TestRegisterFailures(t *testing.T) {
	r := newRig(t, 8, Config{MaxRegions: 8})
	for g := range 5 {
		l := r.acquire(t, g)
		l.Release()
	}
	buf := r.buf(7, 0, 1)

	// One refusal for want of resources: a quarter of the idle goes, then it
	// works.
	r.o.failRegister(1, syscall.ENOMEM)
	l := must(r.Acquire(buf, r.tag, RemoteRead))(t)
	l.Release()
	if s := r.Stats(); s.Reclaimed != 2 || s.RegisterFailures != 1 || s.Regions != 4 {
		t.Errorf("after one failure: %+v", s)
	}

	// A second refusal is final, and keeps its cause.
	if err := r.Invalidate(buf); err != nil {
		t.Fatal(err)
	}
	r.o.failRegister(2, syscall.ENOMEM)
	if _, err := r.Acquire(buf, r.tag, RemoteRead); !errors.Is(err, ErrBudget) || !errors.Is(err, syscall.ENOMEM) {
		t.Errorf("after two failures: %v", err)
	}

	// An objection is returned at once.
	before := r.Stats().Regions
	r.o.failRegister(1, via.ErrInvalidParameter)
	if _, err := r.Acquire(buf, r.tag, RemoteRead); !errors.Is(err, via.ErrInvalidParameter) || errors.Is(err, ErrBudget) {
		t.Errorf("after an objection: %v", err)
	}
	if s := r.Stats(); s.Regions != before || s.RegisterFailures != 4 {
		t.Errorf("after an objection: %+v", s)
	}
	r.o.onRegister.Store(nil)
	l = must(r.Acquire(buf, r.tag, RemoteRead))(t)
	l.Release()
}

func TestInvalidate(t *testing.T) {
	r := newRig(t, 4, Config{})
	g := r.Granule()
	old := r.acquire(t, 1)
	handle := old.Handle()
	keep := r.acquire(t, 3)
	defer keep.Release()
	if err := r.Invalidate(r.buf(1, g-1, 2)); !errors.Is(err, ErrInUse) {
		t.Fatalf("Invalidate of leased memory: %v", err)
	}
	done := r.o.use(&old)
	done()
	old.Release()
	if err := r.Invalidate(r.buf(0, 0, 3*g)); err != nil {
		t.Fatalf("Invalidate of idle memory: %v", err)
	}
	if r.nic.LookupMemory(handle) != nil {
		t.Error("the old handle is still good")
	}
	fresh := r.acquire(t, 1)
	defer fresh.Release()
	if fresh.Handle() == handle {
		t.Error("the handle is used again")
	}
	for name, c := range map[string]struct {
		buf  []byte
		want error
	}{
		"nil":     {nil, nil},
		"empty":   {r.arena.Bytes()[:0], nil},
		"outside": {make([]byte, 1), ErrNotArena},
	} {
		if err := r.Invalidate(c.buf); err != c.want {
			t.Errorf("Invalidate of %s: %v", name, err)
		}
	}
}

func TestCloseWithLeases(t *testing.T) {
	r := newRig(t, 4, Config{})
	l := r.acquire(t, 0)
	idle := r.acquire(t, 1)
	idle.Release()
	buf := r.buf(0, 0, 1)
	for range 2 {
		if err := r.Close(); !errors.Is(err, ErrInUse) {
			t.Fatalf("Close with a lease out: %v", err)
		}
	}
	if live, _, _ := r.o.count(); live != 1 {
		t.Errorf("%d regions are live, want the leased one", live)
	}
	done := r.o.use(&l)
	done()
	if _, err := r.Acquire(buf, r.tag, RemoteRead); err != ErrClosed {
		t.Errorf("Acquire: %v", err)
	}
	if _, ok := r.AcquireCached(buf, r.tag, RemoteRead); ok {
		t.Error("AcquireCached leases from a closed cache")
	}
	if err := r.Invalidate(buf); err != ErrClosed {
		t.Errorf("Invalidate: %v", err)
	}
	if _, err := r.NewArena(1); !errors.Is(err, ErrClosed) {
		t.Errorf("NewArena: %v", err)
	}
	if _, err := r.arena.Alloc(1); err != ErrClosed {
		t.Errorf("Alloc: %v", err)
	}
	if r.Reach(buf) != 0 {
		t.Error("Reach into a closed cache")
	}
	l.Release()
	for range 2 {
		if err := r.Close(); err != nil {
			t.Fatalf("Close: %v", err)
		}
	}
}

func TestConfiguration(t *testing.T) {
	small := newOracle().limits
	small.MaxRegisterBytes = 8 << 20
	small.MaxRegisterRegions = 6
	cases := []struct {
		name    string
		cfg     Config
		limits  via.Limits
		granule int
		regions int // 0 means an error
	}{
		{"zero", Config{}, newOracle().limits, 1 << 20, 256},
		{"huge", Config{Granule: HugeGranule}, newOracle().limits, 2 << 20, 128},
		{"small nic", Config{}, small, 1 << 20, 3},
		{"bytes beyond the nic", Config{MaxBytes: 1 << 40, MaxRegions: 100}, small, 1 << 20, 6},
		{"fewer regions", Config{MaxBytes: 5 << 20, MaxRegions: 2}, small, 1 << 20, 2},
		{"fewer bytes", Config{MaxBytes: 2 << 20, MaxRegions: 4}, small, 1 << 20, 2},
		{"less than a granule", Config{MaxBytes: 1<<20 - 1}, small, 0, 0},
		{"odd granule", Config{Granule: 3 << 20}, small, 0, 0},
		{"negative bytes", Config{MaxBytes: -1}, small, 0, 0},
		{"negative regions", Config{MaxRegions: -1}, small, 0, 0},
		{"unknown policy", Config{Policy: "lru"}, small, 0, 0},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			o := newOracle()
			o.limits = c.limits
			nic := must(via.OpenNic(o, ""))(t)
			cache, err := New(nic, c.cfg)
			if c.regions == 0 {
				if !errors.Is(err, via.ErrInvalidParameter) {
					t.Fatalf("New: %v", err)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			if s := cache.Stats(); cache.Granule() != c.granule || s.MaxRegions != c.regions {
				t.Errorf("granule %d, %d regions; want %d, %d", cache.Granule(), s.MaxRegions, c.granule, c.regions)
			}
			if err := cache.Close(); err != nil {
				t.Error(err)
			}
		})
	}
}

func TestHitDoesNotAllocate(t *testing.T) {
	for _, policy := range []Policy{PolicyRistretto, PolicyClock} {
		r := newRig(t, 4, Config{Policy: policy})
		l := r.acquire(t, 0)
		l.Release()
		buf, heap := r.buf(0, 4096, 4096), make([]byte, 512)
		cases := map[string]func(){
			"hit": func() {
				l, err := r.Acquire(buf, r.tag, RemoteRead)
				if err != nil {
					t.Fatal(err)
				}
				l.Release()
			},
			"cached": func() {
				l, ok := r.AcquireCached(buf, r.tag, RemoteRead)
				if !ok {
					t.Fatal("no hit")
				}
				l.Release()
			},
			"outside": func() {
				if _, err := r.Acquire(heap, r.tag, RemoteRead); err != ErrNotArena {
					t.Fatal(err)
				}
			},
		}
		for name, do := range cases {
			if n := testing.AllocsPerRun(2000, do); n != 0 {
				t.Errorf("%s, %s: %v allocations", policy, name, n)
			}
		}
	}
}
