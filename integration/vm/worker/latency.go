package main

import (
	"bufio"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// attaching is a disk that is attached again and again.
type attaching struct {
	program, uri, socket string
	rounds               int
}

// measuredDevice is what a disk becomes that is served at no socket.
const measuredDevice = "/dev/nbd0"

func latencyFlags(flags *flag.FlagSet) func() error {
	a := &attaching{}
	flags.StringVar(&a.program, "program", "viablk", "the `FILE` of the program")
	flags.StringVar(&a.uri, "uri", "", "the disk")
	flags.StringVar(&a.socket, "socket", "", "where to serve it, a UNIX `SOCKET`; empty means as "+measuredDevice)
	flags.IntVar(&a.rounds, "rounds", 100, "how often")
	return a.run
}

// run prints how long an attach takes, from the start of the process to the
// answer of the first read.
func (a *attaching) run() error {
	var durations []time.Duration
	for range a.rounds {
		d, err := a.attach()
		if err != nil {
			return err
		}
		durations = append(durations, d)
	}
	slices.Sort(durations)
	rank := func(percent int) time.Duration { // nearest
		return durations[(percent*len(durations)+99)/100-1].Round(10 * time.Microsecond)
	}
	fmt.Printf("%d attaches: p50 %v, p99 %v, most %v\n", len(durations), rank(50), rank(99), rank(100))
	return nil
}

// attach attaches the disk, reads, and detaches it.
func (a *attaching) attach() (duration time.Duration, err error) {
	place, read := []string{"--device", measuredDevice}, a.readDevice
	if a.socket != "" {
		place, read = []string{"--nbd", "nbd+unix:///disk?socket=" + a.socket}, a.readSocket
	}
	cmd := exec.Command(a.program, append([]string{"attach", a.uri, "--admin", "none"}, place...)...)
	cmd.Stderr = os.Stderr
	output, err := cmd.StdoutPipe()
	if err != nil {
		return 0, err
	}
	began := time.Now()
	if err := cmd.Start(); err != nil {
		return 0, err
	}
	defer func() {
		// Wait closes the pipe.
		err = errors.Join(err, cmd.Process.Signal(syscall.SIGTERM), cmd.Wait())
	}()
	ready := bufio.NewScanner(output)
	for ready.Scan() {
		if strings.Contains(ready.Text(), strings.TrimPrefix(place[1], "nbd+unix:")) {
			err := read()
			return time.Since(began), err
		}
	}
	return 0, errors.Join(fmt.Errorf("%s ended before it was ready", cmd), ready.Err())
}

func (a *attaching) readSocket() error {
	conn, _, _, err := dialExport(a.socket, "disk")
	if err != nil {
		return err
	}
	defer conn.Close()
	return readFirst(conn)
}

// readDevice reads past the kernel's cache.
func (a *attaching) readDevice() error {
	fd, err := unix.Open(measuredDevice, unix.O_RDONLY|unix.O_DIRECT|unix.O_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("open %s: %w", measuredDevice, err)
	}
	defer unix.Close(fd)
	page, err := unix.Mmap(-1, 0, firstRead, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS)
	if err != nil {
		return fmt.Errorf("make a page: %w", err)
	}
	n, err := unix.Pread(fd, page, 0)
	if err == nil && n != firstRead {
		err = fmt.Errorf("%d bytes", n)
	}
	if err != nil {
		err = fmt.Errorf("read %s: %w", measuredDevice, err)
	}
	return errors.Join(err, unix.Munmap(page))
}
