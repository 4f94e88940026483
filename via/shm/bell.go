package shm

import (
	"errors"
	"fmt"

	"golang.org/x/sys/unix"
)

// sleepsUndrained is the number of sleeps after which a bell is drained. Its
// watch is edge-triggered: once a ring was reported, a socket that is full
// reports no other one. A peer rings a bell at most twice in a sleep, also in
// one that Arm ended at once, and a ring takes less than 1 KiB of the socket's
// buffer, which has some 200 KiB.
const sleepsUndrained = 32

// edgesUndrained is the number of sleeps of a queue after which a consumer that
// watches for edges looks for bells to drain: a bell that needs it is found
// after as many more at the latest.
const edgesUndrained = 16

// bells are the socket pairs by which a peer wakes this end: this end reads one
// socket and passes the other to the peer. An eventfd is no alternative: both
// ends would share one open file, and a peer could consume the wake-ups of
// others, fill it, or make it blocking and so stop this process inside a system
// call.
//
// A link has a bell for each of its completion queues, or one if they are the
// same.
type bells struct {
	data, space             int // the ends that this process reads
	passedData, passedSpace int // the peer's ends, until they are passed; -1 then
}

// openBells makes the bells of a link.
func openBells(shared bool) (bells, error) {
	b := bells{data: -1, space: -1, passedData: -1, passedSpace: -1}
	var err error
	if b.data, b.passedData, err = openBell(); err != nil {
		return b, err
	}
	if shared {
		b.space, b.passedSpace = b.data, b.passedData
		return b, nil
	}
	if b.space, b.passedSpace, err = openBell(); err != nil {
		b.close()
	}
	return b, err
}

func openBell() (local, passed int, err error) {
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		return -1, -1, fmt.Errorf("create doorbell: %w", err)
	}
	return fds[0], fds[1], nil
}

// seal closes the ends that the peer has received.
func (b *bells) seal() {
	closePair(b.passedData, b.passedSpace)
	b.passedData, b.passedSpace = -1, -1
}

func (b *bells) close() {
	b.seal()
	closePair(b.data, b.space)
	b.data, b.space = -1, -1
}

// closePair closes two file descriptors, which may be the same or -1.
func closePair(a, b int) {
	if a >= 0 {
		_ = unix.Close(a)
	}
	if b >= 0 && b != a {
		_ = unix.Close(b)
	}
}

// checkBell checks a file descriptor that a peer passed as its bell: writing to
// another kind of file may block.
func checkBell(fd int) error {
	domain, err := unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_DOMAIN)
	if err != nil {
		return fmt.Errorf("doorbell: %w", err)
	}
	kind, err := unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_TYPE)
	if err != nil {
		return fmt.Errorf("doorbell: %w", err)
	}
	if domain != unix.AF_UNIX || kind != unix.SOCK_STREAM {
		return errors.New("doorbell is not a unix stream socket")
	}
	return nil
}
