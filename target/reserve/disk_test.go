package reserve

import (
	"errors"
	"syscall"
	"testing"
	"time"

	"github.com/viablk/viablk/internal/block"
	"github.com/viablk/viablk/internal/sched"
)

// bare is a device without an identity.
type bare struct{ block.Device }

func newDisk() *Disk { return New(bare{}, nil) }

// TestModes: which clients a disk has at a time.
func TestModes(t *testing.T) {
	for _, c := range []struct {
		has, wants Mode
		refused    bool
	}{
		{ReadOnly, ReadOnly, false},
		{ReadOnly, ReadWrite, false},
		{ReadOnly, Exclusive, true},
		{ReadWrite, ReadOnly, false},
		{ReadWrite, ReadWrite, true},
		{ReadWrite, Exclusive, true},
		{Exclusive, ReadOnly, true},
		{Exclusive, ReadWrite, true},
		{Exclusive, Exclusive, true},
	} {
		d := newDisk()
		if rule := d.Rule(); rule != NoReservation {
			t.Errorf("rule %q of a disk without clients", rule)
		}
		if _, err := d.Reserve(Request{Client: "a", Mode: c.has}); err != nil {
			t.Fatal(err)
		}
		if want := [...]Rule{NoReservation, WriteExclusive, ExclusiveAccess}[c.has]; d.Rule() != want {
			t.Errorf("%v: rule %q, want %q", c.has, d.Rule(), want)
		}
		if _, err := d.Reserve(Request{Client: "a", Mode: c.wants}); err != nil {
			t.Errorf("%v, then %v for the same client: %v", c.has, c.wants, err)
			continue
		}
		d = newDisk()
		a, err := d.Reserve(Request{Client: "a", Mode: c.has})
		if err != nil {
			t.Fatal(err)
		}
		_, err = d.Reserve(Request{Client: "b", Mode: c.wants})
		if errors.Is(err, ErrBusy) != c.refused || err != nil && !c.refused {
			t.Errorf("%v, then %v for another client: %v", c.has, c.wants, err)
		}
		a.Release()
		a.Release()
		if c.refused {
			if _, err := d.Reserve(Request{Client: "b", Mode: c.wants}); err != nil {
				t.Errorf("%v after a release of %v: %v", c.wants, c.has, err)
			}
		}
	}
}

// TestPreempt: the client in the way is ended, keeps the disk until it has
// left, and does not get it back before the other client has it.
func TestPreempt(t *testing.T) {
	d := newDisk()
	var endedBy string
	a, err := d.Reserve(Request{Client: "a", Writer: [16]byte{'a'}, Mode: ReadWrite, End: func(by string) { endedBy = by }})
	if err != nil || a.BeforeWrite() != nil {
		t.Fatal(err)
	}
	was := a.Generation()
	b := Request{Client: "b", Name: "b", Writer: [16]byte{'b'}, Mode: ReadWrite, Preempt: true}
	if _, err := d.Reserve(b); !errors.Is(err, ErrPreempting) || endedBy != "b" {
		t.Fatalf("preempt: %v, ended by %q", err, endedBy)
	}
	if _, err := d.Reserve(b); !errors.Is(err, ErrPreempting) {
		t.Errorf("preempt while the other has requests in flight: %v", err)
	}
	a.Release()
	if _, err := d.Reserve(Request{Client: "a2", Writer: [16]byte{'a'}, Mode: ReadWrite, Return: true, Generation: was}); !errors.Is(err, ErrBusy) {
		t.Errorf("the preempted client comes back first: %v", err)
	}
	got, err := d.Reserve(b)
	if err != nil {
		t.Fatal(err)
	}
	got.Release()
	if _, err := d.Reserve(Request{Client: "a3", Writer: [16]byte{'a'}, Mode: ReadWrite, Return: true, Generation: was}); !errors.Is(err, ErrConflict) {
		t.Errorf("the preempted client comes back after a client that wrote nothing: %v", err)
	}
}

// TestReturn: a writer comes back unless another one wrote in between.
func TestReturn(t *testing.T) {
	a, b := [16]byte{'a'}, [16]byte{'b'}
	for name, c := range map[string]struct {
		aWrites, bComes, bWrites bool
		refused                  bool
	}{
		"alone":                         {true, false, false, false},
		"a reader, alone":               {false, false, false, false},
		"after one that only looked":    {true, true, false, false},
		"after a writer":                {true, true, true, true},
		"a reader's cache, and a write": {false, true, true, true},
	} {
		t.Run(name, func(t *testing.T) {
			d := newDisk()
			generation := use(t, d, a, c.aWrites)
			if c.bComes {
				use(t, d, b, c.bWrites)
			}
			_, err := d.Reserve(Request{Client: "again", Writer: a, Mode: ReadWrite, Return: true, Generation: generation})
			if errors.Is(err, ErrConflict) != c.refused || err != nil && !c.refused {
				t.Errorf("%v", err)
			}
		})
	}
}

// use reserves the disk for a client, which may write, and returns the writer
// generation that it found.
func use(t *testing.T, d *Disk, writer [16]byte, writes bool) uint64 {
	t.Helper()
	r, err := d.Reserve(Request{Client: writer, Writer: writer, Mode: ReadWrite})
	if err != nil {
		t.Fatal(err)
	}
	defer r.Release()
	generation := r.Generation()
	if writes {
		if err := r.BeforeWrite(); err != nil {
			t.Fatal(err)
		}
	}
	return generation
}

