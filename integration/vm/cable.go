package vm

import (
	"fmt"
	"net"
	"os"
	"slices"
	"sync/atomic"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
)

// End is an end of a network cable. It is plugged into one NIC, or the test
// takes it by Conn.
type End struct {
	file *os.File // nil when a NIC or the test has it
}

// cableBuffer is how much may be on its way in each direction, bytes, if the
// host allows so much.
const cableBuffer = 4 << 20

// Cable returns the two ends of a cable, each for a machine or the test. It
// loses nothing: who sends faster than the other end takes has to wait.
func Cable(t testing.TB) (*End, *End) {
	t.Helper()
	fds, err := syscall.Socketpair(syscall.AF_UNIX, syscall.SOCK_DGRAM|syscall.SOCK_CLOEXEC|syscall.SOCK_NONBLOCK, 0)
	if err != nil {
		t.Fatal(fmt.Errorf("make a cable: %w", err))
	}
	var ends [2]*End
	for i, fd := range fds {
		if err := syscall.SetsockoptInt(fd, syscall.SOL_SOCKET, syscall.SO_SNDBUF, cableBuffer); err != nil {
			t.Fatal(fmt.Errorf("set the buffer of a cable: %w", err))
		}
		ends[i] = &End{file: os.NewFile(uintptr(fd), "cable")}
		t.Cleanup(ends[i].close)
	}
	return ends[0], ends[1]
}

// Conn takes the end: each Write sends an Ethernet frame, without its checksum,
// and each Read receives one. It is safe for concurrent use as a net.Conn is;
// the caller closes it.
func (e *End) Conn(t testing.TB) net.Conn {
	t.Helper()
	file := e.detach()
	if file == nil {
		t.Fatal("the end of the cable is in use")
	}
	defer file.Close()
	conn, err := net.FileConn(file)
	if err != nil {
		t.Fatal(fmt.Errorf("take the end of a cable: %w", err))
	}
	return conn
}

// detach returns the file of an end that is not in use, else nil.
func (e *End) detach() *os.File {
	file := e.file
	e.file = nil
	return file
}

// ends are those of the NICs of a machine.
type ends []*End

// copyEnds returns copies of the ends of cables in the configuration, of those
// that are not in use.
func (c *Config) copyEnds() (copies ends, err error) {
	for _, n := range c.NICs {
		e := new(End)
		if n.End != nil && n.End.file != nil {
			fd, err := unix.FcntlInt(n.End.file.Fd(), unix.F_DUPFD_CLOEXEC, 0)
			if err != nil {
				copies.close()
				return nil, fmt.Errorf("copy the end of a cable: %w", err)
			}
			e.file = os.NewFile(uintptr(fd), "cable")
		}
		copies = append(copies, e)
	}
	return copies, nil
}

// with returns the configuration with other ends.
func (c Config) with(e ends) Config {
	c.NICs = slices.Clone(c.NICs)
	for i := range c.NICs {
		c.NICs[i].End = e[i]
	}
	return c
}

func (e ends) close() {
	for _, one := range e {
		one.close()
	}
}

// close closes an end that is not in use.
func (e *End) close() {
	if file := e.detach(); file != nil {
		_ = file.Close()
	}
}

// lastMAC counts the addresses that were given away.
var lastMAC atomic.Uint32

// nextMAC returns an address that no other machine of this process has.
func nextMAC() string {
	n := lastMAC.Add(1)
	return fmt.Sprintf("52:54:00:%02x:%02x:%02x", byte(n>>16), byte(n>>8), byte(n))
}
