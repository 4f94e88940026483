// Package sleepflag tells other processes which threads of this one sleep: a
// peer that has work for a sleeping thread wakes it with a system call, once in
// each sleep, and a thread that runs needs none.
//
// The flags of a process are words of one page, which it alone can write and
// which it passes to its peers:
//
//	page = flag │ flag │ …, each 64 bytes
//	flag = u64: sleeps << 1 | asleep
//
// A thread sets its flag, then polls for work again before it sleeps: so it
// finds the work of a peer that loaded the flag before.
package sleepflag

import (
	"errors"
	"fmt"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/viablk/viablk/internal/memfd"
)

const (
	// Flags is how many a page has.
	Flags = 64

	// Size of a page, in bytes.
	Size = Flags * flagSize

	flagSize = 64
	asleep   = 1
)

// Page is the flags of a process. Its methods are safe for concurrent use.
type Page struct {
	mem []byte
	fd  int

	mu sync.Mutex
	// +checklocks:mu
	used [Flags]bool
}

// Process returns the page of this process, which exists from the first call
// on.
var Process = sync.OnceValues(newPage)

func newPage() (*Page, error) {
	mem, fd, err := memfd.Create("viablk-sleepflags", Size, unix.F_SEAL_FUTURE_WRITE)
	if err != nil {
		return nil, fmt.Errorf("create page of sleep flags: %w", err)
	}
	return &Page{mem: mem, fd: fd}, nil
}

// FD returns the descriptor of the page, which stays the page's.
func (p *Page) FD() int { return p.fd }

// ErrNone is the error of a page whose flags are all taken.
var ErrNone = errors.New("all sleep flags are taken")

// Acquire returns a flag that is free, of a thread that is awake.
func (p *Page) Acquire() (*Flag, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for i := range p.used {
		if !p.used[i] {
			p.used[i] = true
			return &Flag{page: p, index: i, word: Load(p.mem, i) &^ asleep}, nil
		}
	}
	return nil, ErrNone
}

// Flag is one of a page, for one thread at a time.
type Flag struct {
	page  *Page
	index int
	word  uint64
}

// Index is the place of the flag in its page.
func (f *Flag) Index() int { return f.index }

// Sleep says that the thread sleeps. Later loads see all stores of a peer that
// loads the flag before this call.
func (f *Flag) Sleep() {
	f.word += 2
	store(f.page.mem, f.index, f.word|asleep)
}

// Wake says that the thread is awake, in the same order.
func (f *Flag) Wake() { store(f.page.mem, f.index, f.word) }

// Release gives the flag back. The thread is awake.
func (f *Flag) Release() {
	f.page.mu.Lock()
	defer f.page.mu.Unlock()
	f.page.used[f.index] = false
}

// Asleep reports whether a flag, as Load returned it, says that its thread
// sleeps. No two sleeps of a thread have the same value.
func Asleep(flag uint64) bool { return flag&asleep != 0 }
