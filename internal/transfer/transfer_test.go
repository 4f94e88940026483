package transfer_test

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"hash"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/viablk/viablk/internal/block"
	"github.com/viablk/viablk/internal/transfer"
	"github.com/viablk/viablk/target/backend"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// unit is the granularity of the content of disks, in bytes.
const unit = 4096

// open opens a disk for the time of the test.
func open(t testing.TB, spec string) block.Device {
	t.Helper()
	d, err := backend.Open(spec, backend.Options{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := d.Close(); err != nil {
			t.Error(err)
		}
	})
	return d
}

// sparse returns content with long runs of zeroes.
func sparse(r *rand.Rand, size int) []byte {
	p := make([]byte, size)
	for off := 0; off < size; {
		n := min(unit*(1+r.IntN(100)), size-off)
		if r.IntN(2) == 0 {
			for i := range n {
				p[off+i] = byte(r.Uint32())
			}
		}
		off += n
	}
	return p
}

// file makes a file whose zeroes are holes.
func file(t testing.TB, name string, content []byte) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), name)
	f, err := os.Create(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if err := f.Truncate(int64(len(content))); err != nil {
		t.Fatal(err)
	}
	for off := 0; off < len(content); off += unit {
		p := content[off:min(off+unit, len(content))]
		if bytes.Equal(p, make([]byte, len(p))) {
			continue
		}
		if _, err := f.WriteAt(p, int64(off)); err != nil {
			t.Fatal(err)
		}
	}
	return path
}

// use calls f with a synchronous view of a disk.
func use(t testing.TB, d block.Device, f func(*block.Disk) error) {
	t.Helper()
	disk, err := block.NewDisk(d)
	if err == nil {
		err = errors.Join(f(disk), disk.Close())
	}
	if err != nil {
		t.Fatal(err)
	}
}

// fill writes content to a disk.
func fill(t testing.TB, d block.Device, content []byte) {
	t.Helper()
	use(t, d, func(disk *block.Disk) error {
		_, err := disk.WriteAt(content, 0)
		return err
	})
}

// content reads a disk.
func content(t testing.TB, d block.Device, size int) []byte {
	t.Helper()
	p := make([]byte, size)
	use(t, d, func(disk *block.Disk) error {
		_, err := disk.ReadAt(p, 0)
		return err
	})
	return p
}

// run runs a transfer.
func run(t testing.TB, mode transfer.Mode, from, to block.Device, change func(*transfer.Config)) (transfer.Result, error) {
	t.Helper()
	c := transfer.Config{
		Mode: mode, Source: transfer.Side{Name: "from", Device: from}, Destination: transfer.Side{Name: "to", Device: to},
		Connections: 3, Depth: 4, Length: 64 << 10,
	}
	if change != nil {
		change(&c)
	}
	x, err := transfer.New(c)
	if err != nil {
		t.Fatal(err)
	}
	r, err := x.Run(t.Context())
	if err == nil && x.Done() != x.Size() {
		t.Errorf("%d of %d bytes are done", x.Done(), x.Size())
	}
	return r, err
}

// features is a disk with other features.
type features struct {
	block.Device
	info block.Info
}

func (d features) Info() block.Info { return d.info }

// without returns a disk that lacks features, and has a block size.
func without(d block.Device, missing block.Features, least uint32) block.Device {
	i := d.Info()
	i.Features &^= missing
	i.MinimumBlock = max(i.MinimumBlock, least)
	return features{d, i}
}

