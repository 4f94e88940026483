package target_test

import (
	"bytes"
	"errors"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/viablk/viablk/internal/block"
	"github.com/viablk/viablk/internal/wire"
	"github.com/viablk/viablk/regcache"
	"github.com/viablk/viablk/target"
	"github.com/viablk/viablk/via"
	"github.com/viablk/viablk/via/hook"
	"github.com/viablk/viablk/via/shm"
)

const mappedSize = 16 << 20

// mappedDisk is an export of a mapped file with content.
func mappedDisk(t testing.TB, name string) (e target.Export, path string, content []byte) {
	t.Helper()
	path = filepath.Join(t.TempDir(), name+".img")
	content = make([]byte, mappedSize)
	scatter(content, 4)
	must(t, os.WriteFile(path, content, 0o600))
	return target.Export{Name: name, Device: openDevice(t, "mmap:"+path)}, path, content
}

// scatter fills memory with bytes that depend on a seed.
func scatter(p []byte, seed byte) {
	_, _ = rand.NewChaCha8([32]byte{seed}).Read(p) // never fails
}

// reader reads by RDMA.
type reader struct {
	s   *session
	mem exposed
}

func (r *rig) reader(t testing.TB, export string) *reader {
	t.Helper()
	s := r.attach(t, export)
	m, err := s.io.expose(1<<20, readWrite)
	must(t, err)
	return &reader{s, m}
}

// read reads n bytes with the status that is wanted.
func (r *reader) read(off uint64, n int, want wire.Status) ([]byte, error) {
	clear(r.mem.Bytes()[:n])
	_, err := r.s.run(transfer(wire.OpRead, off, r.mem.segment(0, n)), nil, want)
	return r.mem.Bytes()[:n], err
}

// choices returns how Reads moved, once the worker has published it.
func (r *rig) choices(t testing.TB, ok func(regcache.ChoiceStats) bool) regcache.ChoiceStats {
	t.Helper()
	waitFor(t, "the worker's counters", func() bool { return ok(r.server.Status().Stats.Mappings.Choice) })
	return r.server.Status().Stats.Mappings.Choice
}

func TestReadsOfAMappedFile(t *testing.T) {
	for _, mode := range regcache.CopyModes() {
		t.Run(string(mode), func(t *testing.T) {
			e, _, content := mappedDisk(t, "disk")
			r := newRig(t, target.Config{CopyMode: mode}, e)
			p := r.reader(t, "disk")
			rng := rand.New(rand.NewPCG(1, 1))
			for range 300 {
				n := 1 + rng.IntN(1<<20)
				off := rng.IntN(mappedSize - n)
				if rng.IntN(3) == 0 {
					data := bytes.Repeat([]byte{byte(n)}, n)
					copy(p.mem.Bytes(), data)
					copy(content[off:], data)
					_, err := p.s.run(transfer(wire.OpWrite, uint64(off), p.mem.segment(0, n)), nil, wire.StatusOK)
					must(t, err)
					continue
				}
				got, err := p.read(uint64(off), n, wire.StatusOK)
				must(t, err)
				if !bytes.Equal(got, content[off:off+n]) {
					t.Fatalf("[%d, +%d) reads as something else", off, n)
				}
			}
			s := r.choices(t, func(s regcache.ChoiceStats) bool {
				return s.BytesCopied+s.BytesZeroCopied > 0 || mode == regcache.CopyBounce
			})
			if (s.BytesZeroCopied > 0) != (mode != regcache.CopyBounce) {
				t.Errorf("%+v", s)
			}
		})
	}
}

// lagging is a mapped disk whose file takes long to copy out of the page cache.
type lagging struct {
	block.FileMapped
	file block.Device
}

func (l *lagging) NewQueue(depth int) (block.Queue, error) { return l.file.NewQueue(depth) }
func (l *lagging) Close() error                            { return errors.Join(l.file.Close(), l.FileMapped.Close()) }

// The policy decides by what it measured: over a NIC that is slow to register,
// repeated Reads of a range move without a copy, wherever in the file it is.
// The saving is far above the noise.
func TestMappingsRemainInUseWithExpensiveRegistration(t *testing.T) {
	nic, err := via.OpenNic(hook.Charge(shm.New(shm.Options{}), hook.PriceUCX()), "")
	must(t, err)
	e, path, content := mappedDisk(t, "disk")
	e.Device = &lagging{e.Device.(block.FileMapped), openDevice(t, "delay:read=1ms:file:"+path+"?readonly=1&lock=0")}
	r := newRig(t, target.Config{NIC: nic, RegisterMax: 8 << 20}, e)
	p := r.reader(t, "disk")
	const size, reads, places = 256 << 10, 1500, 3
	var known, now regcache.ChoiceStats
	for place := range places { // 4 MiB each, not registered before
		known = now
		for i := range reads {
			off := place<<22 + i%16*size
			got, err := p.read(uint64(off), size, wire.StatusOK)
			must(t, err)
			if i < 16 && !bytes.Equal(got, content[off:off+size]) {
				t.Fatalf("other data at %d", off)
			}
		}
		total := uint64(place+1) * reads * size
		now = r.choices(t, func(s regcache.ChoiceStats) bool { return s.BytesCopied+s.BytesZeroCopied == total })
	}
	// It has learned in the places before.
	if zero := now.BytesZeroCopied - known.BytesZeroCopied; zero < reads*size/2 {
		t.Errorf("at last %d of %d bytes without a copy: %+v, before: %+v", zero, reads*size, now, known)
	}
}

