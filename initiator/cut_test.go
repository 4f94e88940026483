package initiator_test

import (
	"bytes"
	"cmp"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/viablk/viablk/initiator"
	"github.com/viablk/viablk/internal/block"
	"github.com/viablk/viablk/internal/wire"
	"github.com/viablk/viablk/target"
)

// TestCutRequests: long requests are cut on blocks into commands as long as the
// target takes, with few credits and memory that others have reserved.
func TestCutRequests(t *testing.T) {
	const odd = 100_000 // no multiple of a block
	r := newRemote(t, target.Config{}, "memory:6GiB", fileSpec(t, 6<<30))
	for _, export := range []string{"a", "b"} {
		d := r.dial(t, export, func(c *initiator.Config) { c.MaxIO = odd })
		q := open(t, d, 3)
		long := request(block.Write, 4096, 64<<20)
		pattern(long.Data, 1)
		submit(t, q, long)
		wantAll(t, q, 1, 0)
		back := &block.Request{Op: block.Read, Offset: 4096, Length: 64 << 20}
		if !q.Reserve(back) {
			t.Fatal("nothing is reserved of an idle queue")
		}
		small := request(block.Read, 4096, 5000)
		submit(t, q, back, small, request(block.Flush, 0, 0))
		wantAll(t, q, 3, 0)
		if !bytes.Equal(back.Data, long.Data) || !bytes.Equal(small.Data, long.Data[:5000]) {
			t.Error("other data than written")
		}
		q.Release(back)
		for _, op := range []block.Op{block.Trim, block.WriteZeroes} {
			for _, flags := range []block.Flags{0, block.FUA} {
				x := request(op, 4096, 5<<30) // above what fits 32 bits
				x.Flags = flags
				submit(t, q, x)
				wantAll(t, q, 1, 0)
			}
		}
		zero := request(block.Read, 4096, 4096)
		submit(t, q, zero)
		wantAll(t, q, 1, 0)
		if !bytes.Equal(zero.Data, make([]byte, 4096)) {
			t.Error("zeroes are not")
		}
	}
}

// TestCommandsEndOnBlocks, whatever a target takes in one command, and what
// goes inside a message is one command.
func TestCommandsEndOnBlocks(t *testing.T) {
	var mu sync.Mutex
	var bad []string
	s := newStage(t, play{
		login: func(e *end, q *wire.LoginRequest, a *wire.LoginResponse) bool {
			a.MaxIO, a.InlineMax = 5000, 8192
			e.sendControl(a)
			return true
		},
		command: func(e *end, cmd *wire.Command, _ []byte) bool {
			if cmd.Offset%512 != 0 || cmd.Length%512 != 0 || cmd.Length > 5000 || cmd.Mode == wire.ModeInline && cmd.Length > 4608 {
				mu.Lock()
				bad = append(bad, fmt.Sprintf("%v, mode %d: %d bytes at %d", cmd.Opcode, cmd.Mode, cmd.Length, cmd.Offset))
				mu.Unlock()
			}
			e.answer(cmd)
			return true
		},
	})
	q := open(t, s.dial(t), 4)
	for _, op := range []block.Op{block.Read, block.Write} {
		for _, n := range []int64{512, 4608, 5120, 8192, 64 << 10} {
			x := &block.Request{Op: op, Length: n}
			if !q.Reserve(x) {
				t.Fatal("not reserved")
			}
			submit(t, q, x, request(op, 512, n))
			wantAll(t, q, 2, 0)
			if int64(len(x.Data)) != n {
				t.Errorf("%v of %d bytes has data of %d", op, n, len(x.Data))
			}
			q.Release(x)
		}
	}
	mu.Lock()
	defer mu.Unlock()
	for _, b := range bad {
		t.Error(b)
	}
}

