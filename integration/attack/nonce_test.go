package attack

import (
	"flag"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/viablk/viablk/integration/testbed"
	"github.com/viablk/viablk/internal/seal"
)

var nonceTime = flag.Duration("attack.nonces", 0, "how long TestNoncesOfSessions lasts at least")

// uses is every nonce under every key that either end has sealed with.
type uses struct {
	mu   sync.Mutex
	seen map[[20]byte]bool
	keys map[[8]byte]bool
	bad  int
}

func (u *uses) observe(key [8]byte, nonce [12]byte) {
	u.mu.Lock()
	defer u.mu.Unlock()
	at := [20]byte(append(key[:], nonce[:]...))
	if u.seen[at] {
		u.bad++
	}
	u.seen[at], u.keys[key] = true, true
}

// No nonce is used twice under a key, by either end, on all connections of
// sessions with short generations, over rekeys, restarts of the target and
// connections that are cut amid requests, which are then sealed anew.
func TestNoncesOfSessions(t *testing.T) {
	u := &uses{seen: map[[20]byte]bool{}, keys: map[[8]byte]bool{}}
	m := &meddler{r: rand.New(rand.NewPCG(7, 8)), kind: kinds["flip"], one: 60, recorded: map[int][][]byte{}}
	a := newAttacker(func(channel, []byte) {})
	a.change = m.meddle
	s := newScene(t, testbed.Fabrics["shm"], a, true, seal.Limits{Capsules: 20, Blocks: 1 << 17, Observer: u.observe})
	s.rekey = 20 * time.Millisecond
	d := s.dial(t)
	var wg sync.WaitGroup
	stop := make(chan struct{})
	for worker := range 3 {
		wg.Go(func() {
			b, got := testbed.RandomBytes(3<<20), make([]byte, 3<<20)
			for i := 0; ; i++ {
				select {
				case <-stop:
					return
				default:
				}
				n := sizes[i%len(sizes)]
				at := int64(worker) * diskSize / 4
				if _, err := d.WriteAt(b[:n], at); err != nil {
					t.Errorf("write: %v", err)
					return
				}
				if _, err := d.ReadAt(got[:n], at); err != nil || string(got[:n]) != string(b[:n]) {
					t.Errorf("read: %v", err)
					return
				}
			}
		})
	}
	sealed := func() int {
		u.mu.Lock()
		defer u.mu.Unlock()
		return len(u.seen)
	}
	began, rounds := time.Now(), 0
	for ; (rounds < 8 || time.Since(began) < *nonceTime) && !t.Failed(); rounds++ {
		from := sealed()
		m.mu.Lock()
		m.on = rounds%2 == 1
		m.mu.Unlock()
		waitFor(t, "requests", func() bool { return t.Failed() || sealed() > from+500 })
		s.stop()
		s.start(t)
	}
	m.mu.Lock()
	m.on = false
	m.mu.Unlock()
	close(stop)
	wg.Wait()
	testbed.Must(t, d.Close())
	u.mu.Lock() // the target may still be answering
	defer u.mu.Unlock()
	if u.bad != 0 || len(u.keys) < 100 {
		t.Errorf("%d of %d nonces of %d keys were used twice", u.bad, len(u.seen), len(u.keys))
	}
	t.Logf("%d nonces, %d keys, %d restarts, %d changes", len(u.seen), len(u.keys), rounds, m.total())
}
