package seal_test

import (
	"bytes"
	"crypto/aes"
	"crypto/cipher"
	"errors"
	"flag"
	"runtime"
	"sync/atomic"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/viablk/viablk/internal/seal"
)

var opens = flag.Int("seal.opens", 200_000, "opens of a record that a peer changes meanwhile; a quarter as many seals")

// expose returns memory that the race detector does not see, as it does not see
// a peer, and has a peer change a bit of a byte there, back and forth, until
// the test ends.
func expose(t *testing.T, content []byte, at int) []byte {
	t.Helper()
	processors := runtime.GOMAXPROCS(0)
	runtime.GOMAXPROCS(max(2, processors)) // the peer runs beside the test
	t.Cleanup(func() { runtime.GOMAXPROCS(processors) })
	b, err := unix.Mmap(-1, 0, len(content)+4096, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED|unix.MAP_ANONYMOUS)
	if err != nil {
		t.Fatal(err)
	}
	copy(b, content)
	var stop atomic.Bool
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		for !stop.Load() {
			b[at] ^= 0x20
		}
	}()
	t.Cleanup(func() {
		stop.Store(true)
		<-ended
		if err := unix.Munmap(b); err != nil {
			t.Error(err)
		}
	})
	return b[:len(content)]
}

// A peer that changes exposed memory while a record is opened from it has no
// text accepted that was not authenticated: each open is the true text or an
// error.
func TestPeerChangesMemoryAmidOpens(t *testing.T) {
	i, target := connect(t, newSession(t, seal.Limits{}), 1)
	p, q := command(t, i, target, 512)
	plain := pattern(512, 3)
	r := sealRecord(t, p, plain, 0, "header")
	r.b = expose(t, r.b, 300)
	accepted, refused := 0, 0
	dst := make([]byte, len(r.b))
	for accepted+refused < *opens || accepted == 0 || refused == 0 { // the peer runs
		switch err := q.Open(dst, r.b, 0, r.header, &r.tag); {
		case err != nil:
			refused++
		case bytes.Equal(dst, plain):
			accepted++
		default:
			t.Fatalf("accepted what was not sealed, after %d of %d opens", accepted, accepted+refused)
		}
	}
	t.Logf("%d accepted, %d refused", accepted, refused)
}

// A peer that changes exposed memory while a record is sealed into it has no
// tag of what it wrote: the tag is that of the record.
func TestPeerChangesMemoryAmidSeals(t *testing.T) {
	session, plain := newSession(t, seal.Limits{}), pattern(512, 3)
	var ends [2]*seal.Payload // with the same keys, of exposed and of private memory
	for e := range ends {
		i, target := connect(t, session, 1)
		ends[e], _ = command(t, i, target, 512)
	}
	exposed, private := expose(t, plain, 300), make([]byte, len(plain))
	var got, want [seal.TagSize]byte
	changed, kept := 0, 0
	for n := 0; n < *opens/4 || changed == 0 || kept == 0; n++ { // the peer runs
		if err := errors.Join(ends[0].Seal(exposed, plain, n, nil, &got), ends[1].Seal(private, plain, n, nil, &want)); err != nil {
			t.Fatal(err)
		}
		if got != want {
			t.Fatalf("the tag of something else, after %d seals", n)
		}
		if bytes.Equal(exposed, private) {
			kept++
		} else {
			changed++
		}
	}
	t.Logf("%d changed, %d kept", changed, kept)
}

// The same without the copy finds text that was not authenticated: so the test
// would see it.
func TestOpensWithoutTheCopyAreFound(t *testing.T) {
	block, err := aes.NewCipher(make([]byte, 32))
	if err != nil {
		t.Fatal(err)
	}
	gcm, err := cipher.NewGCM(block)
	if err != nil {
		t.Fatal(err)
	}
	plain, nonce := pattern(512, 3), make([]byte, 12)
	b := expose(t, gcm.Seal(nil, nonce, plain, nil), 300)
	dst := make([]byte, len(plain))
	for n := range 50_000_000 {
		if _, err := gcm.Open(dst[:0], nonce, b, nil); err == nil && !bytes.Equal(dst, plain) {
			t.Logf("found after %d opens", n+1)
			return
		}
	}
	t.Error("not found")
}
