package regbench

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"github.com/viablk/viablk/via"
	"github.com/viablk/viablk/via/hook"
)

// TableConfig says what to measure. Zero fields take the defaults.
type TableConfig struct {
	Sizes []int // bytes; 4 KiB to 4 MiB
	Runs  int   // of each size; 200

	// Progress, if not nil, is called before each case.
	Progress func(done, total int)
}

// TableRow are the times of a size, in nanoseconds: the least of the runs, and
// for cold copies the lower quartile. A hit ratio is that from which on a
// registration cache is cheaper than copies: 0 always, 1 never below every
// request.
type TableRow struct {
	Size       int     `json:"size"` // bytes
	Register   float64 `json:"register_ns"`
	Deregister float64 `json:"deregister_ns"`
	CopyWarm   float64 `json:"copy_warm_ns"`
	CopyCold   float64 `json:"copy_cold_ns"`
	RdmaWrite  float64 `json:"rdma_write_ns"`
	EvenWarm   float64 `json:"break_even_warm"` // hit ratio
	EvenCold   float64 `json:"break_even_cold"`

	PaperRegister float64 `json:"paper_register_ns,omitempty"` // Table 1 of CIBR
	PaperCopy     float64 `json:"paper_copy_ns,omitempty"`
}

// TableResult is a machine's Table 1 over a provider.
type TableResult struct {
	Provider string     `json:"provider"`
	Rows     []TableRow `json:"rows"`
}

// Costs of a hit and of a slot, in nanoseconds; see the benchmarks of regcache.
const (
	hitTime    = 50
	bufferTime = 60
)

// Table measures registration, copies and RDMA with one connection standing.
func Table(ctx context.Context, p via.Provider, at Address, c TableConfig) (r TableResult, err error) {
	if c.Sizes == nil {
		for n := 4 << 10; n <= 4<<20; n *= 2 {
			c.Sizes = append(c.Sizes, n)
		}
	}
	if c.Runs == 0 {
		c.Runs = 200
	}
	r.Provider = p.Name()
	l, err := openLoop(p, at, slices.Max(c.Sizes))
	if err != nil {
		return r, err
	}
	defer func() { err = errors.Join(err, l.close()) }()
	cold, err := unix.Mmap(-1, 0, 256<<20, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANON|unix.MAP_POPULATE)
	if err != nil {
		return r, fmt.Errorf("map memory to copy: %w", err)
	}
	defer func() { err = errors.Join(err, unix.Munmap(cold)) }()
	place := 0
	for i, n := range c.Sizes {
		if c.Progress != nil {
			c.Progress(i, len(c.Sizes))
		}
		row, err := l.row(ctx, n, c.Runs, cold, &place)
		if err != nil {
			return r, fmt.Errorf("%d bytes: %w", n, err)
		}
		r.Rows = append(r.Rows, row)
	}
	return r, nil
}

// row measures a size. place is where in cold the next cold copy is.
func (l *loop) row(ctx context.Context, n, runs int, cold []byte, place *int) (TableRow, error) {
	row := TableRow{Size: n}
	var up, down, warm, away, write []float64
	half := len(cold) / 2
	for range runs {
		if ctx.Err() != nil {
			return row, context.Cause(ctx)
		}
		begin := time.Now()
		m, err := l.ends[0].nic.RegisterMem(l.ends[0].arena.Bytes()[:n:n], via.MemAttributes{
			Ptag: l.ends[0].tag, EnableRdmaWrite: true,
		})
		if err != nil {
			return row, err
		}
		up = append(up, float64(time.Since(begin)))
		ns, err := l.write(m, n)
		if err != nil {
			return row, errors.Join(err, m.Deregister())
		}
		write = append(write, ns)
		begin = time.Now()
		if err := m.Deregister(); err != nil {
			return row, err
		}
		down = append(down, float64(time.Since(begin)))
		if *place+n > half {
			*place = 0
		}
		from, to := cold[*place:][:n], cold[half+*place:][:n]
		begin = time.Now()
		copy(to, from)
		away = append(away, float64(time.Since(begin)))
		begin = time.Now()
		copy(to, from)
		warm = append(warm, float64(time.Since(begin)))
		*place += n
	}
	row.Register, row.Deregister, row.CopyWarm = slices.Min(up), slices.Min(down), slices.Min(warm)
	row.CopyCold, row.RdmaWrite = quantile(away, 0.25), slices.Min(write)
	row.EvenWarm, row.EvenCold = breakEven(row.Register+row.Deregister, row.CopyWarm), breakEven(row.Register+row.Deregister, row.CopyCold)
	for _, c := range hook.CIBR {
		if c.Bytes == n {
			row.PaperRegister, row.PaperCopy = float64(c.Register)*1e3, float64(c.Copy)*1e3
		}
	}
	return row, nil
}