// TestCommandsEndBetweenAtomicBlocks: a request that does not begin on a 4 KiB
// block of the disk is cut on one all the same, wherever its memory is.
func TestCommandsEndBetweenAtomicBlocks(t *testing.T) {
	type part struct{ off, end uint64 }
	var mu sync.Mutex
	var parts []part
	s := newStage(t, play{
		login: func(e *end, q *wire.LoginRequest, a *wire.LoginResponse) bool {
			a.MaxIO, a.InlineMax = 10_000, 512
			e.sendControl(a)
			return true
		},
		command: func(e *end, cmd *wire.Command, _ []byte) bool {
			mu.Lock()
			parts = append(parts, part{cmd.Offset, cmd.Offset + uint64(cmd.Length)})
			mu.Unlock()
			e.answer(cmd)
			return true
		},
	})
	q := open(t, s.dial(t), 4)
	for _, op := range []block.Op{block.Read, block.Write, block.Trim} {
		for _, off := range []int64{0, 512, 3584, 4608, 100_352} {
			for _, reserve := range []bool{false, true} {
				x := request(op, off, 70_144)
				if op == block.Trim {
					x.Length = 5 << 30
				}
				if reserve {
					x.Data = nil
					if !q.Reserve(x) {
						t.Fatal("not reserved")
					}
				}
				mu.Lock()
				parts = parts[:0]
				mu.Unlock()
				submit(t, q, x)
				wantAll(t, q, 1, 0)
				q.Release(x)
				mu.Lock()
				slices.SortFunc(parts, func(a, b part) int { return cmp.Compare(a.off, b.off) })
				at := uint64(off)
				for _, p := range parts {
					if p.off != at || p.off != uint64(off) && p.off%block.AtomicUnit != 0 {
						t.Errorf("%v of %d bytes at %d: a command begins at %d", op, x.Length, off, p.off)
					}
					at = p.end
				}
				if at != uint64(off+x.Length) || len(parts) < 2 {
					t.Errorf("%v of %d bytes at %d: %d commands up to %d", op, x.Length, off, len(parts), at)
				}
				mu.Unlock()
			}
		}
	}
}

// TestMemoryThatIsReleasedLetsOthersGoOn: a request that waits for memory which
// the owner has reserved starts when the owner releases it, with no other help.
func TestMemoryThatIsReleasedLetsOthersGoOn(t *testing.T) {
	r := newRemote(t, target.Config{KeepAlive: time.Hour}, "memory:80MiB")
	q := open(t, r.dial(t, "a", nil), 4)
	var reserved [2]*block.Request // all there is
	for i := range reserved {
		reserved[i] = &block.Request{Op: block.Write, Length: 64 << 20}
		if !q.Reserve(reserved[i]) {
			t.Fatal("not reserved")
		}
	}
	if extra := (&block.Request{Op: block.Write, Length: 64 << 20}); q.Reserve(extra) {
		t.Fatal("more is reserved than there is")
	}
	submit(t, q, request(block.Write, 0, 64<<10))
	if n := q.Reap(make([]*block.Request, 1)); n != 0 {
		t.Fatal("the request did not wait")
	}
	q.Release(reserved[0])
	if _, ok := q.Arm(); ok {
		timeout := unix.NsecToTimespec(int64(testTimeout))
		if n, err := unix.Ppoll([]unix.PollFd{{Fd: int32(q.FD()), Events: unix.POLLIN}}, &timeout, nil); n != 1 {
			t.Fatalf("the queue sleeps although the request could start: %v", err)
		}
	}
	wantAll(t, q, 1, 0)
	q.Release(reserved[1])
}

// TestReadsThatAreHeld: the receive of a small Read is its owner's until
// Release, and so is its credit; the others go on with what is left.
func TestReadsThatAreHeld(t *testing.T) {
	r := newRemote(t, target.Config{KeepAlive: time.Hour}, "memory:16MiB")
	d := r.dial(t, "a", func(c *initiator.Config) { c.Depth = 2 })
	data := make([]byte, 64<<10)
	pattern(data, 9)
	_, err := d.WriteAt(data, 0)
	must(t, err)
	q := open(t, d, 8)
	var rs []*block.Request
	for i := range 8 {
		x := &block.Request{Op: block.Read, Offset: int64(i) * 4096, Length: 4096}
		if !q.Reserve(x) {
			t.Fatal("not reserved")
		}
		rs = append(rs, x)
	}
	submit(t, q, rs...)
	for range 4 { // two are answered and held, then they are released
		got, err := reap(q, 2)
		must(t, err)
		if n := q.Reap(make([]*block.Request, 1)); n != 0 {
			t.Fatal("an answer came without a credit")
		}
		for _, x := range got {
			if x.Err != nil || !bytes.Equal(x.Data, data[x.Offset:x.Offset+4096]) {
				t.Errorf("read at %d: %v, other data than written", x.Offset, x.Err)
			}
			q.Release(x)
		}
	}
}
