package attack

import (
	"bytes"
	"encoding/hex"
	"maps"
	"sync"
	"testing"

	"github.com/viablk/viablk/initiator"
	"github.com/viablk/viablk/integration/testbed"
	"github.com/viablk/viablk/internal/seal"
)

// marker is what the payload of these tests consists of.
var marker = []byte("SECRET-OF-ALICE-")

// search looks for secrets in all that travels.
type search struct {
	mu      sync.Mutex
	secrets map[string][]byte
	found   map[string]int // secret and channel
	bytes   [channels]int
}

func newSearch(t testing.TB) *search {
	t.Helper()
	s := &search{
		secrets: map[string][]byte{"payload": marker, "name": []byte(exportName)},
		found:   map[string]int{},
	}
	maps.Copy(s.secrets, loginHeads(t))
	return s
}

// see searches what travels. Payload is in messages or in memory.
func (s *search) see(c channel, b []byte) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.bytes[c] += len(b)
	s.look(channelNames[c], b)
}

func (s *search) look(where string, b []byte) {
	for what, secret := range s.secrets {
		if bytes.Contains(b, secret) {
			s.found[what+" in "+where]++
		}
	}
}

// use moves the marker in every way: by each path of payload, over several
// queues, through a target that restarts and a session that ends, and lists the
// disks.
func use(t *testing.T, s *scene, secrets *search) {
	t.Helper()
	d := s.dial(t)
	session, err := hex.DecodeString(d.Status().Session)
	testbed.Must(t, err)
	secrets.mu.Lock()
	secrets.secrets["session"] = session
	secrets.mu.Unlock()
	move := func() {
		var wg sync.WaitGroup
		for queue := range 3 {
			wg.Go(func() {
				for _, n := range sizes {
					data := bytes.Repeat(marker, n/len(marker))
					at := int64(queue) * diskSize / 4
					if _, err := d.WriteAt(data, at); err != nil {
						t.Errorf("write: %v", err)
						return
					}
					clear(data)
					if _, err := d.ReadAt(data, at); err != nil || !bytes.Equal(data, bytes.Repeat(marker, n/len(marker))) {
						t.Errorf("read: %v", err)
						return
					}
				}
			})
		}
		wg.Wait()
	}
	move()
	s.by.reach(func(b []byte, _ bool) { // while it is in use or was
		secrets.mu.Lock()
		defer secrets.mu.Unlock()
		secrets.look("exposed memory", b)
	})
	s.stop()
	s.start(t)
	move()
	testbed.Must(t, d.Close())
	s.stop() // nothing travels any more
}

// No payload, name of a disk, identity of a session or login is in what travels
// or in memory that a peer reaches, on any connection. The same search finds
// them, by every path, where sessions are in clear: so it would find one path
// that were.
func TestSecrecy(t *testing.T) {
	for name, f := range testbed.Fabrics {
		t.Run(name, func(t *testing.T) {
			sealed := newSearch(t)
			use(t, newScene(t, f, newAttacker(sealed.see), true, seal.Limits{}), sealed)
			if len(sealed.found) != 0 {
				t.Errorf("sealed: %v", sealed.found)
			}
			inClear := newSearch(t)
			use(t, newScene(t, f, newAttacker(inClear.see), false, seal.Limits{}), inClear)
			for _, want := range []string{
				"payload in messages", "payload in placed", "payload in pulled", "payload in exposed memory",
				"name in messages", "session in messages", "login in messages", "answer to a login in messages",
			} {
				if inClear.found[want] == 0 {
					t.Errorf("in clear: no %s", want)
				}
			}
			for c := range channels {
				if sealed.bytes[c] == 0 || inClear.bytes[c] == 0 {
					t.Errorf("nothing travels as %s", channelNames[c])
				}
			}
		})
	}
}

// Discovery is sealed as well; in clear its login and its list are found.
func TestSecrecyOfDiscovery(t *testing.T) {
	discover := func(sealed bool) map[string]int {
		secrets := newSearch(t)
		s := newScene(t, testbed.Fabrics["shm"], newAttacker(secrets.see), sealed, seal.Limits{})
		cfg := initiator.Config{NIC: s.nic, Host: s.host}
		if sealed {
			cfg.Security = s.security
		}
		list, err := initiator.Discover(t.Context(), cfg)
		testbed.Must(t, err)
		if len(list) != 1 || list[0].Name != exportName {
			t.Errorf("the list is %v", list)
		}
		s.stop() // nothing travels any more
		return secrets.found
	}
	if found := discover(true); len(found) != 0 {
		t.Errorf("sealed: %v", found)
	}
	found := discover(false)
	for _, want := range []string{"name in messages", "login in messages", "answer to a login in messages"} {
		if found[want] == 0 {
			t.Errorf("in clear: no %s: %v", want, found)
		}
	}
}
