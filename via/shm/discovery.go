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

// A listener advertises itself with a second socket: a datagram socket in the
// abstract namespace, whose name has the inode number of the listening socket.
// The kernel's table of sockets lists both until their process closes them or
// dies, so an advertisement is never stale and leaves no file behind. The
// socket carries no data. The kernel prints the leading zero byte of the name
// as @.
const advertPrefix = "@viablk-shm:"

// advertise binds the advertisement of a listening socket and returns its file
// descriptor. It returns -1 on failure, for example if another process has the
// name: clients can still connect to a listener that is not discovered.
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
	// After the shutdown the socket queues no datagrams of other processes.
	err = errors.Join(
		unix.Shutdown(fd, unix.SHUT_RD),
		unix.Bind(fd, &unix.SockaddrUnix{Name: advertPrefix + strconv.FormatUint(inode, 10)}))
	if err != nil {
		_ = unix.Close(fd)
		return -1
	}
	return fd
}

// advertisable reports whether a path is absolute and printable: the kernel's
// table escapes nothing, and terminals show the path.
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
//	Num               RefCount Protocol Flags    Type St Inode   Path
//	00000000889c4562: 00000002 00000000 00010000 0005 01 4038055 /run/a.sock
const (
	socketTable    = "/proc/net/unix"
	maxSocketTable = 16 << 20 // bytes: some 200,000 sockets
	maxSocketLine  = 4 << 10  // bytes; the kernel's have at most 200
	socketColumns  = 7        // before the path
)

// DiscoverHosts returns the socket paths that adapters of this network
// namespace advertise, at one hop each. It connects to no socket, so it does
// not check whether a listener admits this process. The kernel returns the
// table in pieces: a socket that opens or closes meanwhile may hide another
// one.
func (a *adapter) DiscoverHosts(ctx context.Context, _ int) ([]via.DiscoveredHost, error) {
	if err := ctx.Err(); err != nil {
		return nil, fmt.Errorf("discover listeners: %w: %w", via.ErrTimeout, err)
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
	found := make([]via.DiscoveredHost, len(paths))
	for i, path := range paths {
		found[i] = via.DiscoveredHost{Host: path, Hops: 1}
	}
	return found, nil
}

// socket is a listening socket with a path.
type socket struct {
	inode uint64
	path  string
}

// parseSockets returns the paths of the advertised sockets, sorted, from a
// table of at most limit bytes. Any user may bind any name, line ends included,
// and so forge whole lines. That adds paths and removes none, and the same user
// could add them by advertising.
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

// socketKind is the kind of socket that a line of the table describes.
type socketKind int

const (
	socketListening socketKind = iota + 1
	socketAdvert               // socket.inode is that of the listening socket
)

// parseSocket parses a line of the table; ok is false for other sockets.
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
