package regcache

import (
	"errors"
	"syscall"
	"testing"

	"pgregory.net/rapid"

	"github.com/viablk/viablk/via"
)

// registrationKey identifies a registration in the model.
type registrationKey struct {
	granule int
	tag     via.Ptag
	access  Access
}

// machine runs a cache beside a model of the leases. Further registrations are
// the policy's choice; the model checks that they are legal.
type machine struct {
	*rig
	script *scripted // nil with a real policy
	tags   []via.Ptag
	leases map[registrationKey][]Lease
	barred map[*region][]Lease         // of revoked regions
	known  map[registrationKey]*region // registered after the last step
	closed bool
}

const modelGranules = 6

// inspect returns the registrations found in the index.
func (m *machine) inspect(t *rapid.T) map[registrationKey]*region {
	found := map[registrationKey]*region{}
	for g := range m.arena.granules {
		for r := m.arena.granules[g].head.Load(); r != nil; r = r.next.Load() {
			if r.state.Load()&stateRevoked != 0 {
				continue
			}
			k := registrationKey{g, r.tag, r.access}
			if found[k] != nil {
				t.Fatalf("%+v is registered twice", k)
			}
			found[k] = r
		}
	}
	return found
}

func (m *machine) drawKey(t *rapid.T) registrationKey {
	return registrationKey{
		rapid.IntRange(0, modelGranules-1).Draw(t, "granule"),
		rapid.SampledFrom(m.tags).Draw(t, "tag"),
		rapid.SampledFrom([]Access{0, RemoteRead, RemoteWrite}).Draw(t, "access"),
	}
}

func (m *machine) acquire(t *rapid.T) {
	k := m.drawKey(t)
	off := rapid.IntRange(0, m.Granule()-1).Draw(t, "off")
	n := rapid.IntRange(0, m.Granule()+1).Draw(t, "n")
	at := k.granule*m.Granule() + off
	buf := m.arena.Bytes()[at:min(at+n, len(m.arena.Bytes()))]
	fault := rapid.SampledFrom([]error{nil, nil, nil, nil, syscall.ENOMEM, via.ErrInvalidParameter}).Draw(t, "fault")
	failures := rapid.IntRange(1, 2).Draw(t, "failures")
	if fault != nil {
		m.o.failRegister(failures, fault)
		defer m.o.onRegister.Store(nil)
	}
	l, err := m.Acquire(buf, k.tag, k.access)
	if want := m.expect(k, off, len(buf), fault, failures, err); !errors.Is(err, want) || want == nil && err != nil {
		t.Fatalf("Acquire %+v at %d of %d bytes: %v, want %v", k, off, len(buf), err, want)
	}
	if err == nil {
		m.leases[k] = append(m.leases[k], l)
		m.o.use(&l)()
	}
}

// expect returns the error that an Acquire must give.
func (m *machine) expect(k registrationKey, off, n int, fault error, failures int, got error) error {
	idle := len(m.known) - len(m.leases)
	held := len(m.leases) + len(m.barred)
	switch {
	case m.closed:
		return ErrClosed
	case n == 0:
		return ErrNotArena
	case off+n > m.Granule():
		return ErrSpans
	case m.known[k] != nil && (m.script != nil || len(m.leases[k]) > 0):
		return nil
	case m.known[k] != nil && got == nil:
		return nil // p real policy may have given it up in the meantime, or not
	case held == m.budget:
		return ErrBudget
	case fault == nil:
		return nil
	case fault == syscall.ENOMEM && failures == 1 && m.script == nil:
		return got // depends on what the policy has left idle
	case fault == syscall.ENOMEM && failures == 1 && idle > 0 && !(idle == 1 && len(m.known)+len(m.barred) == m.budget):
		return nil // making room has made the difference
	case fault == syscall.ENOMEM:
		return ErrBudget
	default:
		return fault
	}
}

