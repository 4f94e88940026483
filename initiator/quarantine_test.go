package initiator_test

import (
	"bytes"
	"context"
	"errors"
	"reflect"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/viablk/viablk/initiator"
	"github.com/viablk/viablk/internal/block"
	"github.com/viablk/viablk/internal/wire"
	"github.com/viablk/viablk/regcache"
	"github.com/viablk/viablk/via"
	"github.com/viablk/viablk/via/shm"
)

// late is a provider whose peers may be inside regions when a connection ends:
// as a process does that is stopped amid a copy. A test copies in their place,
// later.
type late struct {
	via.Provider

	mu      sync.Mutex
	regions []*via.Memory // registered with remote access, also former ones
	inside  []*via.Memory // a peer is
	stuck   bool          // and a connection to it has ended
}

func newLate() *late { return &late{Provider: shm.New(shm.Options{})} }

func (p *late) Open(device string) (via.Adapter, error) {
	a, err := p.Provider.Open(device)
	if err != nil {
		return nil, err
	}
	return &lateAdapter{a, p}, nil
}

type lateAdapter struct {
	via.Adapter
	late *late
}

func (a *lateAdapter) Register(m *via.Memory) error {
	if m.RemoteWrite() {
		a.late.mu.Lock()
		a.late.regions = append(a.late.regions, m)
		a.late.mu.Unlock()
	}
	return a.Adapter.Register(m)
}

func (a *lateAdapter) Accessed(m *via.Memory) bool {
	a.late.mu.Lock()
	defer a.late.mu.Unlock()
	return a.late.stuck && slices.Contains(a.late.inside, m)
}

func (a *lateAdapter) Deregister(m *via.Memory) error {
	err := a.Adapter.Deregister(m)
	if err == nil && a.Accessed(m) {
		err = via.ErrStillAccessed
	}
	return err
}

func (a *lateAdapter) Connect(ctx context.Context, host string, hello []byte, cfg via.LinkConfig) (via.Link, []byte, error) {
	l, reply, err := a.Adapter.Connect(ctx, host, hello, cfg)
	if err != nil {
		return nil, nil, err
	}
	return &lateLink{l, a.late, cfg.Tag}, reply, nil
}

type lateLink struct {
	via.Link
	late *late
	tag  uint32
}

func (l *lateLink) Close() error {
	err := l.Link.Close()
	l.late.mu.Lock()
	defer l.late.mu.Unlock()
	if slices.ContainsFunc(l.late.inside, func(m *via.Memory) bool { return m.Tag() == l.tag }) {
		l.late.stuck = true
		return via.ErrStillAccessed
	}
	return err
}

// region returns the region registered last that contains memory, as a peer
// names it.
func (p *late) region(addr uint64) *via.Memory {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, m := range slices.Backward(p.regions) {
		if addr-m.Addr() < uint64(len(m.Bytes())) {
			return m
		}
	}
	return nil
}

// occupy lets a peer be inside a region from now on.
func (p *late) occupy(m *via.Memory) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.inside = append(p.inside, m)
}

// exit lets the peers come out.
func (p *late) exit() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.inside, p.stuck = nil, false
}

// addressOf returns the address of memory, as peers name it.
func addressOf(b []byte) uint64 { return uint64(reflect.ValueOf(b).Pointer()) }

// contains reports whether memory lies inside a region.
func contains(m *via.Memory, b []byte) bool { return addressOf(b)-m.Addr() < uint64(len(m.Bytes())) }

// stopping is a target that hears commands and answers none in its first
// session but those behind answered. It ends a connection at cutOf.
type stopping struct {
	late     *late
	sessions atomic.Int32
	sticky   bool        // no session but the first
	millis   uint32      // between keepalives
	ending   atomic.Bool // at the next one a connection for I/O ends

	mu   sync.Mutex
	seen []seen // guarded by mu
}

// seen is a command that arrived, and the payload in the pool at that time.
type seen struct {
	session int32
	cmd     wire.Command
	region  *via.Memory
	payload []byte
}

// answered is the offset from which on commands are answered in every session.
const answered = 16 << 20

