package session

import (
	"encoding/binary"
	"errors"
	"math/rand/v2"
	"net"
	"os"
	"testing"
	"time"

	"github.com/viablk/viablk/integration/testbed"
	"golang.org/x/sys/unix"
)

// TestGarbageAtVIASocket sends packets, some with file descriptors, to the
// socket that initiators connect to.
func TestGarbageAtVIASocket(t *testing.T) {
	t.Parallel()
	s := testbed.ChainWay.Serve(t, testbed.Program(t), testbed.Disk{Name: "disk", Spec: "memory:16MiB"})
	_, path := testbed.AddressOf(t, s.Target.URI("disk", "via+shm"))
	s.FirstClient(t)
	files := s.Target.Files()
	healthy := testbed.StartFio(t, s.URI, testbed.WithVerify("--rw=randrw", "--bs=4k", "--iodepth=8", "--size=8m", "--rate_iops=2000,2000")...)
	r := rand.New(rand.NewPCG(3, 4))
	for i := range 100 {
		throwPackets(t, path, r, i%5)
	}
	// One that says nothing must not be waited for.
	silent, err := net.Dial("unixpacket", path)
	testbed.Must(t, err)
	testbed.Succeed(t, healthy)
	next := testbed.StartTool(t, "nbdsh", "-u", s.URI, "-c", "h.pwrite(bytearray(4096), 0)")
	testbed.Succeed(t, next)
	testbed.Must(t, silent.Close())
	testbed.Eventually(t, "files of bad peers being closed", func() (any, bool) {
		n := s.Target.Files()
		return n, n <= files
	})
	if st := s.Target.Status().Targets[0]; st.Sessions != 1 {
		t.Errorf("%d sessions, not one", st.Sessions)
	}
}

// likePacket is a packet that looks like a handshake: magic, kind, length of
// the body, value, size, body.
func likePacket(r *rand.Rand) []byte {
	body := testbed.Noise(r, r.IntN(257))
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
	testbed.Must(t, err)
	defer c.Close()
	testbed.Must(t, c.SetDeadline(time.Now().Add(testbed.AnswerLimit)))
	var rights []byte
	if descriptors > 0 {
		fd, err := unix.MemfdCreate("garbage", unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING)
		testbed.Must(t, err)
		defer unix.Close(fd)
		testbed.Must(t, unix.Ftruncate(fd, int64(r.IntN(1<<20))))
		fds := make([]int, descriptors)
		for i := range fds {
			fds[i] = fd
		}
		rights = unix.UnixRights(fds...)
	}
	for range 1 + r.IntN(4) {
		packet := likePacket(r)
		if r.IntN(3) == 0 {
			packet = testbed.Noise(r, r.IntN(8192))
		}
		if _, _, err := c.WriteMsgUnix(packet, rights, nil); err != nil {
			if errors.Is(err, os.ErrDeadlineExceeded) {
				t.Errorf("%s: neither read nor closed", path)
			}
			return
		}
	}
}
