package sleepflag_test

import (
	"errors"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/viablk/viablk/internal/memfd"
	"github.com/viablk/viablk/internal/sleepflag"
)

// A peer sees in its mapping, which it cannot write, whether a thread sleeps,
// and tells sleeps apart, also those of the flag's next owner.
func TestPeerSeesSleeps(t *testing.T) {
	page, err := sleepflag.Process()
	if err != nil {
		t.Fatal(err)
	}
	fd, err := unix.Dup(page.FD())
	if err != nil {
		t.Fatal(err)
	}
	peer, err := memfd.MapPeer(fd, sleepflag.Size, unix.PROT_READ)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = unix.Munmap(peer) }()
	if err := unix.Mprotect(peer, unix.PROT_READ|unix.PROT_WRITE); err == nil {
		t.Error("a peer can write the page")
	}
	seen := make(map[uint64]bool)
	for range 3 {
		flag, err := page.Acquire()
		if err != nil {
			t.Fatal(err)
		}
		for range 3 {
			if sleepflag.Asleep(sleepflag.Load(peer, flag.Index())) {
				t.Fatal("a thread that is awake sleeps")
			}
			flag.Sleep()
			v := sleepflag.Load(peer, flag.Index())
			if !sleepflag.Asleep(v) || seen[v] {
				t.Fatalf("sleep %#x is not one, or was there before", v)
			}
			seen[v] = true
			flag.Wake()
		}
		flag.Release()
	}
}

// Each flag has one owner, until the page has none left.
func TestFlagsRunOut(t *testing.T) {
	page, err := sleepflag.Process()
	if err != nil {
		t.Fatal(err)
	}
	var taken []*sleepflag.Flag
	seen := make(map[int]bool)
	for {
		flag, err := page.Acquire()
		if errors.Is(err, sleepflag.ErrNone) {
			break
		}
		if err != nil || seen[flag.Index()] {
			t.Fatalf("flag %d, %v", flag.Index(), err)
		}
		seen[flag.Index()] = true
		taken = append(taken, flag)
	}
	if len(taken) != sleepflag.Flags {
		t.Errorf("%d flags, want %d", len(taken), sleepflag.Flags)
	}
	for _, flag := range taken {
		flag.Release()
	}
	flag, err := page.Acquire()
	if err != nil {
		t.Fatalf("a flag that was returned: %v", err)
	}
	flag.Release()
}