func (x *stopping) play() play {
	return play{
		millis: x.millis,
		keepalive: func(e *end) bool {
			e.acknowledge()
			return e.role != wire.RoleIO || !x.ending.Load()
		},
		login: func(e *end, q *wire.LoginRequest, a *wire.LoginResponse) bool {
			if q.Role == wire.RoleControl && x.sessions.Add(1) > 1 && x.sticky {
				return false
			}
			e.sendControl(a)
			return true
		},
		command: func(e *end, cmd *wire.Command, _ []byte) bool {
			s := seen{session: x.sessions.Load(), cmd: *cmd}
			if cmd.Offset == cutOf(s.session) {
				return false
			}
			if cmd.NumSegments > 0 {
				at := cmd.Segments[0]
				s.region = x.late.region(at.Addr)
				off := at.Addr - s.region.Addr()
				s.payload = bytes.Clone(s.region.Bytes()[off : off+uint64(at.Length)])
			}
			x.mu.Lock()
			x.seen = append(x.seen, s)
			x.mu.Unlock()
			if s.session > 1 || cmd.Offset >= answered {
				e.answer(cmd)
			}
			return true
		},
	}
}

// cutOf is the offset of a request at which a session ends a connection.
func cutOf(session int32) uint64 { return cutAt + uint64(session)<<12 }

// cut ends the connection of a queue.
func (x *stopping) cut(t testing.TB, q block.Queue) {
	submit(t, q, request(block.Prefetch, int64(cutOf(x.sessions.Load())), 4096))
}

// commands returns the commands of a session.
func (x *stopping) commands(session int32) []seen {
	x.mu.Lock()
	defer x.mu.Unlock()
	return slices.DeleteFunc(slices.Clone(x.seen), func(s seen) bool { return s.session != session })
}

// heard waits until a session has n commands, and returns the region that the
// last one names.
func (x *stopping) heard(t testing.TB, session int32, n int) *via.Memory {
	t.Helper()
	waitFor(t, "commands", func() bool { return len(x.commands(session)) >= n })
	return x.commands(session)[n-1].region
}

// attach attaches to the target by a late provider. The peers come out at the
// end of the test.
func (x *stopping) attach(t testing.TB, change func(*initiator.Config)) *initiator.Device {
	t.Helper()
	x.late = newLate()
	s := newStage(t, x.play())
	must(t, s.nic.Close())
	var err error
	s.nic, err = via.OpenNic(x.late, "")
	must(t, err)
	s.nic.ErrorCallback(func(via.AsyncError) {})
	return s.dialWith(t, func(c *initiator.Config) {
		c.Depth = 8
		change(c)
	})
}

// reserved returns a request in memory of the queue's, filled with v.
func reserved(t testing.TB, q block.Queue, op block.Op, off, n int64, v byte) *block.Request {
	t.Helper()
	r := &block.Request{Op: op, Offset: off, Length: n}
	if !q.Reserve(r) {
		t.Fatal("nothing reserved")
	}
	fillWith(r.Data, v)
	return r
}

func fillWith(b []byte, v byte) {
	for i := range b {
		b[i] = v
	}
}

func filledWith(b []byte, v byte) bool { return bytes.Count(b, []byte{v}) == len(b) }

func quarantined(d *initiator.Device) initiator.QuarantineStatus {
	if k := d.Status().Quarantine; k != nil {
		return *k
	}
	return initiator.QuarantineStatus{}
}

func failingFast(*initiator.Config) {}

// TestPoolOfFailedRequests: requests fail while a target is inside their
// memory, which no other request gets before the target is out.
func TestPoolOfFailedRequests(t *testing.T) {
	for name, change := range map[string]func(*initiator.Config){
		"at once": failingFast, "after the loss timeout": lasting(50 * time.Millisecond),
	} {
		t.Run(name, func(t *testing.T) {
			x := stopping{sticky: true}
			d := x.attach(t, change)
			q := open(t, d, 8)
			w := reserved(t, q, block.Write, 0, 64<<10, 0x11)
			submit(t, q, w)
			region := x.heard(t, 1, 1)
			x.late.occupy(region)
			x.cut(t, q)
			wantAll(t, q, 2, syscall.EIO)
			size := int64(len(region.Bytes()))
			if k := quarantined(d); k != (initiator.QuarantineStatus{Bytes: size, Pools: 1, Total: 1}) {
				t.Errorf("in quarantine: %+v", k)
			}
			q.Release(w)
			var others []*block.Request
			for range 8 {
				others = append(others, reserved(t, q, block.Write, 0, 64<<10, 0x22))
			}
			fillWith(region.Bytes()[:1<<20], 0xee) // the late copy
			for _, r := range others {
				if contains(region, r.Data) || !filledWith(r.Data, 0x22) {
					t.Fatal("a later request has memory that the target is inside")
				}
				q.Release(r)
			}
			x.late.exit()
			if k := quarantined(d); k != (initiator.QuarantineStatus{Total: 1}) {
				t.Errorf("in quarantine when the target is out: %+v", k)
			}
		})
	}
}

