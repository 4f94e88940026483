package netbed

import (
	"bufio"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"sync/atomic"
	"time"

	"github.com/gopacket/gopacket"
	"github.com/gopacket/gopacket/layers"
	"github.com/gopacket/gopacket/pcapgo"
	"golang.org/x/sys/unix"
)

// captureBuffer is room for frames that are not written yet, bytes.
const captureBuffer = 256 << 20

// Capture is a file that gets what passes the device of a host, in the format
// of pcap-savefile(5): frames that leave as they leave, frames that arrive
// before a fault hits them.
type Capture struct {
	host  *Host
	fd    int
	file  *os.File
	out   *bufio.Writer
	pcap  *pcapgo.Writer // to out
	count int
	stop  atomic.Bool
	ended chan error
	done  bool
}

// Capture begins to write frames to a new file.
func (h *Host) Capture(path string) *Capture {
	h.t.Helper()
	c := &Capture{host: h, ended: make(chan error, 1)}
	if err := c.open(path); err != nil {
		h.t.Fatalf("capture: %v", err)
	}
	go func() { c.ended <- c.routineCapture() }()
	h.t.Cleanup(func() { _ = c.end() })
	return c
}

// open opens the file and the socket (packet(7)).
func (c *Capture) open(path string) error {
	err := c.host.Do(func() (err error) {
		c.fd, err = unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
		return err
	})
	if err != nil {
		return err
	}
	index, err := c.host.index()
	if err == nil {
		err = unix.SetsockoptInt(c.fd, unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, captureBuffer)
	}
	if err == nil {
		err = unix.Bind(c.fd, &unix.SockaddrLinklayer{Protocol: everything(), Ifindex: index})
	}
	if err == nil {
		c.file, err = os.Create(path)
	}
	if err != nil {
		return errors.Join(err, unix.Close(c.fd))
	}
	c.out = bufio.NewWriterSize(c.file, 1<<20)
	c.pcap = pcapgo.NewWriterNanos(c.out)
	return c.pcap.WriteFileHeader(longestFrame, layers.LinkTypeEthernet)
}

// everything is all protocols, as packet(7) wants it.
func everything() uint16 {
	return binary.BigEndian.Uint16(binary.NativeEndian.AppendUint16(nil, unix.ETH_P_ALL))
}

// nap is how long a capture waits before it looks whether it is to stop.
const nap = 5 * time.Millisecond

// routineCapture writes frames until it is to stop and has written all.
func (c *Capture) routineCapture() error {
	frame := make([]byte, longestFrame)
	for {
		last := c.stop.Load()
		if _, err := unix.Poll([]unix.PollFd{{Fd: int32(c.fd), Events: unix.POLLIN}}, int(nap/time.Millisecond)); err != nil && !errors.Is(err, unix.EINTR) {
			return err
		}
		for {
			n, _, err := unix.Recvfrom(c.fd, frame, 0)
			if errors.Is(err, unix.EAGAIN) {
				break
			}
			if err == nil {
				err = c.write(frame[:n])
			}
			if err != nil && !errors.Is(err, unix.ENETDOWN) { // which is told once, when the link goes down
				return err
			}
		}
		if last {
			return nil
		}
	}
}

// write writes a frame, with the time at which it is written.
func (c *Capture) write(frame []byte) error {
	c.count++
	return c.pcap.WritePacket(gopacket.CaptureInfo{Timestamp: time.Now(), CaptureLength: len(frame), Length: len(frame)}, frame)
}

// Stop ends the capture and returns how many frames are in the file. Frames
// that found no room fail the test.
func (c *Capture) Stop() int {
	c.host.t.Helper()
	if err := c.end(); err != nil {
		c.host.t.Fatalf("capture: %v", err)
	}
	return c.count
}

// end ends the capture once.
func (c *Capture) end() error {
	if c.done {
		return nil
	}
	c.done = true
	c.stop.Store(true)
	err := <-c.ended
	lost, statErr := unix.GetsockoptTpacketStats(c.fd, unix.SOL_PACKET, unix.PACKET_STATISTICS)
	if statErr == nil && lost.Drops > 0 {
		statErr = fmt.Errorf("there was no room for %d frames", lost.Drops)
	}
	return errors.Join(err, statErr, c.out.Flush(), c.file.Close(), unix.Close(c.fd))
}