func (m *machine) release(t *rapid.T) {
	var keys []registrationKey
	for g := range modelGranules {
		for _, tag := range m.tags {
			for access := range RemoteWrite + 1 {
				if k := (registrationKey{g, tag, access}); len(m.leases[k]) > 0 {
					keys = append(keys, k)
				}
			}
		}
	}
	if len(keys) == 0 {
		t.Skip("nothing is leased")
	}
	m.releaseKey(rapid.SampledFrom(keys).Draw(t, "lease"))
}

func (m *machine) releaseKey(k registrationKey) {
	have := m.leases[k]
	m.o.use(&have[0])()
	have[0].Release()
	have[0].Release()
	if m.leases[k] = have[1:]; len(have) == 1 {
		delete(m.leases, k)
	}
}

func (m *machine) invalidate(t *rapid.T) {
	from := rapid.IntRange(0, modelGranules-1).Draw(t, "from")
	to := rapid.IntRange(from, modelGranules-1).Draw(t, "to")
	err := m.Invalidate(m.arena.Bytes()[from*m.Granule()+100 : to*m.Granule()+200])
	m.checkWithdrawn(t, err, func(k registrationKey) bool { return k.granule >= from && k.granule <= to })
}

func (m *machine) invalidateTag(t *rapid.T) {
	tag := rapid.SampledFrom(m.tags).Draw(t, "tag")
	m.checkWithdrawn(t, m.InvalidateTag(tag), func(k registrationKey) bool { return k.tag == tag })
}

// revoke revokes a tag and bars its leases.
func (m *machine) revoke(t *rapid.T) {
	tag := rapid.SampledFrom(m.tags).Draw(t, "tag")
	if err := m.Revoke(tag); err != nil {
		t.Fatalf("Revoke: %v", err)
	}
	for k, leases := range m.leases {
		if k.tag != tag {
			continue
		}
		r := leases[0].region
		if a := r.memory.Attributes(); a.Ptag == tag || a.EnableRdmaRead || a.EnableRdmaWrite {
			t.Fatalf("%+v is revoked and has %+v", k, a)
		}
		m.barred[r] = append(m.barred[r], leases...)
		delete(m.leases, k)
	}
	for k := range m.inspect(t) {
		if k.tag == tag && m.script != nil {
			t.Fatalf("%+v can be found", k)
		}
	}
}

// releaseBarred releases a lease of a revoked region.
func (m *machine) releaseBarred(t *rapid.T) {
	for r, leases := range m.barred {
		m.o.use(&leases[0])()
		leases[0].Release()
		if m.barred[r] = leases[1:]; len(leases) == 1 {
			delete(m.barred, r)
		}
		return
	}
	t.Skip("nothing is barred")
}

// checkWithdrawn checks that of the matching keys only leased ones are
// registered, not retained, and that err is ErrInUse exactly then.
func (m *machine) checkWithdrawn(t *rapid.T, err error, match func(registrationKey) bool) {
	if m.closed {
		return
	}
	var want error
	for r := range m.barred {
		if match(registrationKey{r.index, r.tag, r.access}) {
			want = ErrInUse
		}
	}
	for k, r := range m.inspect(t) {
		if !match(k) {
			continue
		}
		if len(m.leases[k]) == 0 {
			t.Fatalf("%+v is still registered", k)
		}
		if r.state.Load()&stateRetained != 0 {
			t.Fatalf("%+v is still retained", k)
		}
		want = ErrInUse
	}
	if !errors.Is(err, want) || want == nil && err != nil {
		t.Fatalf("error %v, want %v", err, want)
	}
}

// evict lets the scripted policy evict any region, live or ended.
func (m *machine) evict(t *rapid.T) {
	if m.script == nil {
		t.Skip("the policy has its own mind")
	}
	if r := m.known[m.drawKey(t)]; r != nil {
		m.script.evict(r)
		if rapid.Bool().Draw(t, "twice") {
			m.script.evict(r)
		}
	}
}