// The destination has the content of the source, whatever disks can do, and
// what lies beyond stays.
func TestCopyAgainstModel(t *testing.T) {
	seed := rand.Uint64()
	r := rand.New(rand.NewPCG(seed, 0))
	missing := []block.Features{0, block.CanStatus, block.CanWriteZeroes, block.CanStatus | block.CanWriteZeroes | block.CanFlush}
	for round := range 10 {
		size := unit * (1 + r.IntN(600))
		want, old := sparse(r, size), sparse(r, size+unit*r.IntN(3))
		from := open(t, "file:"+file(t, "from", want)+"?identity=0")
		to := open(t, "file:"+file(t, "to", old)+"?identity=0")
		resume, allocate, hashed := r.IntN(3) == 0, r.IntN(3) == 0, r.IntN(2) == 0
		var h hash.Hash
		mode := transfer.Copy
		if resume {
			mode = transfer.Resume
		}
		what := fmt.Sprintf("seed %d, round %d: %d to %d bytes, resume %v, allocate %v, digest %v", seed, round, size, len(old), resume, allocate, hashed)
		result, err := run(t, mode, without(from, missing[r.IntN(4)], uint32(1)<<(9+r.IntN(4))), without(to, missing[r.IntN(4)], 512), func(c *transfer.Config) {
			c.Allocate, c.Length = allocate, unit<<r.IntN(6)
			if hashed {
				h = sha256.New()
				c.Digest, c.Connections = h, 1
			}
		})
		if err != nil {
			t.Fatalf("%s: %v", what, err)
		}
		if got := content(t, to, len(old)); !bytes.Equal(got[:size], want) || !bytes.Equal(got[size:], old[size:]) {
			t.Fatalf("%s: the destination has other content", what)
		}
		if hashed && !bytes.Equal(h.Sum(nil), sum(want)) {
			t.Fatalf("%s: the digest is another", what)
		}
		if moved := result.Copied + result.Zeroed + result.Same; moved != int64(size) {
			t.Fatalf("%s: %+v", what, result)
		}
		if result, err = run(t, transfer.Compare, from, to, nil); err != nil || result.Differing != 0 || result.First != -1 {
			t.Fatalf("%s: a copy compares as %+v, %v", what, result, err)
		}
	}
}

func sum(p []byte) []byte {
	s := sha256.Sum256(p)
	return s[:]
}

// A comparison finds the first byte that differs, and counts them.
func TestCompareAgainstModel(t *testing.T) {
	seed := rand.Uint64()
	r := rand.New(rand.NewPCG(seed, 0))
	for round := range 10 {
		a := sparse(r, unit*(1+r.IntN(400)))
		b := bytes.Clone(a)
		for range r.IntN(5) {
			off := r.IntN(len(b))
			for i := off; i < min(off+1+r.IntN(3*unit), len(b)); i++ {
				b[i] = byte(r.IntN(2)) // zero against data, data against a hole
			}
		}
		first, count := int64(-1), int64(0)
		for i := range a {
			if a[i] != b[i] {
				if count == 0 {
					first = int64(i)
				}
				count++
			}
		}
		from, to := open(t, "file:"+file(t, "a", a)+"?identity=0"), open(t, "file:"+file(t, "b", b)+"?identity=0")
		result, err := run(t, transfer.Compare, from, to, nil)
		if err != nil || result.First != first || result.Differing != count || result.Same != int64(len(a))-count {
			t.Fatalf("seed %d, round %d: %+v, %v, not first %d of %d", seed, round, result, err, first, count)
		}
	}
}

// counted counts what a disk is asked to write.
type counted struct {
	block.Device
	written *int64
}

type countedQueue struct {
	block.Queue
	written *int64
}

func (d counted) NewQueue(depth int) (block.Queue, error) {
	q, err := d.Device.NewQueue(depth)
	return countedQueue{q, d.written}, err
}

func (q countedQueue) Submit(r *block.Request) bool {
	if r.Op == block.Write || r.Op == block.WriteZeroes {
		*q.written += r.Length
	}
	return q.Queue.Submit(r)
}

// A resumed copy writes what differs and nothing else; also where a piece was
// changed after the first copy passed it.
func TestResumeWritesWhatDiffers(t *testing.T) {
	const size = 4 << 20
	r := rand.New(rand.NewPCG(1, 2))
	want := make([]byte, size)
	for i := range want {
		want[i] = byte(r.Uint32())
	}
	from, to := open(t, "memory:4M"), open(t, "memory:4M")
	fill(t, from, want)
	fill(t, to, want[:size/2])
	fill(t, to, []byte{^want[0]})
	var written int64
	one := func(c *transfer.Config) { c.Connections = 1 }
	result, err := run(t, transfer.Resume, from, counted{to, &written}, one)
	if err != nil || !bytes.Equal(content(t, to, size), want) {
		t.Fatalf("%+v, %v", result, err)
	}
	if want := int64(size/2 + 64<<10); written != want || result.Copied != want {
		t.Errorf("%d bytes were written, and %d counted, not %d", written, result.Copied, want)
	}
}