// TestPoolOfResentRequests: requests are resent from another pool than the
// one that a target of before is inside, with their payload, and no answer can
// be overwritten.
func TestPoolOfResentRequests(t *testing.T) {
	var x stopping
	d := x.attach(t, lasting(initiator.Forever))
	q := open(t, d, 8)
	const n = 64 << 10
	held := reserved(t, q, block.Read, answered, n, 0x55)
	submit(t, q, held)
	wantAll(t, q, 1, 0)
	bounced := request(block.Write, 0, n)
	fillWith(bounced.Data, 0x10)
	w := reserved(t, q, block.Write, n, n, 0x11)
	r := reserved(t, q, block.Read, 2*n, n, 0x12)
	small := reserved(t, q, block.Write, 3*n, 512, 0x14)
	later := reserved(t, q, block.Write, 4*n, n, 0x13)
	submit(t, q, bounced, w, r, small)
	x.heard(t, 1, 4)
	region := x.commands(1)[2].region
	if !contains(region, r.Data) {
		t.Fatal("the read is not in the pool")
	}
	x.late.occupy(region)
	x.cut(t, q)
	fillWith(later.Data, 0x13) // its owner goes on
	submit(t, q, later)
	wantAll(t, q, 6, 0)
	for _, s := range x.commands(2) {
		if s.region == region {
			t.Errorf("%v at %d names memory that a target of before is inside", s.cmd.Opcode, s.cmd.Offset)
		}
		if s.cmd.Opcode == wire.OpWrite && s.cmd.NumSegments > 0 && !filledWith(s.payload, 0x10+byte(s.cmd.Offset/n)) && s.cmd.Offset != 4*n ||
			s.cmd.Offset == 4*n && !filledWith(s.payload, 0x13) {
			t.Errorf("the payload at %d changed on its way to another pool", s.cmd.Offset)
		}
	}
	if !filledWith(r.Data, 0) || !filledWith(held.Data, 0) {
		t.Error("the reads do not have what the target sent")
	}
	for i, b := 0, region.Bytes(); i < 1<<20; i += n { // the late copy, but for what was answered before
		if &b[i] != &held.Data[0] {
			fillWith(b[i:i+n], 0xee)
		}
	}
	if !filledWith(r.Data, 0) || !filledWith(held.Data, 0) {
		t.Error("the late copy changed a read that was answered")
	}
	x.late.exit()
	if k := quarantined(d); k.Pools != 1 {
		t.Errorf("a pool whose buffers are out is gone: %+v", k)
	}
	for _, r := range []*block.Request{held, w, r, small, later} {
		q.Release(r)
	}
	if k := quarantined(d); k.Pools != 0 || k.Bytes != 0 {
		t.Errorf("in quarantine when the target is out and all is released: %+v", k)
	}
}

// TestMemoryOfCallersWaits: a request in memory of its caller's that a target
// is inside is neither completed nor resent before the target is out.
func TestMemoryOfCallersWaits(t *testing.T) {
	for name, c := range map[string]struct {
		change func(*initiator.Config)
		sticky bool
		want   syscall.Errno
	}{
		"fails at once":                {failingFast, true, syscall.EIO},
		"fails after the loss timeout": {lasting(50 * time.Millisecond), true, syscall.EIO},
		"goes on":                      {lasting(initiator.Forever), false, 0},
	} {
		t.Run(name, func(t *testing.T) {
			x := stopping{sticky: c.sticky}
			d := x.attach(t, func(cfg *initiator.Config) {
				c.change(cfg)
				cfg.CopyMode = regcache.CopyZero
			})
			q := open(t, d, 8)
			mine, err := d.Alloc(128 << 10)
			must(t, err)
			defer d.Free(mine)
			w := &block.Request{Op: block.Write, Length: 64 << 10, Data: mine[:64<<10]}
			r := &block.Request{Op: block.Read, Offset: 1 << 20, Length: 64 << 10, Data: mine[64<<10:]}
			other := reserved(t, q, block.Write, 2<<20, 64<<10, 1)
			submit(t, q, w, r, other)
			x.heard(t, 1, 3)
			region := x.commands(1)[0].region
			if !contains(region, mine) {
				t.Fatal("the write was copied")
			}
			x.late.occupy(region)
			x.cut(t, q)
			wantAll(t, q, 2, c.want) // the others
			for range 20 {
				if q.Reap(make([]*block.Request, 1)) != 0 {
					t.Fatal("a request ends while the target is inside its memory")
				}
				must(t, nap(q))
			}
			if k := quarantined(d); k != (initiator.QuarantineStatus{Requests: 2, Total: 2}) {
				t.Errorf("in quarantine: %+v", k)
			}
			for _, s := range x.commands(2) {
				if s.region == region {
					t.Error("a request was resent while the target is inside its memory")
				}
			}
			x.late.exit()
			wantAll(t, q, 2, c.want)
			if k := quarantined(d); k != (initiator.QuarantineStatus{Total: 2}) {
				t.Errorf("in quarantine when the target is out: %+v", k)
			}
			q.Release(other)
		})
	}
}

