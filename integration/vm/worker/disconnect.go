package main

import (
	"context"
	"encoding/binary"
	"errors"
	"flag"
	"fmt"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/viablk/viablk/internal/nbd"
)

const disconnectCommand = 2

// disconnectFlags has clients disconnect from an NBD server over AF_VSOCK as
// libnbd does: they send DISC, shut their direction down and read to the end.
// The server has ended its own direction by then.
func disconnectFlags(flags *flag.FlagSet) func() error {
	address := flags.String("address", "1:10809", "of the server, a `CID:PORT`")
	export := flags.String("export", "", "the disk")
	rounds := flags.Int("rounds", 10, "clients, one after the other")
	return func() error {
		for range *rounds {
			if err := disconnect(*address, *export); err != nil {
				return err
			}
		}
		return nil
	}
}

func disconnect(address, export string) (err error) {
	conn, err := nbd.Dial(context.Background(), "vsock", address)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, conn.Close()) }()
	if _, _, err := openExport(conn, export); err != nil {
		return err
	}
	request := binary.BigEndian.AppendUint32(nil, requestMagic)
	request = binary.BigEndian.AppendUint16(request, 0) // flags
	request = binary.BigEndian.AppendUint16(request, disconnectCommand)
	if _, err := conn.Write(append(request, make([]byte, 20)...)); err != nil {
		return err
	}
	raw, err := conn.(syscall.Conn).SyscallConn()
	if err != nil {
		return err
	}
	if controlErr := raw.Control(func(fd uintptr) { err = readEnd(int(fd)) }); controlErr != nil {
		return controlErr
	}
	return err
}

// readEnd shuts the direction to the server down, once the server has done that
// with its own, and reads the end of the stream. The methods of the connection
// take ENOTCONN for the end, too.
func readEnd(fd int) error {
	fds := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLRDHUP}}
	n, err := unix.Poll(fds, int(handshakeLimit.Milliseconds()))
	if err != nil || n == 0 {
		return fmt.Errorf("wait for the server to end its direction: %d, %w", n, err)
	}
	_ = unix.Shutdown(fd, unix.SHUT_WR) // libnbd does not ask, either
	if n, err = unix.Read(fd, make([]byte, 1)); n != 0 {
		return fmt.Errorf("read the end of a connection: %d, %w", n, err)
	}
	return nil
}