// A Read across two registrations is copied. It does not count as a refusal of
// the NIC: after several of those the policy would stop to register.
func TestReadsAcrossGranules(t *testing.T) {
	e, _, content := mappedDisk(t, "disk")
	r := newRig(t, target.Config{CopyMode: regcache.CopyZero}, e)
	p := r.reader(t, "disk")
	const n, rounds = 64 << 10, 50
	for i := range rounds {
		for _, off := range []int{2<<20 - n/2, 4 << 20} {
			got, err := p.read(uint64(off), n, wire.StatusOK)
			must(t, err)
			if !bytes.Equal(got, content[off:off+n]) {
				t.Fatalf("round %d: other data at %d", i, off)
			}
		}
	}
	s := r.choices(t, func(s regcache.ChoiceStats) bool { return s.BytesCopied+s.BytesZeroCopied == 2*rounds*n })
	if s.Refusals != 0 || s.BytesZeroCopied != rounds*n || s.Hits+s.Misses != rounds {
		t.Errorf("%+v", s)
	}
	if x := r.server.Status().Exports[0].Mapping; x.CrossesGranule != rounds || x.NotResident != 0 || x.Choice != s || x.Off != "" {
		t.Errorf("%+v", x)
	}
}

// residentDisk is a mapped disk with another answer to what is resident.
type residentDisk struct {
	block.FileMapped
	resident func() bool
}

func (w *residentDisk) Resident(off, n int64) bool {
	return w.resident() && w.FileMapped.Resident(off, n)
}

// A file that is truncated between the check and the copy costs the connection
// that reads it. Every other one goes on, and so does the process.
func TestTruncationUnderACopy(t *testing.T) {
	e, path, _ := mappedDisk(t, "disk")
	var truncate atomic.Bool
	w := &truncated{FileMapped: e.Device.(block.FileMapped), path: path, now: &truncate}
	e.Device = w
	r := newRig(t, target.Config{CopyMode: regcache.CopyZero}, e, disk(t, "other"))
	other := r.healthy(t, "other")
	p := r.reader(t, "disk")
	_, err := p.read(8<<20, 64<<10, wire.StatusOK)
	must(t, err)
	truncate.Store(true)
	if _, err := p.read(8<<20, 64<<10, wire.StatusOK); err == nil {
		t.Fatal("a read of what is gone succeeds")
	}
	other.progresses()
	waitFor(t, "the reason in the log", func() bool { return strings.Contains(r.log.String(), "truncated, or failed") })
	// The next connection finds the file as it is: an error, and the connection
	// lives.
	truncate.Store(false)
	p.s.control.c.Disconnect()
	waitFor(t, "the end of the session", func() bool { return r.server.Status().Sessions == 1 })
	next := r.reader(t, "disk")
	_, err = next.read(8<<20, 64<<10, wire.StatusInvalid)
	must(t, err)
	_, err = next.read(0, 4096, wire.StatusOK)
	must(t, err)
}

// truncated loses its second half when asked whether it is resident.
type truncated struct {
	block.FileMapped
	path string
	now  *atomic.Bool
}

func (w *truncated) Resident(off, n int64) bool {
	ok := w.FileMapped.Resident(off, n)
	if w.now.Load() {
		_ = os.Truncate(w.path, mappedSize/4)
	}
	return ok
}

func TestReadsOfATruncatedFile(t *testing.T) {
	e, path, content := mappedDisk(t, "disk")
	r := newRig(t, target.Config{CopyMode: regcache.CopyZero}, e)
	p := r.reader(t, "disk")
	_, err := p.read(8<<20, 64<<10, wire.StatusOK)
	must(t, err)
	must(t, os.Truncate(path, 4<<20))
	for range 3 {
		_, err = p.read(8<<20, 64<<10, wire.StatusInvalid)
		must(t, err)
		got, err := p.read(1<<20, 64<<10, wire.StatusOK)
		must(t, err)
		if !bytes.Equal(got, content[1<<20:][:64<<10]) {
			t.Fatal("the rest of the file reads as something else")
		}
	}
}