func (m *machine) close(t *rapid.T) {
	if rapid.IntRange(0, 9).Draw(t, "dice") != 0 {
		t.Skip("not yet")
	}
	err := m.Close()
	m.closed = true
	if held := len(m.leases)+len(m.barred) > 0; held != errors.Is(err, ErrInUse) || !held && err != nil {
		t.Fatalf("Close with %d registrations leased: %v", len(m.leases), err)
	}
}

// check verifies the invariants after every step.
func (m *machine) check(t *rapid.T) {
	if m.script != nil {
		m.waitForReaper(t)
	}
	found := m.inspect(t)
	for k, leases := range m.leases {
		r := found[k]
		if r == nil {
			t.Fatalf("%+v is leased and not registered", k)
		}
		if s := r.state.Load(); s&stateLeases != uint64(len(leases)) || s&stateDead != 0 {
			t.Fatalf("%+v has state %#x and %d leases", k, s, len(leases))
		}
		if m.closed && r.state.Load()&stateRetained != 0 {
			t.Fatalf("%+v is retained in a closed cache", k)
		}
	}
	s := m.Stats()
	if s.Regions > s.MaxRegions || s.PeakRegions > s.MaxRegions {
		t.Fatalf("budget exceeded: %+v", s)
	}
	if m.script != nil {
		live, registered, deregistered := m.o.count()
		if live != len(found)+len(m.barred) || registered-deregistered != live || s.Regions != live ||
			s.Registrations != uint64(registered) || s.Deregistrations != uint64(deregistered) {
			t.Fatalf("books: %d live, %d indexed, %d - %d, %+v", live, len(found), registered, deregistered, s)
		}
		for k, r := range found {
			if len(m.leases[k]) == 0 && r.state.Load() != stateRetained {
				t.Fatalf("%+v is idle with state %#x", k, r.state.Load())
			}
		}
	}
	m.known = found
}

func testModel(t *testing.T, cfg Config, script bool) {
	rapid.Check(t, func(t *rapid.T) {
		m := &machine{
			leases: map[registrationKey][]Lease{}, known: map[registrationKey]*region{},
			barred: map[*region][]Lease{},
		}
		cfg := cfg
		cfg.MaxRegions = rapid.IntRange(1, 5).Draw(t, "budget")
		if script {
			m.script, cfg = newScripted(cfg)
			m.script.onOffer = func(*region) bool { return rapid.IntRange(0, 3).Draw(t, "offer") != 0 }
		}
		m.rig = newRigNoCleanup(t, modelGranules, cfg)
		// rapid may discard a sequence in its middle.
		defer func() { m.releaseAll(); _ = m.Close() }()
		m.tags = []via.Ptag{m.tag}
		second, err := m.nic.CreatePtag()
		if err != nil {
			t.Fatal(err)
		}
		m.tags = append(m.tags, second)
		t.Repeat(map[string]func(*rapid.T){
			"acquire": m.acquire, "release": m.release, "evict": m.evict,
			"invalidate": m.invalidate, "invalidateTag": m.invalidateTag,
			"revoke": m.revoke, "releaseBarred": m.releaseBarred,
			"close": m.close, "": m.check,
		})
		m.releaseAll()
		m.rig.finish(t)
	})
}

// releaseAll releases every lease.
func (m *machine) releaseAll() {
	for k := range m.leases {
		for len(m.leases[k]) > 0 {
			m.releaseKey(k)
		}
	}
	for r, leases := range m.barred {
		for i := range leases {
			leases[i].Release()
		}
		delete(m.barred, r)
	}
}

func TestModelWithScriptedPolicy(t *testing.T) { testModel(t, Config{}, true) }

func TestModelWithInlineDeregister(t *testing.T) {
	testModel(t, Config{InlineDeregister: true}, true)
}

func TestModelWithClock(t *testing.T) { testModel(t, Config{Policy: PolicyClock}, false) }

func TestModelWithRistretto(t *testing.T) { testModel(t, Config{Policy: PolicyRistretto}, false) }
