package uring

import (
	"bytes"
	"os"
	"path/filepath"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
	"pgregory.net/rapid"
)

// newRing returns a ring over a new file of 1 MiB, and the file.
func newRing(t testing.TB, depth int) (*Ring, *os.File) {
	t.Helper()
	if err := Probe(); err != nil {
		t.Fatalf("these tests need a kernel with io_uring: %v", err)
	}
	f, err := os.Create(filepath.Join(t.TempDir(), "disk"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { f.Close() })
	if err := f.Truncate(1 << 20); err != nil {
		t.Fatal(err)
	}
	r, err := New(int(f.Fd()), depth)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := r.Close(); err != nil {
			t.Error(err)
		}
	})
	return r, f
}

// Each operation comes back once, with its result, and reads and writes are
// those of the file.
func TestRingAgainstModel(t *testing.T) {
	const depth, grain = 8, 4096
	r, f := newRing(t, depth)
	model := make([]byte, 1<<20)
	rapid.Check(t, func(t *rapid.T) {
		type operation struct {
			p    []byte
			off  int
			read bool
		}
		n := rapid.IntRange(1, depth).Draw(t, "n")
		places := rapid.Permutation([]int{0, 1, 2, 3, 4, 5, 6, 7}).Draw(t, "places")[:n]
		batch := map[uint64]operation{}
		for i, place := range places {
			o := operation{
				p:   make([]byte, rapid.IntRange(1, grain).Draw(t, "length")),
				off: place*(2*grain) + rapid.IntRange(0, grain).Draw(t, "offset"), read: rapid.Bool().Draw(t, "read"),
			}
			user := uint64(i)<<32 + 7
			batch[user] = o
			put := r.Read
			if !o.read {
				fill := rapid.Byte().Draw(t, "fill")
				for j := range o.p {
					o.p[j] = fill
				}
				durable := rapid.Bool().Draw(t, "durable")
				put = func(p []byte, off int64, user uint64) bool { return r.Write(p, off, durable, user) }
			}
			if !put(o.p, int64(o.off), user) {
				t.Fatalf("operation %d of %d is refused", i+1, depth)
			}
			if rapid.Bool().Draw(t, "submit") {
				if err := r.Submit(); err != nil {
					t.Fatal(err)
				}
			}
		}
		if err := r.Submit(); err != nil {
			t.Fatal(err)
		}
		for len(batch) > 0 {
			if err := r.Wait(); err != nil {
				t.Fatal(err)
			}
			user, result, ok := r.Next()
			o, known := batch[user]
			if !ok || !known || result != len(o.p) {
				t.Fatalf("user %#x (%v): %d of %d bytes", user, known, result, len(o.p))
			}
			if delete(batch, user); o.read && !bytes.Equal(o.p, model[o.off:][:len(o.p)]) {
				t.Fatalf("wrong data at %d", o.off)
			} else if !o.read {
				copy(model[o.off:], o.p)
			}
		}
	})
	if content, err := os.ReadFile(f.Name()); err != nil || !bytes.Equal(content, model) {
		t.Errorf("the file is not the model: %v", err)
	}
}

// The file descriptor is readable while there are results, and only then.
func TestFileDescriptorTellsOfResults(t *testing.T) {
	r, _ := newRing(t, 2)
	readable := func(wait int) bool {
		fds := []unix.PollFd{{Fd: int32(r.FD()), Events: unix.POLLIN}}
		for {
			n, err := unix.Poll(fds, wait)
			if err != unix.EINTR {
				return n > 0 && fds[0].Revents&unix.POLLIN != 0
			}
		}
	}
	p := make([]byte, 512)
	if readable(0) || r.Ready() {
		t.Error("a new ring has a result")
	}
	if !r.Read(p, 0, 1) || readable(0) {
		t.Error("there is a result of what was not submitted")
	}
	if err := r.Submit(); err != nil {
		t.Fatal(err)
	}
	if !readable(20_000) || !r.Ready() {
		t.Fatal("there is no result")
	}
	if _, n, ok := r.Next(); !ok || n != len(p) || readable(0) || r.Ready() {
		t.Errorf("a read of %d bytes gives %d", len(p), n)
	}
}

// A ring takes as many as it has places; what the kernel has not seen is
// withdrawn, the last first.
func TestWithdraw(t *testing.T) {
	r, _ := newRing(t, 4)
	p := make([]byte, 512)
	for user := range uint64(4) {
		if !r.Read(p, 0, user) {
			t.Fatalf("operation %d of 4 is refused", user+1)
		}
	}
	if r.Read(p, 0, 4) {
		t.Error("a fifth operation is taken")
	}
	for want := uint64(3); want > 0; want-- {
		if user, ok := r.Withdraw(); !ok || user != want {
			t.Fatalf("user %d (%v) is withdrawn, want %d", user, ok, want)
		}
	}
	if err := r.Submit(); err != nil {
		t.Fatal(err)
	}
	if user, ok := r.Withdraw(); ok {
		t.Errorf("user %d is withdrawn after it was submitted", user)
	}
	if err := r.Wait(); err != nil {
		t.Fatal(err)
	}
	if user, n, ok := r.Next(); !ok || user != 0 || n != 512 {
		t.Errorf("user %d: %d, %v", user, n, ok)
	}
	if user, _, ok := r.Next(); ok {
		t.Errorf("user %d was executed, and was withdrawn", user)
	}
}

// Errors are the file's, and a file that ends is a short result.
func TestResultsOfErrors(t *testing.T) {
	r, f := newRing(t, 4)
	one := func() int {
		t.Helper()
		if err := r.Submit(); err != nil {
			t.Fatal(err)
		}
		if err := r.Wait(); err != nil {
			t.Fatal(err)
		}
		_, n, _ := r.Next()
		return n
	}
	p := make([]byte, 1024)
	r.Read(p, 1<<20-512, 1)
	if n := one(); n != 512 {
		t.Errorf("a read over the end gives %d", n)
	}
	r.Read(p, 1<<20, 1)
	if n := one(); n != 0 {
		t.Errorf("a read behind the end gives %d", n)
	}
	r.Read(p, -4096, 1)
	if n := one(); n != -int(syscall.EINVAL) {
		t.Errorf("a read before the beginning gives %d", n)
	}
	ro, err := os.Open(f.Name())
	if err != nil {
		t.Fatal(err)
	}
	defer ro.Close()
	r, err = New(int(ro.Fd()), 1)
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	r.Write(p, 0, false, 1)
	if n := one(); n != -int(syscall.EBADF) {
		t.Errorf("a write to what is open for reading gives %d", n)
	}
}

func TestNoRing(t *testing.T) {
	if _, err := New(-1, 1); err == nil {
		t.Error("there is a ring of no file")
	}
	if _, err := New(0, 1<<20); err == nil {
		t.Error("there is a ring of a million operations")
	}
}

// In steady state a ring allocates nothing.
func TestAlloc(t *testing.T) {
	r, _ := newRing(t, 8)
	p := make([]byte, 512)
	if n := testing.AllocsPerRun(200, func() {
		for user := range uint64(8) {
			r.Read(p, 0, user)
		}
		if r.Submit() != nil {
			t.Fatal("not submitted")
		}
		for range 8 {
			if r.Wait() != nil {
				t.Fatal("no result")
			}
			r.Next()
		}
	}); n != 0 {
		t.Errorf("%v allocations", n)
	}
}
