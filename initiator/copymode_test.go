package initiator_test

import (
	"bytes"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"syscall"
	"testing"

	"github.com/viablk/viablk/initiator"
	"github.com/viablk/viablk/internal/block"
	"github.com/viablk/viablk/regcache"
	"github.com/viablk/viablk/target"
	"github.com/viablk/viablk/via"
	"github.com/viablk/viablk/via/shm"
)

// TestCopyModes reads back the written data in every copy mode, memory, offset
// and length, with and without data digests.
func TestCopyModes(t *testing.T) {
	const size = 32 << 20
	operations := 400
	if testing.Short() {
		operations = 100
	}
	for i, mode := range append(regcache.CopyModes(), regcache.CopyModes()...) {
		digest := i >= len(regcache.CopyModes())
		t.Run(fmt.Sprintf("%s, digest %v", mode, digest), func(t *testing.T) {
			r := newRemote(t, target.Config{}, "memory:32MiB")
			d := r.dial(t, "a", func(c *initiator.Config) { c.CopyMode, c.RegisterMax, c.Digest = mode, 8<<20, digest })
			model := make([]byte, size)
			arena, err := d.Alloc(12 << 20)
			must(t, err)
			defer func() { must(t, d.Free(arena)) }()
			heap := make([]byte, 12<<20)
			rng := rand.New(rand.NewPCG(1, uint64(len(mode))))
			lengths := []int{1, 512, 4096, 4097, 64 << 10, 300000, 1 << 20, 3<<20 + 5, 9 << 20}
			for i := range operations {
				mem := arena
				if i%4 == 3 {
					mem = heap
				}
				n := lengths[rng.IntN(len(lengths))]
				at, off := rng.IntN(len(mem)-n), rng.IntN(size-n)
				buf := mem[at : at+n]
				if i%2 == 0 {
					pattern(buf, byte(i))
					copy(model[off:], buf)
					if k, err := d.WriteAt(buf, int64(off)); k != n || err != nil {
						t.Fatalf("write %d bytes: %d, %v", n, k, err)
					}
					continue
				}
				clear(buf)
				if k, err := d.ReadAt(buf, int64(off)); k != n || err != nil {
					t.Fatalf("read %d bytes: %d, %v", n, k, err)
				}
				if !bytes.Equal(buf, model[off:off+n]) {
					t.Fatalf("operation %d: [%d, +%d) reads as something else", i, off, n)
				}
			}
			checkChoice(t, d, mode)
			if n := d.Status().Stats.DigestErrors + r.server.Status().Stats.DigestErrors; n != 0 {
				t.Errorf("%d digests do not fit", n)
			}
		})
	}
}

// checkChoice checks that the counters fit the mode.
func checkChoice(t *testing.T, d *initiator.Device, mode regcache.CopyMode) {
	t.Helper()
	waitFor(t, "the queues' counters", func() bool { return d.Status().Stats.Choice.BytesCopied > 0 })
	st := d.Status()
	c := st.Stats.Choice
	if st.Copy.Mode != mode || (c.BytesZeroCopied > 0) != (mode != regcache.CopyBounce) {
		t.Errorf("%+v, %+v", st.Copy, c)
	}
	switch mode {
	case regcache.CopyBounce:
		if st.Copy.Cache != nil || st.Copy.Calibration != nil {
			t.Errorf("%+v", st.Copy)
		}
	default:
		if st.Copy.Calibration == nil || st.Copy.Calibration.CopyCold.At(1<<20) <= 0 {
			t.Errorf("%+v", st.Copy)
		}
	}
	if s := st.Copy.Cache; s != nil && (s.PeakRegions > 8 || s.MaxRegions != 8 || s.Registrations == 0) {
		t.Errorf("%+v", *s)
	}
}

// TestOneSlotAndManyClients drives a queue with one bounce buffer from many
// callers: every caller completes.
func TestOneSlotAndManyClients(t *testing.T) {
	r := newRemote(t, target.Config{}, "memory:16MiB")
	d := r.dial(t, "a", func(c *initiator.Config) { c.PoolBytes, c.CopyMode = 4096, regcache.CopyBounce })
	if n := d.Info().MaximumPayload; n != 4096 {
		t.Errorf("longest payload %d", n)
	}
	var wg sync.WaitGroup
	for w := range 16 {
		wg.Go(func() {
			out, in := make([]byte, 50000), make([]byte, 50000)
			for i := range 12 {
				pattern(out, byte(w*31+i))
				off := int64(w) << 16
				if _, err := d.WriteAt(out, off); err != nil {
					t.Error(err)
					return
				}
				if _, err := d.ReadAt(in, off); err != nil || !bytes.Equal(in, out) {
					t.Errorf("client %d: %v, equal %v", w, err, bytes.Equal(in, out))
					return
				}
			}
		})
	}
	wg.Wait() // one of them drives the queue for all
}