// breakEven returns the hit ratio h at which a lookup and the registration of
// the rest cost as much as a slot and a copy: hit + (1-h)·registration = slot +
// copy.
func breakEven(registration, copying float64) float64 {
	return min(max(1-(bufferTime+copying-hitTime)/registration, 0), 1)
}

// loop is two connected VIs of this process.
type loop struct {
	ends     [2]loopEnd
	listener *via.Listener
	source   *via.Memory // of the second end, its descriptor at the end
	desc     *via.Descriptor
}

type loopEnd struct {
	nic   *via.NIC
	tag   via.Ptag
	cq    *via.CQ
	vi    *via.VI
	arena *via.Arena
}

func openLoop(p via.Provider, at Address, size int) (l *loop, err error) {
	l = &loop{}
	defer func() {
		if err != nil {
			err = errors.Join(fmt.Errorf("connect two vis: %w", err), l.close())
		}
	}()
	for i := range l.ends {
		if err := l.ends[i].open(p, size); err != nil {
			return l, err
		}
	}
	if err := l.connect(at); err != nil {
		return l, err
	}
	e := &l.ends[1]
	mem := e.arena.Bytes()
	if l.source, err = e.nic.RegisterMem(mem, via.MemAttributes{Ptag: e.tag}); err != nil {
		return l, err
	}
	l.desc, err = l.source.NewDescriptor(len(mem)-via.DescriptorAlignment*4, via.DescriptorAlignment*4)
	return l, err
}

// open makes an end; its arena has room for a descriptor behind size bytes.
func (e *loopEnd) open(p via.Provider, size int) (err error) {
	if e.nic, err = via.OpenNic(p, ""); err != nil {
		return err
	}
	e.nic.ErrorCallback(func(via.AsyncError) {})
	if e.tag, err = e.nic.CreatePtag(); err != nil {
		return err
	}
	if e.cq, err = e.nic.CreateCQ(16); err != nil {
		return err
	}
	e.vi, err = e.nic.CreateVi(via.ViAttributes{
		Reliability: via.ReliableDelivery, Ptag: e.tag, EnableRdmaWrite: true,
	}, via.ViConfig{SendCQ: e.cq, RecvCQ: e.cq, SendDepth: 4, RecvDepth: 4})
	if err != nil {
		return err
	}
	if e.arena, err = e.nic.NewArena(size + 4096); err != nil {
		return err
	}
	clear(e.arena.Bytes())
	return nil
}

func (l *loop) connect(at Address) error {
	folder, remove, err := temporary()
	if err != nil {
		return err
	}
	defer func() { _ = remove() }()
	address := via.Address{Host: at(folder), Discriminator: "regbench"}
	if l.listener, err = l.ends[0].nic.Listen(address); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	accepted := make(chan error, 1)
	go func() {
		r, err := l.listener.Wait(ctx)
		if err == nil {
			err = r.Accept(ctx, l.ends[0].vi)
		}
		accepted <- err
	}()
	_, err = l.ends[1].vi.Connect(ctx, address)
	if err != nil {
		cancel() // no peer comes
	}
	return errors.Join(err, <-accepted)
}

// write writes n bytes to the region and returns how long that took.
func (l *loop) write(to *via.Memory, n int) (float64, error) {
	d := l.desc
	d.Reset(via.OpRdmaWrite)
	d.SetRemote(to.Addr(), to.Handle())
	d.AddSegment(l.source.Addr(), l.source.Handle(), uint32(n))
	begin := time.Now()
	if err := l.ends[1].vi.PostSend(d); err != nil {
		return 0, err
	}
	var done [1]via.Completion
	for l.ends[1].cq.Poll(done[:]) == 0 {
		l.ends[0].cq.Poll(nil) // the other end's share
		if time.Since(begin) > 10*time.Second {
			return 0, errors.New("an rdma write takes for ever")
		}
	}
	if done[0].Status.Failed() {
		return 0, fmt.Errorf("rdma write: %v", done[0].Status)
	}
	return float64(time.Since(begin)), nil
}

func (l *loop) close() error {
	var errs []error
	for i := range l.ends {
		if vi := l.ends[i].vi; vi != nil {
			_ = vi.Disconnect() // fails only while a connect is pending
		}
	}
	if l.source != nil {
		errs = append(errs, l.source.Deregister())
	}
	if l.listener != nil {
		errs = append(errs, l.listener.Close())
	}
	var done [16]via.Completion
	for i := range l.ends {
		e := &l.ends[i]
		if e.cq != nil {
			e.cq.Poll(done[:])
		}
		if e.vi != nil {
			errs = append(errs, e.vi.Destroy())
		}
		if e.cq != nil {
			errs = append(errs, e.cq.Destroy())
		}
		if e.nic != nil {
			errs = append(errs, e.nic.Close())
		}
	}
	return errors.Join(errs...)
}
