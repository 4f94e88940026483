package history

import (
	"errors"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// checkLimit bounds a check that must be decided.
const checkLimit = time.Minute

// of makes a history of operations.
func of(operations ...Operation) *History {
	h := New()
	h.Add(operations...)
	return h
}

func write(client int, value uint64, call, end int64) Operation {
	return Operation{Client: client, Block: 7, Write: true, Value: value, Call: call, Return: end}
}

func read(client int, value uint64, call, end int64) Operation {
	return Operation{Client: client, Block: 7, Value: value, Call: call, Return: end}
}

func lost(o Operation) Operation {
	o.Lost = true
	return o
}

func TestLinearizableHistories(t *testing.T) {
	for name, h := range map[string]*History{
		"nothing":                    of(),
		"new disk":                   of(read(0, 0, 1, 2)),
		"write, read":                of(write(0, 1, 1, 2), read(1, 1, 3, 4)),
		"read sees a write early":    of(write(0, 1, 1, 9), read(1, 1, 2, 3), read(2, 1, 4, 5)),
		"read sees a write late":     of(write(0, 1, 1, 9), read(1, 0, 2, 3), read(2, 1, 4, 5)),
		"writes at once":             of(write(0, 1, 1, 9), write(1, 2, 1, 9), read(2, 1, 10, 11)),
		"lost write without effect":  of(lost(write(0, 1, 1, 2)), read(1, 0, 3, 4)),
		"lost write has effect late": of(lost(write(0, 1, 1, 2)), read(1, 0, 3, 4), read(1, 1, 5, 6)),
		"other block":                of(write(0, 1, 1, 2), Operation{Client: 1, Block: 8, Call: 3, Return: 4}),
	} {
		if err := h.Check(checkLimit); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestViolationsAreFound(t *testing.T) {
	for name, h := range map[string]*History{
		"value that no client wrote": of(read(0, 5, 1, 2)),
		"stale read":                 of(write(0, 1, 1, 2), write(0, 2, 3, 4), read(1, 1, 5, 6)),
		"lost update":                of(write(0, 1, 1, 2), read(1, 0, 3, 4)),
		"time goes back":             of(write(0, 1, 1, 9), read(1, 1, 2, 3), read(2, 0, 4, 5)),
		"readers disagree":           of(write(0, 1, 1, 9), write(1, 2, 1, 9), read(2, 1, 10, 11), read(3, 2, 12, 13)),
		"lost write, then undone":    of(lost(write(0, 1, 1, 2)), read(1, 1, 3, 4), read(1, 0, 5, 6)),
		"lost write before a call":   of(lost(write(0, 1, 5, 6)), read(1, 1, 1, 2)),
	} {
		for _, h := range []*History{h, replayed(t, h)} {
			var v *Violation
			if err := h.Check(checkLimit); !errors.As(err, &v) || v.Block != 7 || v.Operations != len(h.Operations()) {
				t.Errorf("%s: %v", name, err)
				continue
			}
			page := filepath.Join(t.TempDir(), "page.html")
			if err := v.Visualize(page); err != nil {
				t.Errorf("%s: %v", name, err)
			}
			if text, err := os.ReadFile(page); err != nil || !strings.Contains(string(text), "of client 0") {
				t.Errorf("%s: a page of %d bytes, %v", name, len(text), err)
			}
		}
	}
}

// replayed saves a history and returns what comes back.
func replayed(t *testing.T, h *History) *History {
	t.Helper()
	path := filepath.Join(t.TempDir(), "history")
	if err := h.Save(path); err != nil {
		t.Fatal(err)
	}
	again, err := Replay(path)
	if err != nil {
		t.Fatal(err)
	}
	if got, want := again.Operations(), h.Operations(); !reflect.DeepEqual(got, want) {
		t.Errorf("%v came back as %v", want, got)
	}
	return again
}

func TestReplayRefuses(t *testing.T) {
	path := filepath.Join(t.TempDir(), "history")
	for _, text := range []string{"{", "[]", `{"call":2,"return":1}`} {
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if h, err := Replay(path); err == nil {
			t.Errorf("%s is %v", text, h.Operations())
		}
	}
}

func TestNoTimeToCheck(t *testing.T) {
	h := New()
	for client := range 64 { // at once, and then a value that was not read
		h.Add(write(client, uint64(client+1), 1, 1<<20), read(client+64, uint64(client+1), 1, 1<<20))
	}
	h.Add(read(128, 1<<40, 1, 1<<20))
	if err := h.Check(time.Nanosecond); !errors.Is(err, ErrUndecided) {
		t.Errorf("got %v", err)
	}
}

// memory is a disk in memory. Every lazy-th block that is read is the one
// before the last write, if that is not 0.
type memory struct {
	mu     sync.Mutex
	now    []byte
	before []byte
	lazy   int
	reads  int
	fail   error // of writes, which have their effect
}

func newMemory(blocks int) *memory {
	return &memory{now: make([]byte, blocks*BlockSize), before: make([]byte, blocks*BlockSize)}
}

func (m *memory) ReadAt(p []byte, at int64) (int, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for b := 0; b < len(p); b += BlockSize {
		from := m.now
		if m.reads++; m.lazy > 0 && m.reads%m.lazy == 0 {
			from = m.before
		}
		copy(p[b:][:BlockSize], from[at+int64(b):])
	}
	return len(p), nil
}

func (m *memory) WriteAt(p []byte, at int64) (int, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	copy(m.before[at:][:len(p)], m.now[at:])
	copy(m.now[at:], p)
	return len(p), m.fail
}

var load = Load{Blocks: 8, Longest: 4, Requests: 200, Clients: 4, Seed: 1}

func TestLoadOfGoodDisk(t *testing.T) {
	m, h := newMemory(load.Blocks), New()
	if err := load.Run(h, 0, m, m); err != nil {
		t.Fatal(err)
	}
	if err := load.Run(h, 8, m); err != nil { // goes on where the first has ended
		t.Fatal(err)
	}
	if err := h.Check(checkLimit); err != nil {
		t.Error(err)
	}
	writes, clients := make(map[uint64]bool), make(map[int]int)
	for _, o := range h.Operations() {
		clients[o.Client]++
		if o.Write && writes[o.Value] {
			t.Errorf("%v happened twice", o)
		}
		writes[o.Value] = writes[o.Value] || o.Write
	}
	if len(clients) != 12 || len(writes) < 12*50 {
		t.Errorf("%d clients made %d writes", len(clients), len(writes))
	}
}

func TestLoadOfStaleDisk(t *testing.T) {
	m, h := newMemory(load.Blocks), New()
	m.lazy = 100
	if err := load.Run(h, 0, m); err != nil {
		t.Fatal(err)
	}
	var v *Violation
	if err := h.Check(checkLimit); !errors.As(err, &v) {
		t.Errorf("got %v", err)
	}
}

// A disk that fails may have written: the clients after it find that out.
func TestLoadOfDiskThatFails(t *testing.T) {
	m, h := newMemory(load.Blocks), New()
	if err := load.Run(h, 0, m); err != nil {
		t.Fatal(err)
	}
	m.fail = errors.New("gone")
	if err := load.Run(h, 4, m); !errors.Is(err, m.fail) {
		t.Fatalf("got %v", err)
	}
	lost := 0
	for _, o := range h.Operations() {
		if o.Lost {
			lost++
		}
	}
	if lost < 4 {
		t.Errorf("%d writes are lost", lost)
	}
	m.fail = nil
	if err := load.Run(h, 8, m); err != nil {
		t.Fatal(err)
	}
	if err := h.Check(checkLimit); err != nil {
		t.Error(err)
	}
}

func TestTornBlock(t *testing.T) {
	b := make([]byte, BlockSize)
	Fill(b, 7)
	if v, err := Value(b); v != 7 || err != nil {
		t.Errorf("%d, %v", v, err)
	}
	Fill(b[512:], 8)
	if v, err := Value(b); !errors.Is(err, ErrTorn) {
		t.Errorf("%d, %v", v, err)
	}
	m := newMemory(1)
	copy(m.now, b)
	err := (Load{Blocks: 1, Longest: 1, Requests: 100, Clients: 1}).Run(New(), 0, &torn{m})
	if !errors.Is(err, ErrTorn) {
		t.Errorf("got %v", err)
	}
}

// torn is a disk that tears a block in every read.
type torn struct{ *memory }

func (d *torn) ReadAt(p []byte, at int64) (int, error) {
	n, err := d.memory.ReadAt(p, at)
	p[0] ^= 1
	return n, err
}
