package target_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"

	"github.com/viablk/viablk/internal/block"
	"github.com/viablk/viablk/internal/wire"
	"github.com/viablk/viablk/regcache"
	"github.com/viablk/viablk/target"
	"github.com/viablk/viablk/via"
	"github.com/viablk/viablk/via/shm"
)

// limitedProvider is a provider that measures what is registered outside of
// arenas, which is disks, and refuses by configuration.
type limitedProvider struct {
	via.Provider
	refuse func(*via.Memory) error // nil refuses nothing
	limits func(*via.Limits)       // nil changes nothing

	disks, peak atomic.Int64 // bytes
}

func (s *limitedProvider) Open(device string) (via.Adapter, error) {
	a, err := s.Provider.Open(device)
	return &limitedAdapter{a, s}, err
}

// limitedNIC returns a NIC of such a provider over shared memory.
func limitedNIC(t testing.TB, s *limitedProvider) *via.NIC {
	t.Helper()
	s.Provider = shm.New(shm.Options{})
	nic, err := via.OpenNic(s, "")
	must(t, err)
	nic.ErrorCallback(func(via.AsyncError) {})
	return nic
}

type limitedAdapter struct {
	via.Adapter
	by *limitedProvider
}

func (a *limitedAdapter) Limits() via.Limits {
	l := a.Adapter.Limits()
	if a.by.limits != nil {
		a.by.limits(&l)
	}
	return l
}

func (a *limitedAdapter) Register(m *via.Memory) error {
	if a.by.refuse != nil {
		if err := a.by.refuse(m); err != nil {
			return err
		}
	}
	err := a.Adapter.Register(m)
	if n := int64(len(m.Bytes())); err == nil && m.Arena() == nil {
		now := a.by.disks.Add(n)
		for peak := a.by.peak.Load(); now > peak && !a.by.peak.CompareAndSwap(peak, now); peak = a.by.peak.Load() {
		}
	}
	return err
}

func (a *limitedAdapter) Deregister(m *via.Memory) error {
	n, disk := int64(len(m.Bytes())), m.Arena() == nil
	err := a.Adapter.Deregister(m)
	if disk {
		a.by.disks.Add(-n)
	}
	return err
}

// One budget for the process: however many connections read however many mapped
// files, no more is registered than the server may.
func TestOneBudgetForAllConnections(t *testing.T) {
	const budget, sessions, connections = 6 << 20, 4, 3
	meter := new(limitedProvider)
	var exports []target.Export
	contents := make([][]byte, sessions)
	for i := range sessions {
		e, _, content := mappedDisk(t, fmt.Sprint("disk", i))
		exports, contents[i] = append(exports, e), content
	}
	r := newRig(t, target.Config{NIC: limitedNIC(t, meter), CopyMode: regcache.CopyZero, RegisterMax: budget}, exports...)
	var readers []*reader
	for i := range sessions {
		first := r.reader(t, fmt.Sprint("disk", i))
		readers = append(readers, first)
		for k := 2; k <= connections; k++ {
			s := *first.s
			s.io = r.join(t, first.s, uint16(k))
			m, err := s.io.expose(1<<20, readWrite)
			must(t, err)
			readers = append(readers, &reader{&s, m})
		}
	}
	var wg sync.WaitGroup
	for k, p := range readers {
		wg.Go(func() {
			content, rng := contents[k/connections], rand.New(rand.NewPCG(7, uint64(k)))
			for range 100 {
				n := 1 + rng.IntN(256<<10)
				off := rng.IntN(mappedSize - n)
				got, err := p.read(uint64(off), n, wire.StatusOK)
				if err != nil || !bytes.Equal(got, content[off:off+n]) {
					t.Errorf("reader %d: [%d, +%d): %v, or other data", k, off, n, err)
					return
				}
			}
		})
	}
	wg.Wait()
	if peak := meter.peak.Load(); peak == 0 || peak > budget {
		t.Errorf("%d bytes of mapped files were registered, the budget is %d", peak, budget)
	}
	if c := r.server.Status().Copy; c == nil || c.Cache == nil || c.Cache.MaxBytes != budget || c.Cache.PeakRegions > 3 || c.Cache.Evicted+c.Cache.Reclaimed == 0 {
		t.Errorf("%+v", c)
	}
	// The registrations of a connection end with it.
	for _, p := range readers {
		p.s.io.c.Disconnect()
		p.s.control.c.Disconnect()
	}
	r.reaches(state{opens: "disk00 disk10 disk20 disk30 "})
	if n := meter.disks.Load(); n != 0 {
		t.Errorf("%d bytes are registered without a connection", n)
	}
}