// A hole of the source is a hole of a file, and allocated with Allocate.
func TestHolesAreKept(t *testing.T) {
	want := make([]byte, 16<<20)
	copy(want[5<<20:], bytes.Repeat([]byte{7}, 1<<20))
	from := open(t, "file:"+file(t, "from", want)+"?identity=0")
	for _, allocate := range []bool{false, true} {
		path := file(t, "to", bytes.Repeat([]byte{9}, len(want)))
		to := open(t, "file:"+path+"?identity=0")
		if _, err := run(t, transfer.Copy, from, to, func(c *transfer.Config) { c.Allocate = allocate }); err != nil {
			t.Fatal(err)
		}
		if !bytes.Equal(content(t, to, len(want)), want) {
			t.Fatal("the content is another")
		}
		var st syscall.Stat_t
		if err := syscall.Stat(path, &st); err != nil {
			t.Fatal(err)
		}
		if used := st.Blocks * 512; allocate != (used >= int64(len(want))) || used < 1<<20 || !allocate && used > 2<<20 {
			t.Errorf("allocate %v: the file has %d bytes allocated", allocate, used)
		}
	}
}

// An error names the side, the operation and the offset, and ends the transfer.
func TestErrors(t *testing.T) {
	for _, c := range []struct{ from, to, want string }{
		{"fault:read=EIO@9:memory:4M", "memory:4M", "from: read of "},
		{"memory:4M", "fault:write=ENOSPC@5+:memory:4M", "to: write of "},
		{"memory:4M", "fault:flush=EIO:memory:4M", "to: flush: "},
	} {
		from, to := open(t, c.from), open(t, c.to)
		fill(t, from, bytes.Repeat([]byte{1}, 4<<20))
		_, err := run(t, transfer.Copy, from, to, nil)
		var failed *transfer.Error
		if !errors.As(err, &failed) || !strings.HasPrefix(err.Error(), c.want) || strings.Count(err.Error(), " at ") > 1 {
			t.Errorf("%s to %s: %v", c.from, c.to, err)
		}
	}
}

// A transfer ends with its context, although a disk does not answer.
func TestCancelled(t *testing.T) {
	from, to := open(t, "fault:read=hang:memory:4M"), open(t, "memory:4M")
	x, err := transfer.New(transfer.Config{
		Source: transfer.Side{Name: "from", Device: without(from, block.CanStatus, 0)}, Destination: transfer.Side{Name: "to", Device: to},
		Connections: 2, Depth: 4, Length: 64 << 10,
	})
	if err != nil {
		t.Fatal(err)
	}
	gone := errors.New("gone")
	ctx, cancel := context.WithCancelCause(t.Context())
	time.AfterFunc(10*time.Millisecond, func() { cancel(gone) })
	if _, err := x.Run(ctx); !errors.Is(err, gone) {
		t.Errorf("the end is %v", err)
	}
	if x.Done() != 0 {
		t.Errorf("%d bytes are done", x.Done())
	}
}

// Disks that do not fit are refused before anything is written.
func TestRefusals(t *testing.T) {
	small, large := open(t, "memory:1M"), open(t, "memory:2M")
	odd := open(t, "file:"+file(t, "odd", make([]byte, 1536))+"?identity=0")
	for want, c := range map[string]transfer.Config{
		"only 1048576":   {Source: transfer.Side{Name: "a", Device: large}, Destination: transfer.Side{Name: "b", Device: small}},
		"read-only":      {Source: transfer.Side{Name: "a", Device: small}, Destination: transfer.Side{Name: "b", Device: open(t, "memory:2M?readonly=1")}},
		"blocks of 1024": {Source: transfer.Side{Name: "a", Device: odd}, Destination: transfer.Side{Name: "b", Device: without(large, 0, 1024)}},
	} {
		c.Connections, c.Depth, c.Length = 1, 1, 4096
		if _, err := transfer.New(c); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", want, err)
		}
	}
}

// A measurement counts requests, and writes only if it is told to.
func TestMeasure(t *testing.T) {
	for _, write := range []bool{false, true} {
		var written int64
		d := counted{open(t, "memory:1M"), &written}
		m, err := transfer.Measure(t.Context(), transfer.Load{
			Disk: transfer.Side{Name: "disk", Device: d}, Write: write, Length: 4096, Depth: 4, Connections: 1, Time: 20 * time.Millisecond,
		})
		if err != nil || m.Requests < 4 || m.Latency.Quantile(0.5) <= 0 {
			t.Errorf("write %v: %d requests, %v", write, m.Requests, err)
		}
		if want := int64(m.Requests) * 4096; write && written != want || !write && written != 0 {
			t.Errorf("write %v: %d bytes were written by %d requests", write, written, m.Requests)
		}
	}
}
