package regcache

import (
	"sync"
	"sync/atomic"
	"testing"

	"github.com/dgraph-io/ristretto/v2"
	"github.com/dgraph-io/ristretto/v2/z"
)

// These tests pin the behaviour of ristretto that the design relies on or
// guards against. If a new version breaks one, review ristretto.go. None
// depends on timing: where the library's goroutine matters, its Cost function
// stops it.

type contract struct {
	*ristretto.Cache[uint64, *int]
	mu     sync.Mutex
	exited map[*int]int // nil: OnExit without a value
	stop   atomic.Pointer[gate]
}

// newContract returns a cache of three items of cost 1, if Set passes 0.
func newContract(t *testing.T) *contract {
	c := &contract{exited: map[*int]int{}}
	cache, err := ristretto.NewCache(&ristretto.Config[uint64, *int]{
		NumCounters: 1024, MaxCost: 3, BufferItems: 64, IgnoreInternalCost: true,
		KeyToHash: func(key uint64) (uint64, uint64) { return mix(key), 0 },
		OnExit: func(v *int) {
			c.mu.Lock()
			defer c.mu.Unlock()
			c.exited[v]++
		},
		Cost: func(*int) int64 {
			if g := c.stop.Load(); g != nil {
				g.pass()
			}
			return 1
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	c.Cache = cache
	t.Cleanup(cache.Close)
	return c
}

func (c *contract) exits(v *int) int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.exited[v]
}

// hold stops the library's goroutine in the next Set.
func (c *contract) hold(t *testing.T) *gate {
	g := newGate()
	c.stop.Store(g)
	if !c.Set(1000, new(int), 0) {
		t.Fatal("Set is dropped")
	}
	<-g.reached
	c.stop.Store(nil)
	return g
}

func TestRistrettoSetIsNotVisibleAtOnce(t *testing.T) {
	c := newContract(t)
	g := c.hold(t)
	c.Set(1, new(int), 0)
	if _, ok := c.Get(1); ok {
		t.Error("a Set is visible before it is applied")
	}
	close(g.open)
	c.Wait()
	if _, ok := c.Get(1); !ok {
		t.Error("a Set is not visible after Wait")
	}
}

func TestRistrettoRefusesTheSecondOfTwoNewSets(t *testing.T) {
	c := newContract(t)
	g := c.hold(t)
	first, second := new(int), new(int)
	c.Set(1, first, 0)
	if !c.Set(1, second, 0) {
		t.Error("the second Set is refused at once")
	}
	close(g.open)
	c.Wait()
	if v, _ := c.Get(1); v != first {
		t.Error("the first value is replaced")
	}
	if c.exits(second) != 1 || c.exits(first) != 0 {
		t.Errorf("exits %d and %d, want 0 and 1", c.exits(first), c.exits(second))
	}
}

func TestRistrettoReplacesAnOldValueAtOnce(t *testing.T) {
	c := newContract(t)
	first, second := new(int), new(int)
	c.Set(1, first, 0)
	c.Wait()
	c.Set(1, second, 0)
	if v, _ := c.Get(1); v != second || c.exits(first) != 1 {
		t.Error("the old value stays")
	}
}

func TestRistrettoDropsSetsWithoutACallback(t *testing.T) {
	c := newContract(t)
	g := c.hold(t)
	v := new(int)
	key := uint64(1)
	for c.Set(key, v, 0) {
		if key++; key > 1<<20 {
			t.Fatal("no Set is ever dropped")
		}
	}
	if c.exits(v) != 0 {
		t.Error("OnExit for a dropped Set")
	}
	close(g.open)
	c.Wait()
	if exits, taken := uint64(c.exits(v)), key-1; exits > taken || exits+3 < taken {
		t.Errorf("%d exits of %d values taken, of which at most 3 stay", exits, taken)
	}
}

func TestRistrettoExitWithNilForAbsentKey(t *testing.T) {
	c := newContract(t)
	c.Del(1)
	c.Wait()
	if c.exits(nil) == 0 {
		t.Error("no OnExit(nil)")
	}
}

func TestRistrettoExitsOncePerValue(t *testing.T) {
	c := newContract(t)
	var all []*int
	for i := range 500 {
		v := new(int)
		*v = i
		key := uint64(i % 40)
		c.Get(key)
		if c.Set(key, v, 0) {
			all = append(all, v)
		}
		if i%7 == 0 {
			c.Del(uint64(i * 3 % 40))
		}
	}
	c.Close()
	for _, v := range all {
		if n := c.exits(v); n != 1 {
			t.Fatalf("value %d exits %d times", *v, n)
		}
	}
}

func TestRistrettoRefusesCostBeyondCapacity(t *testing.T) {
	c := newContract(t)
	v := new(int)
	if !c.Set(1, v, 4) {
		t.Error("refused at once")
	}
	c.Wait()
	if c.exits(v) != 1 {
		t.Error("it stays")
	}
}

func TestRistrettoClosedIgnoresSets(t *testing.T) {
	c := newContract(t)
	c.Close()
	if c.Set(1, new(int), 0) {
		t.Error("Set is accepted")
	}
	c.Close()
}

// The reason for a custom hash: numbers are their own hash by default.
func TestRistrettoDoesNotHashNumbers(t *testing.T) {
	if h, conflict := z.KeyToHash(uint64(0x7f0000100000)); h != 0x7f0000100000 || conflict != 0 {
		t.Errorf("hash %#x, %#x", h, conflict)
	}
}

// The policy evicts every region that it accepted, and none twice at its end: a
// lost OnExit leaks a registration.
func TestRistrettoPolicyEvictsEveryAcceptedRegion(t *testing.T) {
	var mu sync.Mutex
	given := map[*region]int{}
	a := must(newRistrettoPolicy(4, DefaultGranule, func(r *region) {
		mu.Lock()
		defer mu.Unlock()
		given[r]++
	}))(t)
	arena := &Arena{}
	var taken []*region
	for i := range 2000 {
		r := &region{arena: arena, index: i, bytes: DefaultGranule}
		if a.offer(r) {
			taken = append(taken, r)
		}
		if i%5 == 0 {
			a.cache.Wait()
		}
	}
	mu.Lock()
	before := len(given)
	mu.Unlock()
	if before == 0 {
		t.Error("no eviction although the offers exceed the room a hundred times")
	}
	a.close()
	for _, r := range taken {
		if given[r] != 1 {
			t.Fatalf("region %d is evicted %d times", r.index, given[r])
		}
	}
}

// The policy distinguishes granules, or it would evict one for another while
// both fit.
func TestRistrettoPolicyKeysGranulesApart(t *testing.T) {
	const room = 600
	var given atomic.Int32
	a := must(newRistrettoPolicy(room, DefaultGranule, func(*region) { given.Add(1) }))(t)
	defer a.close()
	arena := &Arena{}
	for i := range room {
		if !a.offer(&region{arena: arena, index: i, bytes: DefaultGranule}) {
			t.Fatalf("region %d is refused", i)
		}
		a.cache.Wait()
	}
	if n := given.Load(); n != 0 {
		t.Errorf("%d of %d regions are evicted although all fit", n, room)
	}
}

// An offer during close does not reach the library.
func TestRistrettoPolicyOfferDuringClose(t *testing.T) {
	a := must(newRistrettoPolicy(4, DefaultGranule, func(*region) {}))(t)
	a.mu.Lock() // as close does
	offered := make(chan bool)
	go func() { offered <- a.offer(&region{arena: &Arena{}, bytes: DefaultGranule}) }()
	a.closed = true
	a.mu.Unlock()
	if <-offered {
		t.Error("the offer went through")
	}
	a.cache.Close()
}

// touch and offer concurrent with close: the library itself would panic.
func TestRistrettoPolicyCloseUnderLoad(t *testing.T) {
	for range 100 {
		a := must(newRistrettoPolicy(4, DefaultGranule, func(*region) {}))(t)
		arena := &Arena{}
		var wg sync.WaitGroup
		for w := range 2 {
			wg.Go(func() {
				for i := range 200 {
					r := &region{arena: arena, index: w*1000 + i%20, bytes: DefaultGranule}
					a.touch(r)
					a.offer(r)
					if i%10 == 0 {
						a.forget(r)
					}
				}
			})
		}
		wg.Go(func() { a.close(); a.close() })
		wg.Wait()
		if a.offer(&region{arena: arena, bytes: DefaultGranule}) {
			t.Fatal("a closed policy accepts")
		}
	}
}
