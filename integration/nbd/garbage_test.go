package nbd

import (
	"encoding/binary"
	"errors"
	"math/rand/v2"
	"net"
	"os"
	"testing"
	"time"

	"github.com/viablk/viablk/integration/testbed"
)

// The first messages of a client, from the NBD protocol document.
const (
	clientFlags   = 3 // fixed newstyle, no zeroes
	optionMagic   = 0x49484156454F5054
	requestMagic  = 0x25609513
	optionGo      = 7
	greetingBytes = 18
)

// nbdGarbage are ways to be a bad NBD client, by how far it behaves.
var nbdGarbage = map[string]func(*rand.Rand) [][]byte{
	"from the start": func(r *rand.Rand) [][]byte { return [][]byte{testbed.Noise(r, 1+r.IntN(4096))} },
	"behind the flags": func(r *rand.Rand) [][]byte {
		return [][]byte{{0, 0, 0, clientFlags}, testbed.Noise(r, 1+r.IntN(4096))}
	},
	"inside an option": func(r *rand.Rand) [][]byte {
		return [][]byte{{0, 0, 0, clientFlags}, option(r.Uint32N(12), r.Uint32()), testbed.Noise(r, r.IntN(4096))}
	},
	"instead of requests": func(r *rand.Rand) [][]byte {
		return [][]byte{{0, 0, 0, clientFlags}, option(optionGo, 6), make([]byte, 6), testbed.Noise(r, 1+r.IntN(1<<16))}
	},
	"inside requests": func(r *rand.Rand) [][]byte {
		b := [][]byte{{0, 0, 0, clientFlags}, option(optionGo, 6), make([]byte, 6)}
		for range r.IntN(64) {
			q := binary.BigEndian.AppendUint32(nil, requestMagic)
			b = append(b, append(q, testbed.Noise(r, 24)...))
		}
		return b
	},
	"nothing": func(*rand.Rand) [][]byte { return nil },
}

// option is the head of a client's option.
func option(number, length uint32) []byte {
	b := binary.BigEndian.AppendUint64(nil, optionMagic)
	b = binary.BigEndian.AppendUint32(b, number)
	return binary.BigEndian.AppendUint32(b, length)
}

// throw connects and writes; what the other end makes of it is its business, as
// long as it hangs up or listens.
func throw(t testing.TB, network, address string, messages [][]byte) {
	t.Helper()
	c, err := net.DialTimeout(network, address, testbed.AnswerLimit)
	if err != nil {
		t.Fatalf("garbage is not even let in: %v", err)
	}
	defer c.Close()
	testbed.Must(t, c.SetDeadline(time.Now().Add(testbed.AnswerLimit)))
	for _, m := range messages {
		if _, err := c.Write(m); err != nil {
			if errors.Is(err, os.ErrDeadlineExceeded) {
				t.Errorf("%s: neither read nor closed", address)
			}
			return
		}
	}
}

// TestGarbageAtNBDSocket is thrown at each socket while another client works on
// it.
func TestGarbageAtNBDSocket(t *testing.T) {
	for _, w := range testbed.Ways {
		t.Run(w.Name, func(t *testing.T) {
			t.Parallel()
			s := w.Serve(t, testbed.Program(t), testbed.Disk{Name: "disk", Spec: "memory:16MiB"})
			network, address := testbed.AddressOf(t, s.URI)
			files := s.IdleFiles(t)
			healthy := testbed.StartFio(t, s.URI, testbed.WithVerify("--rw=randrw", "--bs=4k", "--iodepth=8", "--size=8m", "--rate_iops=2000,2000")...)
			r := rand.New(rand.NewPCG(1, 2))
			for range 10 {
				for _, messages := range nbdGarbage {
					throw(t, network, address, messages(r))
				}
			}
			testbed.Succeed(t, healthy)
			s.Idle(t)
			testbed.Eventually(t, "files of bad clients being closed", func() (any, bool) {
				n := s.Attach.Files()
				return n, n <= files
			})
			testbed.Run(t, "qemu-io", "-f", "raw", s.URI, "-c", "write -P 1 0 1M", "-c", "read -P 1 0 1M")
		})
	}
}