// waited checks that requests did wait for bounce memory, or the test proves
// nothing.
func waited(t *testing.T, d *initiator.Device) {
	t.Helper()
	waitFor(t, "requests that waited for memory", func() bool { return d.Status().Stats.WaitsForMemory > 0 })
}

// Requests that wait for bounce memory are served in the order in which they
// came: long ones do not starve behind short ones that would fit, nor overtake
// any.
func TestRequestsWaitInOrder(t *testing.T) {
	r := newRemote(t, target.Config{}, "memory:16MiB")
	d := r.dial(t, "a", func(c *initiator.Config) {
		c.PoolBytes, c.CopyMode = 16<<10, regcache.CopyBounce
	})
	q, err := d.NewQueue(32)
	must(t, err)
	heap := make([]byte, 1<<20)
	lengths := []int{16 << 10, 50000, 8 << 10, 16 << 10, 9000} // each needs more than half of the pool, or all
	var requests [32]block.Request
	for round := range 20 {
		op := []block.Op{block.Write, block.Read}[round%2]
		for i := range requests {
			n := lengths[i%len(lengths)]
			requests[i] = block.Request{Op: op, Offset: int64(i) << 16, Length: int64(n), Data: heap[:n]}
			if op == block.Write {
				requests[i].Data = heap[i<<14%(1<<19):][:n]
			}
			if !q.Submit(&requests[i]) {
				t.Fatal("the queue is full")
			}
		}
		q.Kick()
		next := 0
		var done [8]*block.Request
		waitFor(t, "requests", func() bool {
			for _, x := range done[:q.Reap(done[:])] {
				if x.Err != nil || x != &requests[next] {
					t.Fatalf("round %d: request %d comes instead of %d: %v", round, (x.Offset >> 16), next, x.Err)
				}
				next++
			}
			return next == len(requests)
		})
	}
	must(t, q.Close())
	waited(t, d)
}

// TestManyRequestsAndOneSlot has many requests in flight on one queue, in
// memory of the caller's, and bounce memory for one chunk.
func TestManyRequestsAndOneSlot(t *testing.T) {
	for _, mode := range regcache.CopyModes() {
		r := newRemote(t, target.Config{Depth: 4}, "memory:16MiB")
		d := r.dial(t, "a", func(c *initiator.Config) {
			c.PoolBytes, c.CopyMode, c.RegisterMax = 64<<10, mode, 1<<20
		})
		q, err := d.NewQueue(32)
		must(t, err)
		area, err := d.Alloc(8 << 20)
		must(t, err)
		var requests [32]block.Request
		for round := range 4 {
			op := []block.Op{block.Write, block.Read}[round%2]
			for i := range requests {
				buf := area[i<<18 : i<<18+200000]
				if op == block.Write {
					pattern(buf, byte(i+round))
				} else {
					clear(buf)
				}
				requests[i] = block.Request{Op: op, Offset: int64(i) << 18, Length: int64(len(buf)), Data: buf}
				if !q.Submit(&requests[i]) {
					t.Fatal("the queue is full")
				}
			}
			q.Kick()
			reapAll(t, q, len(requests))
			for i := range requests {
				want := make([]byte, 200000)
				pattern(want, byte(i+round&^1))
				if requests[i].Err != nil || !bytes.Equal(requests[i].Data, want) {
					t.Fatalf("%s, round %d, request %d: %v", mode, round, i, requests[i].Err)
				}
			}
		}
		must(t, q.Close())
		if mode != regcache.CopyZero {
			waited(t, d)
		}
		must(t, d.Free(area))
	}
}

// reapAll takes n finished requests.
func reapAll(t *testing.T, q block.Queue, n int) {
	t.Helper()
	var done [8]*block.Request
	waitFor(t, "requests", func() bool {
		n -= q.Reap(done[:])
		return n <= 0
	})
}

// In steady state nothing is registered, on either side.
func TestSteadyStateRegistersNothing(t *testing.T) {
	const regions = 4 // of 1 MiB, that are used
	for _, mode := range regcache.CopyModes() {
		r := newRemote(t, target.Config{}, "memory:16MiB")
		d := r.dial(t, "a", func(c *initiator.Config) { c.CopyMode = mode })
		area, err := d.Alloc(4 << 20)
		must(t, err)
		use := func(n int) {
			for i := range n {
				buf := area[i%4<<20:][: 64<<10 : 64<<10]
				if _, err := d.WriteAt(buf, int64(i%16)<<16); err != nil {
					t.Fatal(err)
				}
				if _, err := d.ReadAt(buf, int64(i%16)<<16); err != nil {
					t.Fatal(err)
				}
			}
		}
		// The policy registers memory once the copies have cost as much, and both
		// are measured: when is not known, but each region is registered once.
		registrations := func() uint64 { return d.Status().Registrations + r.server.Status().Registrations }
		use(400)
		first := registrations()
		for steady := false; !steady; {
			before := registrations()
			use(1000)
			steady = registrations() == before
			if n := registrations() - first; n > regions {
				t.Fatalf("%s: %d registrations of %d regions", mode, n, regions)
			}
		}
		must(t, d.Free(area))
	}
}