// TestQuarantineIsBounded: with too much memory in quarantine a queue gets no
// more, and goes on when some is free.
func TestQuarantineIsBounded(t *testing.T) {
	const size = 128 << 10
	var x stopping
	d := x.attach(t, func(c *initiator.Config) {
		lasting(initiator.Forever)(c)
		c.ReconnectDelay, c.PoolBytes = time.Millisecond, size
	})
	q := open(t, d, 4)
	w := request(block.Write, 0, 64<<10)
	lose := func() {
		t.Helper()
		session := x.sessions.Load()
		r := reserved(t, q, block.Read, 0, 8192, 0)
		x.late.occupy(x.late.region(addressOf(r.Data)))
		q.Release(r)
		x.cut(t, q)
		if quarantined(d).Pools >= 7 {
			submit(t, q, w)
		}
		waitFor(t, "a session", func() bool { q.Reap(nil); return x.sessions.Load() > session })
	}
	for i := 1; i <= 8; i++ {
		lose()
		if k := quarantined(d); k.Pools != i || k.Bytes != int64(i)*size {
			t.Fatalf("in quarantine after %d losses: %+v", i, k)
		}
		if i < 8 {
			wantAll(t, q, 1, 0)
		}
	}
	wantAll(t, q, 1, 0) // the one that needs no memory
	for range 10 {
		if q.Reap(make([]*block.Request, 1)) != 0 {
			t.Fatal("a request got memory beyond the limit")
		}
		must(t, nap(q))
	}
	if q.Reserve(&block.Request{Op: block.Write, Length: 8192}) {
		t.Error("a reservation got memory beyond the limit")
	}
	x.late.exit()
	wantAll(t, q, 1, 0)
	q.Release(reserved(t, q, block.Write, 0, 8192, 1))
}

// TestCloseWithTargetInside ends in time. It tells the owner of memory that the
// target is inside; the pool stays until the target is out, or unmapped with
// the device.
func TestCloseWithTargetInside(t *testing.T) {
	x := stopping{sticky: true}
	d := x.attach(t, func(c *initiator.Config) { c.CopyMode, c.Timeout = regcache.CopyZero, time.Second })
	q, err := d.NewQueue(8)
	must(t, err)
	mine, err := d.Alloc(64 << 10)
	must(t, err)
	r := reserved(t, q, block.Write, 1<<20, 64<<10, 1)
	submit(t, q, &block.Request{Op: block.Write, Length: 64 << 10, Data: mine}, r)
	x.heard(t, 1, 2)
	for _, s := range x.commands(1) {
		x.late.occupy(s.region)
	}
	if err := q.Close(); !errors.Is(err, via.ErrStillAccessed) {
		t.Errorf("close: %v", err)
	}
	if k := quarantined(d); k.Pools != 1 || k.Requests != 0 || k.Total != 2 {
		t.Errorf("in quarantine: %+v", k)
	}
	must(t, d.Free(mine))
	must(t, d.Close())
	if k := quarantined(d); k.Pools != 0 || k.Bytes != 0 {
		t.Errorf("in quarantine after the device was closed: %+v", k)
	}
	x.late.exit()
}

// TestCloseWithTargetInsideCall: the device closes in time. The call ends when
// the target is out.
func TestCloseWithTargetInsideCall(t *testing.T) {
	x := stopping{sticky: true, millis: 200}
	d := x.attach(t, func(c *initiator.Config) {
		lasting(initiator.Forever)(c)
		c.CopyMode, c.Timeout = regcache.CopyZero, time.Second
	})
	mine, err := d.Alloc(64 << 10)
	must(t, err)
	ended := make(chan error, 1)
	go func() {
		_, err := d.WriteAt(mine, 0)
		ended <- err
	}()
	x.late.occupy(x.heard(t, 1, 1))
	x.ending.Store(true)
	if err := d.Close(); !errors.Is(err, via.ErrStillAccessed) {
		t.Errorf("close: %v", err)
	}
	select {
	case err := <-ended:
		t.Errorf("the call ended while the target is inside its memory: %v", err)
	default:
	}
	x.late.exit()
	if err := <-ended; block.Errno(err) != syscall.EIO {
		t.Errorf("the call: %v", err)
	}
	must(t, d.Free(mine))
	waitFor(t, "the queues", func() bool { return d.Status().Queues == 0 && d.Close() == nil })
}