// Registrations of mapped files end with the last Serve; the next one makes its
// own.
func TestMappingsOfTheNextServe(t *testing.T) {
	meter := new(limitedProvider)
	e, _, content := mappedDisk(t, "disk")
	r := newRig(t, target.Config{NIC: limitedNIC(t, meter), CopyMode: regcache.CopyZero}, e)
	read := func() {
		t.Helper()
		got, err := r.reader(t, "disk").read(5<<20, 64<<10, wire.StatusOK)
		must(t, err)
		if !bytes.Equal(got, content[5<<20:][:64<<10]) {
			t.Fatal("other data")
		}
		if n := meter.disks.Load(); n != regcache.HugeGranule {
			t.Errorf("%d bytes are registered for one read", n)
		}
	}
	read()
	r.cancel()
	must(t, <-r.served)
	if c := r.server.Status().Copy; c.Cache != nil || meter.disks.Load() != 0 {
		t.Errorf("%+v, %d bytes are registered when nothing is served", c.Cache, meter.disks.Load())
	}
	l, err := r.server.Listen(r.host)
	must(t, err)
	ctx, cancel := context.WithCancel(context.Background())
	go func() { r.served <- r.server.Serve(ctx, l) }()
	t.Cleanup(cancel)
	read()
}

// A disk that no NIC registers is copied, whatever the reason, and the log says
// so once for all connections.
func TestDisksThatCannotBeRegistered(t *testing.T) {
	isDisk := func(m *via.Memory) bool { return m.Arena() == nil }
	type row struct {
		disk   func(t *testing.T) (target.Export, []byte)
		stingy *limitedProvider
		off    string // why, in the status of the export
	}
	onMap := func(t *testing.T) (target.Export, []byte) {
		e, _, content := mappedDisk(t, "disk")
		return e, content
	}
	onMemory := func(t *testing.T) (target.Export, []byte) {
		e := disk(t, "disk")
		content := e.Device.(block.Mapped).Memory()
		scatter(content, 3)
		return e, content
	}
	rows := map[string]row{
		"nic without room for a registration": {onMap, &limitedProvider{limits: func(l *via.Limits) { l.MaxRegisterBlockBytes = 1 << 20 }}, "at most 1048576"},
		"nic without bytes":                   {onMap, &limitedProvider{limits: func(l *via.Limits) { l.MaxRegisterBytes = 2<<20 + 3<<19 }}, ""},
		"mapping off its page": {func(t *testing.T) (target.Export, []byte) {
			e, content := onMap(t)
			e.Device = &shifted{e.Device.(block.FileMapped)}
			return e, content
		}, &limitedProvider{}, "adopt"},
		"memory larger than a region": {onMemory, &limitedProvider{limits: func(l *via.Limits) { l.MaxRegisterBlockBytes = 8 << 20 }}, ""},
	}
	for _, errno := range []error{via.ErrResource, syscall.ENOMEM, syscall.EFAULT, syscall.EAGAIN, syscall.EPERM} {
		refuse := func(m *via.Memory) error {
			if isDisk(m) {
				return errno
			}
			return nil
		}
		rows[fmt.Sprintf("memory: %v", errno)] = row{onMemory, &limitedProvider{refuse: refuse}, ""}
		rows[fmt.Sprintf("mmap: %v", errno)] = row{onMap, &limitedProvider{refuse: refuse}, ""}
		rows[fmt.Sprintf("calibration: %v", errno)] = row{onMap, &limitedProvider{refuse: func(m *via.Memory) error {
			if isDisk(m) || len(m.Bytes()) == 4<<10 { // the least that is measured
				return errno
			}
			return nil
		}}, ""}
	}
	for name, c := range rows {
		t.Run(name, func(t *testing.T) {
			e, content := c.disk(t)
			mode := regcache.CopyZero
			if strings.HasPrefix(name, "calibration") {
				mode = regcache.CopyAuto
			}
			r := newRig(t, target.Config{NIC: limitedNIC(t, c.stingy), CopyMode: mode, MaxIO: 256 << 10, PoolBytes: 512 << 10}, e)
			first := r.reader(t, "disk")
			second := &session{id: first.s.id, control: first.s.control, export: first.s.export, io: r.join(t, first.s, 2)}
			m, err := second.io.expose(1<<20, readWrite)
			must(t, err)
			for _, p := range []*reader{first, {second, m}} {
				for i := range 20 {
					got, err := p.read(uint64(i)<<16, 64<<10, wire.StatusOK)
					must(t, err)
					if !bytes.Equal(got, content[i<<16:][:64<<10]) {
						t.Fatal("other data")
					}
					copy(p.mem.Bytes(), bytes.Repeat([]byte{byte(i)}, 4096))
					_, err = p.s.run(transfer(wire.OpWrite, uint64(i)<<16, p.mem.segment(0, 4096)), nil, wire.StatusOK)
					must(t, err)
					copy(content[i<<16:], p.mem.Bytes()[:4096])
				}
			}
			if n := c.stingy.peak.Load(); n != 0 {
				t.Errorf("%d bytes of the disk were registered", n)
			}
			if w := r.server.Status().Exports[0].Mapping; w != nil && (c.off == "") != (w.Off == "") || w != nil && !strings.Contains(w.Off, c.off) {
				t.Errorf("%+v", w)
			}
			said := strings.Count(r.log.String(), "is not registered")
			if want := min(1, len(c.off)); said > 1 || said < want {
				t.Errorf("said %d times: %s", said, r.log)
			}
		})
	}
}