func TestAlloc(t *testing.T) {
	r := newRemote(t, target.Config{}, "memory:16MiB")
	d := r.dial(t, "a", nil)
	for _, n := range []int{-1, 0} {
		if _, err := d.Alloc(n); !errors.Is(err, via.ErrInvalidParameter) {
			t.Errorf("Alloc(%d): %v", n, err)
		}
	}
	if _, err := d.Alloc(1 << 60); err == nil {
		t.Error("Alloc of more than there is")
	}
	var all [][]byte
	for _, n := range []int{1, 4096, 100000, 200 << 20, 300 << 20} { // the last two need arenas of their own
		b, err := d.Alloc(n)
		must(t, err)
		if len(b) != n || cap(b) != n {
			t.Errorf("Alloc(%d): %d, %d", n, len(b), cap(b))
		}
		b[0], b[n-1] = 1, 2
		all = append(all, b)
	}
	if err := d.Free(make([]byte, 100)); !errors.Is(err, regcache.ErrNotAllocated) {
		t.Errorf("Free of memory of the heap: %v", err)
	}
	if err := d.Free(nil); !errors.Is(err, regcache.ErrNotAllocated) {
		t.Errorf("Free of nothing: %v", err)
	}
	for _, b := range all[1:] {
		must(t, d.Free(b))
		if err := d.Free(b); !errors.Is(err, regcache.ErrNotAllocated) {
			t.Errorf("second Free: %v", err)
		}
	}
	if err := d.Close(); !errors.Is(err, regcache.ErrInUse) {
		t.Errorf("Close with a buffer out: %v", err)
	}
	all[0][0]++ // it is still there
	if _, err := d.Alloc(1); err == nil {
		t.Error("Alloc of a closed device")
	}
	must(t, d.Free(all[0]))
	must(t, d.Close())
	must(t, d.Close())
}

// Budgets that register nothing, or that cannot be.
func TestRegisterMax(t *testing.T) {
	r := newRemote(t, target.Config{}, "memory:16MiB")
	d := r.dial(t, "a", func(c *initiator.Config) { c.RegisterMax = -1 })
	b, err := d.Alloc(1 << 20)
	must(t, err)
	_, err = d.WriteAt(b, 0)
	must(t, err)
	must(t, d.Free(b))
	if st := d.Status(); st.Copy.Cache != nil {
		t.Errorf("%+v", st.Copy)
	}
	must(t, d.Close())
	for what, change := range map[string]func(*initiator.Config){
		"less than a granule": func(c *initiator.Config) { c.RegisterMax = 1<<20 - 1 },
		"a strange mode":      func(c *initiator.Config) { c.CopyMode = "fast" },
		"no bounce memory":    func(c *initiator.Config) { c.PoolBytes = 100 },
		"tiny chunks":         func(c *initiator.Config) { c.Chunk = 1 },
	} {
		cfg := initiator.Config{NIC: r.nic, Host: r.host, Export: "a"}
		change(&cfg)
		if d, err := initiator.Dial(t.Context(), cfg); err == nil {
			t.Errorf("%s is accepted", what)
			must(t, d.Close())
		}
	}
}

// stingy is a provider that registers for local use only, and n regions for
// peers: RLIMIT_MEMLOCK of a process that is not root.
type stingy struct {
	via.Provider
	left *int
}

func (s stingy) Open(device string) (via.Adapter, error) {
	a, err := s.Provider.Open(device)
	return &stingyAdapter{a, s.left}, err
}

type stingyAdapter struct {
	via.Adapter
	left *int
}

func (a *stingyAdapter) Register(m *via.Memory) error {
	if len(m.Bytes()) == regcache.DefaultGranule && m.RemoteRead() {
		if *a.left == 0 {
			return syscall.ENOMEM
		}
		*a.left--
	}
	return a.Adapter.Register(m)
}

// No request fails because memory cannot be registered.
func TestMemoryThatCannotBeRegistered(t *testing.T) {
	for _, left := range []int{0, 1, 20} {
		for _, mode := range regcache.CopyModes() {
			r := newRemote(t, target.Config{}, "memory:16MiB")
			nic, err := via.OpenNic(stingy{shm.New(shm.Options{}), &left}, "")
			must(t, err)
			d := r.dial(t, "a", func(c *initiator.Config) { c.NIC, c.CopyMode = nic, mode })
			area, err := d.Alloc(8 << 20)
			must(t, err)
			for i := range 200 {
				buf := area[i%8<<20:][:100000:100000]
				roundTrip(t, d, buf, i)
			}
			must(t, d.Free(area))
			must(t, d.Close())
			must(t, nic.Close())
		}
	}
}
