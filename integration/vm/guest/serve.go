package main

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/viablk/viablk/integration/vm/agent"
	"golang.org/x/sys/unix"
)

// channel is the virtio serial port to the test.
const channel = "/dev/vport0p1"

// portTimeout is how long the port may take to appear and to be connected.
const portTimeout = time.Minute

// serve is the agent. It returns when the test is gone.
func serve() error {
	port, err := openPort()
	if err != nil {
		return err
	}
	fmt.Fprintln(os.Stderr, "guest: the agent serves")
	return agent.Serve(port, powerOff)
}

// port is the way to the test. It reads as ended until the host is connected,
// which is told to the kernel some time after the port is there.
type port struct {
	*os.File
	heard bool
}

// openPort waits for the port and opens it.
func openPort() (*port, error) {
	for deadline := time.Now().Add(portTimeout); ; time.Sleep(5 * time.Millisecond) {
		f, err := os.OpenFile(channel, os.O_RDWR, 0)
		if err == nil {
			return &port{File: f}, nil
		}
		if !errors.Is(err, fs.ErrNotExist) || time.Now().After(deadline) {
			return nil, fmt.Errorf("open the port to the test: %w", err)
		}
	}
}

func (p *port) Read(data []byte) (int, error) {
	for deadline := time.Now().Add(portTimeout); ; time.Sleep(5 * time.Millisecond) {
		n, err := p.File.Read(data)
		p.heard = p.heard || n > 0
		if !errors.Is(err, io.EOF) || p.heard || time.Now().After(deadline) {
			return n, err
		}
	}
}

// powerOff ends all processes, takes the disks out of use and ends the machine.
func powerOff() {
	_ = unix.Kill(-1, unix.SIGKILL) // spares the caller and the first process
	mounts, err := os.ReadFile("/proc/mounts")
	if err != nil {
		fmt.Fprintln(os.Stderr, "guest:", err)
	}
	points := strings.Split(strings.TrimSpace(string(mounts)), "\n")
	for _, line := range slices.Backward(points) {
		fields := strings.Fields(line)
		if len(fields) < 2 || !strings.HasPrefix(fields[0], "/dev/") {
			continue
		}
		if err := unmount(fields[1]); err != nil {
			fmt.Fprintf(os.Stderr, "guest: unmount %s: %v\n", fields[1], err)
		}
	}
	unix.Sync()
	fmt.Fprintln(os.Stderr, "guest:", unix.Reboot(unix.LINUX_REBOOT_CMD_POWER_OFF))
}

// unmount waits a moment for the processes that use a mount and are dying.
func unmount(point string) error {
	for deadline := time.Now().Add(30 * time.Second); ; time.Sleep(10 * time.Millisecond) {
		err := unix.Unmount(point, 0)
		if !errors.Is(err, unix.EBUSY) || time.Now().After(deadline) {
			return err
		}
	}
}