// shifted is a mapped disk whose mapping does not begin at a page.
type shifted struct{ block.FileMapped }

func (s *shifted) Mapping() []byte {
	return append(make([]byte, 0, mappedSize+100), s.FileMapped.Mapping()...)[1:]
}

// Over a provider that reads memory after it was posted, as RoCE does for what
// was lost, a mapped file is copied, and the status says why.
func TestProviderThatReadsMemoryLater(t *testing.T) {
	later := &limitedProvider{limits: func(l *via.Limits) { l.PostsCopy = false }}
	e, _, content := mappedDisk(t, "disk")
	r := newRig(t, target.Config{NIC: limitedNIC(t, later), CopyMode: regcache.CopyZero}, e)
	got, err := r.reader(t, "disk").read(5<<20, 64<<10, wire.StatusOK)
	must(t, err)
	if !bytes.Equal(got, content[5<<20:][:64<<10]) {
		t.Fatal("other data")
	}
	if w := r.server.Status().Exports[0].Mapping; later.peak.Load() != 0 || !strings.Contains(w.Off, "after it was posted") {
		t.Errorf("%d bytes registered, %+v", later.peak.Load(), w)
	}
}

// A mapping with a lease out is neither given up by the cache nor unmapped by
// the disk, whose queue is open as long.
func TestMappingThatIsClosedWhileLeased(t *testing.T) {
	e, _, content := mappedDisk(t, "disk")
	q, err := e.Device.NewQueue(1)
	must(t, err)
	nic := openNIC(t)
	tag, err := nic.CreatePtag()
	must(t, err)
	cache, err := regcache.New(nic, regcache.Config{Granule: regcache.HugeGranule})
	must(t, err)
	mapping := e.Device.(block.FileMapped).Mapping()
	arena, err := cache.Adopt(mapping)
	must(t, err)
	lease, err := cache.Acquire(mapping[:4096], tag, 0)
	must(t, err)
	for range 2 {
		if err := arena.Close(); !errors.Is(err, regcache.ErrInUse) {
			t.Errorf("close of a leased arena: %v", err)
		}
		if err := e.Device.Close(); block.Errno(err) != syscall.EBUSY {
			t.Errorf("close of a leased disk: %v", err)
		}
		if !bytes.Equal(lease.Memory().Bytes()[:4096], content[:4096]) {
			t.Fatal("other data is leased")
		}
	}
	if _, err := cache.Acquire(mapping[:4096], tag, 0); err == nil {
		t.Error("a lease of a closed arena")
	}
	lease.Release()
	for _, step := range []func() error{
		arena.Close, cache.Close, q.Close, e.Device.Close, func() error { return nic.DestroyPtag(tag) }, nic.Close,
	} {
		must(t, step())
	}
}

// A disk is not unmapped while connections have it registered.
func TestDiskThatIsClosedWhileLeased(t *testing.T) {
	e, _, content := mappedDisk(t, "disk")
	r := newRig(t, target.Config{CopyMode: regcache.CopyZero}, e)
	p := r.reader(t, "disk")
	for range 3 {
		got, err := p.read(5<<20, 64<<10, wire.StatusOK)
		must(t, err)
		if !bytes.Equal(got, content[5<<20:][:64<<10]) {
			t.Fatal("other data")
		}
		if err := e.Device.Close(); block.Errno(err) != syscall.EBUSY {
			t.Fatalf("close of a disk in use: %v", err)
		}
	}
	s := r.choices(t, func(s regcache.ChoiceStats) bool { return s.BytesZeroCopied == 3*64<<10 })
	if s.Misses != 1 || s.Hits != 2 {
		t.Errorf("%+v", s)
	}
}
