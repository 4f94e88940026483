package main

import (
	"errors"
	"fmt"
	"net"
	"os"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"github.com/viablk/viablk/internal/nbd"
)

// stdioHelp is what the help of serving commands says of --stdio.
const stdioHelp = `
With --stdio the process serves the one NBD client that is connected to its
standard input and output, as nbdkit -s does, and ends when the client leaves.
Started with sockets to listen on (systemd's socket activation, nbdinfo -- [ … ]), it
serves NBD there. In both cases it prints nothing on standard output.`

// addStdio registers --stdio with a command.
func addStdio(cmd *cobra.Command) *bool {
	cmd.Long += "\n" + stdioHelp
	return cmd.Flags().BoolP("stdio", "s", false, "serve one NBD client, connected to standard input and output")
}

// inheritStdio returns the connection that is standard input and output.
// Afterwards nothing that the process prints gets to the client, and the client
// sees the end of the connection when it is closed: in its place is /dev/null,
// and also behind standard error if that was the connection, as inetd starts
// servers.
func inheritStdio(input, output, complaints int) (net.Conn, error) {
	if !sameFile(input, output) {
		return nil, usage("--stdio: standard input and output are not the same connection: start it with one stream socket as both, and not with pipes")
	}
	conn, err := nbd.InheritedConn(input)
	if err != nil {
		return nil, usage("--stdio: standard input: %w", err)
	}
	replaced := []int{input, output}
	if sameFile(input, complaints) {
		replaced = append(replaced, complaints)
	}
	if err := discard(replaced); err != nil {
		conn.Close()
		return nil, fmt.Errorf("--stdio: %w", err)
	}
	return conn, nil
}

// sameFile reports whether two descriptors are one file.
func sameFile(a, b int) bool {
	var x, y unix.Stat_t
	return errors.Join(unix.Fstat(a, &x), unix.Fstat(b, &y)) == nil && x.Dev == y.Dev && x.Ino == y.Ino
}

// discard replaces descriptors by /dev/null.
func discard(fds []int) error {
	null, err := os.OpenFile(os.DevNull, os.O_RDWR, 0)
	if err != nil {
		return err
	}
	defer null.Close()
	for _, fd := range fds {
		if err := unix.Dup3(int(null.Fd()), fd, 0); err != nil {
			return os.NewSyscallError("dup3", err)
		}
	}
	return nil
}
