package shm

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"

	"golang.org/x/sys/unix"

	"github.com/viablk/viablk/via"
)

// Who listens says so with a second socket: a datagram socket in the abstract
// namespace, whose name has the inode number of the listening socket. Both stand
// in the kernel's table of sockets until their process closes them or dies, so
// that an advertisement is never stale and leaves no file behind. Nothing is ever
// sent to it.
const advertPrefix = "@viablk-shm:" // @ is how the kernel prints the leading zero byte

// advertise binds the advertisement of a listening socket and returns its file
// descriptor. It returns -1 where that fails, as when somebody has the name:
// who is not found can still be reached.
func advertise(l *net.UnixListener) int {
	if !advertisable(l.Addr().String()) {
		return -1
	}
	inode, err := socketInode(l)
	if err != nil {
		return -1
	}
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return -1
	}
	// Closed for reading, the socket queues nothing that strangers send to it.
	err = errors.Join(
		unix.Shutdown(fd, unix.SHUT_RD),
		unix.Bind(fd, &unix.SockaddrUnix{Name: advertPrefix + strconv.FormatUint(inode, 10)}))
	if err != nil {
		_ = unix.Close(fd)
		return -1
	}
	return fd
}

// advertisable says whether a path means the same to every process and survives
// the kernel's table, which escapes nothing, and a terminal.
func advertisable(path string) bool {
	unprintable := func(r rune) bool { return !unicode.IsPrint(r) }
	return filepath.IsAbs(path) && utf8.ValidString(path) && !strings.ContainsFunc(path, unprintable)
}

// socketInode returns the number by which the kernel's table names a socket.
func socketInode(l *net.UnixListener) (uint64, error) {
	raw, err := l.SyscallConn()
	if err != nil {
		return 0, err
	}
	var st unix.Stat_t
	var statErr error
	if err := raw.Control(func(fd uintptr) { statErr = unix.Fstat(int(fd), &st) }); err != nil {
		return 0, err
	}
	return st.Ino, statErr
}

// The kernel's table of AF_UNIX sockets in this network namespace: a heading,
// then a line for each socket.
//
//	Num       RefCount Protocol Flags    Type St Inode Path
//	00000000889c4562: 00000002 00000000 00010000 0005 01 4038055 /run/viablk/a.sock
const (
	socketTable    = "/proc/net/unix"
	maxSocketTable = 16 << 20 // bytes: some 200,000 sockets
	maxSocketLine  = 4 << 10  // bytes; the kernel's have at most 200
	socketColumns  = 7        // before the path
)

// Neighbours returns the socket paths that adapters of this network namespace
// advertise, at one hop each. It connects to nobody, so it does not know whether
// this process would be admitted. The kernel hands the table out in pieces: a
// socket that comes or goes meanwhile may hide another one.
func (a *adapter) Neighbours(ctx context.Context, _ int) ([]via.Neighbour, error) {
	if err := ctx.Err(); err != nil {
		return nil, fmt.Errorf("look for listeners: %w: %w", via.ErrTimeout, err)
	}
	f, err := os.Open(socketTable)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil, fmt.Errorf("table of sockets: %w: %w", via.ErrNotSupported, err)
	case err != nil:
		return nil, fmt.Errorf("table of sockets: %w: %w", via.ErrResource, err)
	}
	defer func() { _ = f.Close() }()
	paths, err := parseSockets(f, maxSocketTable)
	if err != nil {
		return nil, fmt.Errorf("table of sockets %s: %w", socketTable, err)
	}
	found := make([]via.Neighbour, len(paths))
	for i, path := range paths {
		found[i] = via.Neighbour{Host: path, Hops: 1}
	}
	return found, nil
}

// socket is a listening socket with a path.
type socket struct {
	inode uint64
	path  string
}

// parseSockets returns the paths of the advertised sockets, sorted, from a table
// of at most limit bytes. Any user may bind any name, line ends included, and so
// forge whole lines: that adds paths to the result and takes none away, which he
// could also do by advertising.
func parseSockets(table io.Reader, limit int64) ([]string, error) {
	bounded := &io.LimitedReader{R: table, N: limit + 1}
	lines := bufio.NewScanner(bounded)
	lines.Buffer(nil, maxSocketLine)
	var listening []socket
	advertised := make(map[uint64]struct{})
	for lines.Scan() {
		kind, s, ok := parseSocket(lines.Text())
		switch {
		case !ok:
		case kind == socketAdvert:
			advertised[s.inode] = struct{}{}
		case kind == socketListening:
			listening = append(listening, s)
		}
	}
	if err := lines.Err(); err != nil {
		return nil, fmt.Errorf("%w: %w", via.ErrResource, err)
	}
	if bounded.N == 0 {
		return nil, fmt.Errorf("more than %d bytes: %w", limit, via.ErrResource)
	}
	paths := make([]string, 0, len(advertised))
	for _, s := range listening {
		if _, ok := advertised[s.inode]; ok {
			paths = append(paths, s.path)
		}
	}
	slices.Sort(paths)
	return slices.Compact(paths), nil
}

// socketKind is what a line of the table is about.
type socketKind int

const (
	socketListening socketKind = iota + 1
	socketAdvert               // socket.inode is the advertised one's
)

// parseSocket parses a line of the table; ok is false for a line that is of no
// interest.
func parseSocket(line string) (kind socketKind, s socket, ok bool) {
	var columns [socketColumns]string
	for i := range columns {
		columns[i], line, ok = strings.Cut(strings.TrimLeft(line, " "), " ")
		if !ok {
			return 0, socket{}, false // no path
		}
	}
	const flags, kindOf, state, inode = 3, 4, 5, 6
	number := columns[inode]
	switch [3]string{columns[flags], columns[kindOf], columns[state]} {
	case [3]string{"00010000", "0005", "01"}: // accepts connections, SOCK_SEQPACKET, unconnected
		if !advertisable(line) {
			return 0, socket{}, false
		}
		kind, s.path = socketListening, line
	case [3]string{"00000000", "0002", "01"}: // SOCK_DGRAM, unconnected
		if number, ok = strings.CutPrefix(line, advertPrefix); !ok {
			return 0, socket{}, false
		}
		kind = socketAdvert
	default:
		return 0, socket{}, false
	}
	var err error
	s.inode, err = strconv.ParseUint(number, 10, 64)
	return kind, s, err == nil
}