// TestReturnOfEarlierWriter: a writer that wrote before a client came, and
// again while that client was away, is another writer for it, in the same
// process of the target and in the next.
func TestReturnOfEarlierWriter(t *testing.T) {
	a, b := [16]byte{'a'}, [16]byte{'b'}
	for _, restarted := range []bool{false, true} {
		d := newDisk()
		use(t, d, b, true)
		generation := use(t, d, a, false)
		if restarted {
			d = &Disk{identity: d.identity}
		}
		use(t, d, b, true)
		_, err := d.Reserve(Request{Client: "again", Writer: a, Mode: ReadWrite, Return: true, Generation: generation})
		if !errors.Is(err, ErrConflict) {
			t.Errorf("restarted %v: a client comes back after a writer that was there before it: %v", restarted, err)
		}
	}
}

// TestNBD: NBD clients write together, and read while another client writes.
func TestNBD(t *testing.T) {
	d := newDisk()
	end := func(string) {}
	one, err := d.NBD("one", false, end)
	if err != nil || one.ReadOnly() {
		t.Fatal(err)
	}
	two, err := d.NBD("two", false, end)
	if err != nil || two.ReadOnly() {
		t.Errorf("the second NBD client: %v", err)
	}
	via := Request{Client: "via", Writer: [16]byte{'v'}, Mode: ReadWrite}
	if _, err := d.Reserve(via); !errors.Is(err, ErrBusy) {
		t.Errorf("another writer beside NBD clients: %v", err)
	}
	one.Release()
	two.Release()
	v, err := d.Reserve(via)
	if err != nil {
		t.Fatal(err)
	}
	three, err := d.NBD("three", false, end)
	if err != nil || !three.ReadOnly() {
		t.Errorf("an NBD client beside a writer: %v", err)
	}
	if n := len(d.Clients()); n != 2 {
		t.Errorf("%d clients", n)
	}
	three.Release()
	v.Release()
	if _, err := d.Reserve(Request{Client: "all", Mode: Exclusive}); err != nil {
		t.Fatal(err)
	}
	if _, err := d.NBD("four", false, end); !errors.Is(err, ErrBusy) {
		t.Errorf("an NBD client beside an exclusive one: %v", err)
	}
}

// clock is a scheduler whose time the test sets.
type clock struct {
	sched.Scheduler
	now time.Time
}

func (c *clock) Now() time.Time { return c.now }

// TestPreemptorHasToCome: a disk that was preempted waits for the client that
// did it for a time, and no longer.
func TestPreemptorHasToCome(t *testing.T) {
	c := &clock{Scheduler: sched.Real, now: time.Unix(1, 0)}
	d := New(bare{}, c)
	writer, err := d.Reserve(Request{Client: 1, Mode: ReadWrite})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := d.Reserve(Request{Client: 2, Mode: ReadWrite, Preempt: true}); !errors.Is(err, ErrPreempting) {
		t.Fatalf("preempt: %v", err)
	}
	writer.Release()
	other := Request{Client: 3, Mode: ReadWrite}
	c.now = c.now.Add(preemptTime)
	if _, err := d.Reserve(other); !errors.Is(err, ErrBusy) {
		t.Errorf("another client while the disk waits: %v", err)
	}
	c.now = c.now.Add(1)
	if _, err := d.Reserve(other); err != nil {
		t.Errorf("another client after that: %v", err)
	}
}

// TestRetire: a retired disk gets no client more, and is idle once, when the
// last client has left.
func TestRetire(t *testing.T) {
	d, idle := newDisk(), 0
	if left := d.Retire(func() { idle++ }); idle != 1 || len(left) != 0 {
		t.Errorf("idle %d times without a client; left are %v", idle, left)
	}
	d, idle = newDisk(), 0
	a, err := d.Reserve(Request{Client: "a", Name: "alice", Mode: ReadWrite})
	if err != nil {
		t.Fatal(err)
	}
	b, err := d.Reserve(Request{Client: "b", Name: "bob", Mode: ReadOnly})
	if err != nil {
		t.Fatal(err)
	}
	if left := d.Retire(func() { idle++ }); len(left) != 2 || left[0].Name != "alice" {
		t.Errorf("left are %v", left)
	}
	for _, q := range []Request{{Client: "a", Mode: ReadOnly}, {Client: "c", Mode: ReadOnly}, {Client: "c", Mode: Exclusive, Preempt: true}} {
		if _, err := d.Reserve(q); !errors.Is(err, ErrRetired) {
			t.Errorf("%+v of a retired disk: %v", q, err)
		}
	}
	a.Release()
	a.Release()
	if idle != 0 {
		t.Error("idle although a client has it")
	}
	b.Release()
	b.Release()
	if idle != 1 {
		t.Errorf("idle %d times", idle)
	}
}

// revocable is the identity of a disk that another process can take over.
type revocable struct {
	block.Identity
	cause error
}

func (r *revocable) Revoked() error { return r.cause }

// identified is a device with an identity.
type identified struct {
	block.Device
	identity block.Identity
}

func (i identified) Identity() block.Identity { return i.identity }

// TestRevoked: a disk that another process has taken over has no new clients,
// not even those that return.
func TestRevoked(t *testing.T) {
	identity := &revocable{Identity: block.NewIdentity()}
	d := New(identified{identity: identity}, nil)
	a, err := d.Reserve(Request{Client: "a", Mode: ReadWrite})
	if err != nil {
		t.Fatal(err)
	}
	a.Release()
	identity.cause = syscall.ESHUTDOWN
	for _, q := range []Request{
		{Client: "a", Mode: ReadWrite, Return: true}, {Client: "b", Mode: ReadOnly}, {Client: "c", Mode: ReadWrite, Preempt: true},
	} {
		if _, err := d.Reserve(q); block.Errno(err) != syscall.ESHUTDOWN {
			t.Errorf("%v: %v", q.Client, err)
		}
	}
	if _, err := d.NBD("n", true, nil); block.Errno(err) != syscall.ESHUTDOWN {
		t.Errorf("an NBD client: %v", err)
	}
}