// The page in which a truncated file ends now is in memory, and zeroes behind
// the end: no Read returns them.
func TestReadsAroundTheEndOfATruncatedFile(t *testing.T) {
	const end = 4<<20 + 1000
	for _, scheme := range []string{"file:", "mmap:"} {
		e, path, content := mappedDisk(t, "disk")
		if scheme == "file:" {
			must(t, e.Device.Close())
			e.Device = openDevice(t, scheme+path)
		}
		r := newRig(t, target.Config{CopyMode: regcache.CopyZero}, e)
		p := r.reader(t, "disk")
		_, err := p.read(4<<20, 64<<10, wire.StatusOK)
		must(t, err)
		must(t, os.Truncate(path, end))
		for _, c := range []struct {
			off, n int
			want   wire.Status
		}{
			{4 << 20, 1000, wire.StatusOK},
			{4 << 20, 1001, wire.StatusInvalid},
			{end, 1, wire.StatusInvalid},
			{4<<20 + 2048, 2048, wire.StatusInvalid},
			{4<<20 + 4096, 4096, wire.StatusInvalid},
			{4<<20 - 4096, 8192, wire.StatusInvalid},
		} {
			got, err := p.read(uint64(c.off), c.n, c.want)
			if err != nil {
				t.Fatalf("%s [%d, +%d): %v", scheme, c.off, c.n, err)
			}
			if c.want == wire.StatusOK && !bytes.Equal(got, content[c.off:c.off+c.n]) {
				t.Fatalf("%s: other data", scheme)
			}
		}
	}
}

// unpinnable is a provider that cannot pin a shared mapping of a file, as RNICs
// cannot.
type unpinnable struct{ via.Provider }

func (p unpinnable) Open(device string) (via.Adapter, error) {
	a, err := p.Provider.Open(device)
	return unpinnableAdapter{a}, err
}

type unpinnableAdapter struct{ via.Adapter }

func (a unpinnableAdapter) Register(m *via.Memory) error {
	if m.Arena() == nil {
		return unix.EFAULT
	}
	return a.Adapter.Register(m)
}

func TestMappingThatCannotBePinned(t *testing.T) {
	nic, err := via.OpenNic(unpinnable{shm.New(shm.Options{})}, "")
	must(t, err)
	e, _, content := mappedDisk(t, "disk")
	r := newRig(t, target.Config{NIC: nic, CopyMode: regcache.CopyZero}, e)
	p := r.reader(t, "disk")
	for i := range 50 {
		got, err := p.read(uint64(i)<<16, 64<<10, wire.StatusOK)
		must(t, err)
		if !bytes.Equal(got, content[i<<16:][:64<<10]) {
			t.Fatal("other data")
		}
	}
	p.s.io.c.Disconnect()
	s := r.choices(t, func(s regcache.ChoiceStats) bool { return s.Refusals > 0 })
	if s.BytesZeroCopied != 0 || s.Refusals > 20 {
		t.Errorf("%+v: refused again and again", s)
	}
}

// Reads of pages that are not resident go through the queue, and the pages are
// resident afterwards.
func TestReadsOfWhatIsNotResident(t *testing.T) {
	e, _, content := mappedDisk(t, "disk")
	var absent atomic.Bool
	e.Device = &residentDisk{e.Device.(block.FileMapped), func() bool { return !absent.Load() }}
	r := newRig(t, target.Config{CopyMode: regcache.CopyZero, KeepAlive: time.Hour}, e)
	p := r.reader(t, "disk")
	for _, is := range []bool{true, false} {
		absent.Store(is)
		got, err := p.read(5<<20, 256<<10, wire.StatusOK)
		must(t, err)
		if !bytes.Equal(got, content[5<<20:][:256<<10]) {
			t.Fatal("other data")
		}
	}
	p.s.io.c.Disconnect()
	waitFor(t, "the counters", func() bool {
		s := r.server.Status().Stats.Mappings
		return s.NotResident == 1 && s.Choice.BytesZeroCopied == 256<<10 && s.Choice.BytesCopied == 256<<10
	})
	if s := r.server.Status().Stats.Mappings.Choice; s.Hits != 0 || s.Misses != 1 {
		t.Errorf("%+v: what is not resident is no hit", s)
	}
}

// TestReadsOfHolesGoToTheQueue: RDMA reads memory that is the disk where the
// disk says that it holds data, and nowhere else. Here memory without data has
// bytes, which no client may get.
func TestReadsOfHolesGoToTheQueue(t *testing.T) {
	d := openDevice(t, "memory:16MiB")
	scatter(d.(block.Mapped).Memory()[:1<<20], 7)
	r := newRig(t, target.Config{}, target.Export{Name: "disk", Device: d})
	p := r.reader(t, "disk")
	check := func(off uint64, n int, want []byte) {
		t.Helper()
		got, err := p.read(off, n, wire.StatusOK)
		must(t, err)
		if !bytes.Equal(got, want) {
			t.Errorf("%d bytes at %d differ", n, off)
		}
	}
	check(0, 1<<20, make([]byte, 1<<20))
	data := make([]byte, 4096)
	scatter(data, 8)
	copy(p.mem.Bytes(), data)
	_, err := p.s.run(transfer(wire.OpWrite, 4096, p.mem.segment(0, 4096)), nil, wire.StatusOK)
	must(t, err)
	check(4096, 4096, data)
	check(0, 12288, slices.Concat(make([]byte, 4096), data, make([]byte, 4096)))
	must(t, p.s.close())
}
