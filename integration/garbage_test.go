package integration

import (
	"encoding/binary"
	"errors"
	"math/rand/v2"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// What a client says first, from the NBD protocol document.
const (
	clientFlags   = 3 // fixed newstyle, no zeroes
	optionMagic   = 0x49484156454F5054
	requestMagic  = 0x25609513
	optionGo      = 7
	greetingBytes = 18
)

// nbdGarbage are ways to be a bad NBD client, by how far it behaves.
var nbdGarbage = map[string]func(*rand.Rand) [][]byte{
	"from the start": func(r *rand.Rand) [][]byte { return [][]byte{noise(r, 1+r.IntN(4096))} },
	"behind the flags": func(r *rand.Rand) [][]byte {
		return [][]byte{{0, 0, 0, clientFlags}, noise(r, 1+r.IntN(4096))}
	},
	"inside an option": func(r *rand.Rand) [][]byte {
		return [][]byte{{0, 0, 0, clientFlags}, option(r.Uint32N(12), r.Uint32()), noise(r, r.IntN(4096))}
	},
	"instead of requests": func(r *rand.Rand) [][]byte {
		return [][]byte{{0, 0, 0, clientFlags}, option(optionGo, 6), make([]byte, 6), noise(r, 1+r.IntN(1<<16))}
	},
	"inside requests": func(r *rand.Rand) [][]byte {
		b := [][]byte{{0, 0, 0, clientFlags}, option(optionGo, 6), make([]byte, 6)}
		for range r.IntN(64) {
			q := binary.BigEndian.AppendUint32(nil, requestMagic)
			b = append(b, append(q, noise(r, 24)...))
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

// noise is random bytes.
func noise(r *rand.Rand, n int) []byte {
	b := make([]byte, n)
	for i := range b {
		b[i] = byte(r.Uint32())
	}
	return b
}

// throw connects and writes; what the other end makes of it is its business, as
// long as it hangs up or listens.
func throw(t testing.TB, network, address string, messages [][]byte) {
	t.Helper()
	c, err := net.DialTimeout(network, address, answerLimit)
	if err != nil {
		t.Fatalf("garbage is not even let in: %v", err)
	}
	defer c.Close()
	must(t, c.SetDeadline(time.Now().Add(answerLimit)))
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
	for _, w := range ways {
		t.Run(w.name, func(t *testing.T) {
			t.Parallel()
			s := w.serve(t, program(t), disk{"disk", "memory:16MiB"})
			network, address := addressOf(t, s.uri)
			files := s.attach.files()
			healthy := startFio(t, s.uri, withVerify("--rw=randrw", "--bs=4k", "--iodepth=8", "--size=8m", "--rate_iops=2000,2000")...)
			r := rand.New(rand.NewPCG(1, 2))
			for range 10 {
				for _, messages := range nbdGarbage {
					throw(t, network, address, messages(r))
				}
			}
			succeed(t, healthy)
			s.idle(t)
			eventually(t, "files of bad clients being closed", func() (any, bool) {
				n := s.attach.files()
				return n, n <= files
			})
			run(t, "qemu-io", "-f", "raw", s.uri, "-c", "write -P 1 0 1M", "-c", "read -P 1 0 1M")
		})
	}
}

// TestGarbageAtVIASocket sends packets, some with file descriptors, to the
// socket that initiators connect to.
func TestGarbageAtVIASocket(t *testing.T) {
	s := chainWay.serve(t, program(t), disk{"disk", "memory:16MiB"})
	_, path := addressOf(t, s.target.uri("disk", "via+shm"))
	eventually(t, "one connection", func() (any, bool) {
		st := s.target.status().Targets[0]
		return st, st.Connections == 1
	})
	files := s.target.files()
	healthy := startFio(t, s.uri, withVerify("--rw=randrw", "--bs=4k", "--iodepth=8", "--size=8m", "--rate_iops=2000,2000")...)
	r := rand.New(rand.NewPCG(3, 4))
	for i := range 100 {
		throwPackets(t, path, r, i%5)
	}
	// One that says nothing must not be waited for.
	silent, err := net.Dial("unixpacket", path)
	must(t, err)
	succeed(t, healthy)
	next := startTool(t, "nbdsh", "-u", s.uri, "-c", "h.pwrite(bytearray(4096), 0)")
	succeed(t, next)
	must(t, silent.Close())
	eventually(t, "files of bad peers being closed", func() (any, bool) {
		n := s.target.files()
		return n, n <= files
	})
	if st := s.target.status().Targets[0]; st.Sessions != 1 {
		t.Errorf("%d sessions, not one", st.Sessions)
	}
}

// likePacket is a packet that looks like a handshake: magic, kind, length of the
// body, value, size, body.
func likePacket(r *rand.Rand) []byte {
	body := noise(r, r.IntN(257))
	b := append([]byte("VSHM"), byte(r.IntN(7)), 0)
	b = binary.LittleEndian.AppendUint16(b, uint16(len(body)))
	b = binary.LittleEndian.AppendUint64(b, r.Uint64()>>r.IntN(64))
	b = binary.LittleEndian.AppendUint64(b, r.Uint64()>>r.IntN(64))
	return append(b, body...)
}

// throwPackets sends random packets, each with some file descriptors.
func throwPackets(t testing.TB, path string, r *rand.Rand, descriptors int) {
	t.Helper()
	c, err := net.DialUnix("unixpacket", nil, &net.UnixAddr{Name: path, Net: "unixpacket"})
	must(t, err)
	defer c.Close()
	must(t, c.SetDeadline(time.Now().Add(answerLimit)))
	var rights []byte
	if descriptors > 0 {
		fd, err := unix.MemfdCreate("garbage", unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING)
		must(t, err)
		defer unix.Close(fd)
		must(t, unix.Ftruncate(fd, int64(r.IntN(1<<20))))
		fds := make([]int, descriptors)
		for i := range fds {
			fds[i] = fd
		}
		rights = unix.UnixRights(fds...)
	}
	for range 1 + r.IntN(4) {
		packet := likePacket(r)
		if r.IntN(3) == 0 {
			packet = noise(r, r.IntN(8192))
		}
		if _, _, err := c.WriteMsgUnix(packet, rights, nil); err != nil {
			if errors.Is(err, os.ErrDeadlineExceeded) {
				t.Errorf("%s: neither read nor closed", path)
			}
			return
		}
	}
}

// addressOf returns where a URI points to.
func addressOf(t testing.TB, uri string) (network, address string) {
	t.Helper()
	u, err := url.Parse(uri)
	must(t, err)
	if path := u.Query().Get("socket"); path != "" {
		return "unix", filepath.Clean(path)
	}
	return "tcp", u.Host
}
