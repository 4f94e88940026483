package nbdkernel

import (
	"context"
	"errors"
	"io"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/mdlayher/netlink"
	"go.uber.org/goleak"
	"golang.org/x/sys/unix"
)

// kernel is a driver with one device, number 5. On its connections a byte is a
// request and an answer, but for these.
type kernel struct {
	t      *testing.T
	folder string // what stands for /sys

	mu      sync.Mutex
	sockets []int // -1: has ended
	calls   []uint8
	size    uint64 // that it was told last
	ignores int    // how many offers of connections it has no use for yet
	hung    bool   // it was told a size while a connection was missing

	second atomic.Int32 // how often another way to it was opened
}

const (
	goodBye = 'D'
	slow    = 'S' // is answered when the server is told to go on
)

func newKernel(t *testing.T) *kernel {
	return &kernel{t: t, folder: plant(t, map[string]string{"block/nbd5/size": "8\n", "block/nbd5/backend": "via+x", "block/nbd5/uevent": "", "block/nbd5/inflight": idle})}
}

// The text of inflight of a device without and with requests.
const (
	idle = "       0        0\n"
	busy = "       0        1\n"
)

// inFlight says what the device has in flight.
func (k *kernel) inFlight(text string) {
	k.t.Helper()
	if err := os.WriteFile(filepath.Join(k.folder, "block/nbd5/inflight"), []byte(text), 0o600); err != nil {
		k.t.Fatal(err)
	}
}

// told returns the size that the driver was told last.
func (k *kernel) told() uint64 {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.size
}

// driver returns a way to the driver.
func (k *kernel) driver() *Driver {
	return &Driver{call: k.call, close: func() {}, second: func() (*Driver, error) {
		k.second.Add(1)
		return k.driver(), nil
	}}
}

func (k *kernel) pidFile() string { return filepath.Join(k.folder, "block/nbd5/pid") }

// connected makes a device that another process has connected.
func (k *kernel) connected(queues int) {
	k.sockets = slices.Repeat([]int{-1}, queues)
	if err := os.WriteFile(k.pidFile(), []byte("1\n"), 0o600); err != nil {
		k.t.Fatal(err)
	}
	for i := range queues {
		if err := os.MkdirAll(filepath.Join(k.folder, "block/nbd5/mq", strconv.Itoa(i)), 0o700); err != nil {
			k.t.Fatal(err)
		}
	}
}

func (k *kernel) call(command uint8, list []byte) ([]byte, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.calls = append(k.calls, command)
	offered, err := k.offer(list)
	if err != nil {
		return nil, err
	}
	switch command {
	case commandConnect:
		k.connected(len(offered))
		for i, fd := range offered {
			k.attach(i, fd)
		}
		reply := netlink.NewAttributeEncoder()
		reply.Uint32(attributeIndex, 5)
		return reply.Encode()
	case commandReconfigure:
		if k.ignores--; k.ignores >= 0 {
			return nil, nil
		}
		for _, fd := range offered {
			if i := slices.Index(k.sockets, -1); i >= 0 {
				k.attach(i, fd)
			}
		}
	case commandDisconnect:
		for i, fd := range k.sockets {
			_, _ = unix.Write(fd, []byte{goodBye})
			k.detach(i)
		}
		return nil, os.Remove(k.pidFile())
	}
	return nil, nil
}

// offer returns the sockets in a list, and notes a size.
func (k *kernel) offer(list []byte) (sockets []int, err error) {
	d, err := netlink.NewAttributeDecoder(list)
	if err != nil {
		return nil, err
	}
	for d.Next() {
		switch d.Type() {
		case attributeSizeBytes:
			k.size = d.Uint64()
			k.hung = k.hung || slices.Contains(k.sockets, -1)
		case attributeSockets:
			d.Nested(func(items *netlink.AttributeDecoder) error {
				for items.Next() {
					items.Nested(func(item *netlink.AttributeDecoder) error {
						for item.Next() {
							sockets = append(sockets, int(item.Uint32()))
						}
						return nil
					})
				}
				return nil
			})
		}
	}
	return sockets, d.Err()
}

func (k *kernel) attach(i, fd int) {
	k.sockets[i], _ = unix.FcntlInt(uintptr(fd), unix.F_DUPFD_CLOEXEC, 0)
}

// detach ends a connection.
func (k *kernel) detach(i int) {
	unix.Close(k.sockets[i])
	k.sockets[i] = -1
}

// giveUp is drop for those outside.
func (k *kernel) giveUp(i int) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.detach(i)
}

// serves sends a request on a connection and wants the answer.
func (k *kernel) serves(i int) {
	k.t.Helper()
	k.send(i, 'x')
	k.wantAnswer(i, 'x')
}

func (k *kernel) send(i int, request byte) {
	k.t.Helper()
	k.mu.Lock()
	defer k.mu.Unlock()
	if _, err := unix.Write(k.sockets[i], []byte{request}); err != nil {
		k.t.Errorf("send on connection %d: %v", i, err)
	}
}

func (k *kernel) wantAnswer(i int, want byte) {
	k.t.Helper()
	k.mu.Lock()
	fd := k.sockets[i]
	k.mu.Unlock()
	answer := []byte{0}
	if _, err := unix.Read(fd, answer); err != nil || answer[0] != want {
		k.t.Errorf("connection %d answers %q, %v", i, answer, err)
	}
}

// bed is an attachment of device 5 and the driver under it.
type bed struct {
	*Attachment
	kernel *kernel
	server server
	disk   func() (size int64, answers bool) // Config.Present
	ended  chan error                        // what Serve returned
	cancel context.CancelCauseFunc
}

// server serves the connections of a bed.
type server struct {
	refuse error         // no connection can be served
	goOn   chan struct{} // closed: slow requests are answered
}

func (s *server) serve(ctx context.Context, conn net.Conn, ready func()) error {
	defer conn.Close()
	if s.refuse != nil {
		return s.refuse
	}
	defer context.AfterFunc(ctx, func() { conn.SetDeadline(time.Unix(1, 0)) })()
	ready()
	for b := []byte{0}; ; {
		if _, err := conn.Read(b); err != nil {
			return err
		}
		if b[0] == goodBye {
			return nil
		}
		if b[0] == slow {
			<-s.goOn
		}
		if _, err := conn.Write(b); err != nil {
			return err
		}
	}
}

// attach attaches device 5, or any, and serves it.
func attach(t *testing.T, k *kernel, index, connections int) *bed {
	t.Helper()
	return attachDisk(t, k, index, connections, nil)
}

// attachDisk is attach for a disk whose size may change.
func attachDisk(t *testing.T, k *kernel, index, connections int, disk func() (int64, bool)) *bed {
	t.Helper()
	b := &bed{kernel: k, server: server{goOn: make(chan struct{})}, disk: disk, ended: make(chan error, 1)}
	var err error
	if b.Attachment, err = b.begin(t, index, connections); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancelCause(context.Background())
	b.cancel = cancel
	go func() { b.ended <- b.Serve(ctx) }()
	t.Cleanup(func() {
		cancel(nil)
		<-b.Done()
	})
	return b
}

func (b *bed) begin(t *testing.T, index, connections int) (*Attachment, error) {
	r := &Reservation{index: index, backend: "via+x", sysfs: b.kernel.folder, locks: filepath.Join(b.kernel.folder, "run")}
	if err := r.acquire(true); err != nil {
		t.Fatal(err)
	}
	return Attach(t.Context(), Config{
		Settings: Settings{Size: 8192, BlockSize: 512}, Connections: connections, Device: r, Serve: b.server.serve,
		Driver: b.kernel.driver(), Present: b.disk,
	})
}

// wantEnd wants Serve to return an error, and the device to be released.
func (b *bed) wantEnd(t *testing.T, want error) {
	t.Helper()
	if err := <-b.ended; !errors.Is(err, want) {
		t.Errorf("serve: %v, not %v", err, want)
	}
	if b.kernel.hung {
		t.Error("the driver was told a size while requests might wait for a connection")
	}
	if pid, err := Node(5).server(filepath.Join(b.kernel.folder, "run")); pid != 0 || err != nil {
		t.Errorf("the device is still reserved: %d, %v", pid, err)
	}
	if n := b.Connections(); n != 0 {
		t.Errorf("%d connections are left", n)
	}
}

func TestConnectionsAreReplaced(t *testing.T) {
	defer goleak.VerifyNone(t)
	k := newKernel(t)
	b := attach(t, k, AnyIndex, 3)
	if b.Node() != 5 || b.Connections() != 3 || k.size != 8192 {
		t.Errorf("%v has %d connections, %d bytes", b.Node(), b.Connections(), k.size)
	}
	for i := range 3 {
		k.serves(i)
	}
	// The driver notices late, twice, that a connection has ended.
	k.mu.Lock()
	k.ignores = 2
	k.detach(1)
	k.mu.Unlock()
	for b.Replaced() < 1 {
		time.Sleep(time.Millisecond)
	}
	for i := range 3 {
		k.giveUp(i)
	}
	for b.Replaced() < 4 {
		time.Sleep(time.Millisecond)
	}
	for i := range 3 {
		k.serves(i)
	}
	if event, err := os.ReadFile(filepath.Join(k.folder, "block/nbd5/uevent")); string(event) != "change" || err != nil {
		t.Errorf("announced by %q, %v", event, err)
	}
	if err := b.cfg.Driver.Disconnect(5); err != nil {
		t.Error(err)
	}
	b.wantEnd(t, nil)
}

// The driver drops the device that have sent nothing.
func TestDeviceIsReset(t *testing.T) {
	defer goleak.VerifyNone(t)
	k := newKernel(t)
	b := attach(t, k, 5, 2)
	if err := os.Remove(k.pidFile()); err != nil {
		t.Error(err)
	}
	k.giveUp(0)
	k.giveUp(1)
	b.wantEnd(t, nil)
}

func TestTakeOver(t *testing.T) {
	defer goleak.VerifyNone(t)
	k := newKernel(t)
	k.connected(2)
	k.ignores = 3 // the process before is about to end
	b := attach(t, k, AnyIndex, 7)
	k.serves(0)
	k.serves(1)
	for k.told() != 8192 {
		time.Sleep(time.Millisecond)
	}
	cause := errors.New("enough")
	b.cancel(cause)
	b.wantEnd(t, cause)
	if slices.Contains(k.calls, commandDisconnect) || slices.Contains(k.calls, commandConnect) {
		t.Errorf("calls %v", k.calls)
	}
}

// The driver is told a size when the requests in flight need the connections
// alone that it has, and a disk that answers.
func TestSizeWaits(t *testing.T) {
	defer goleak.VerifyNone(t)
	k := newKernel(t)
	k.connected(1)
	size, answers := int64(4096), true
	b := &bed{kernel: k, disk: func() (int64, bool) { return size, answers }, server: server{goOn: make(chan struct{})}}
	a, err := b.begin(t, AnyIndex, 1)
	if err != nil {
		t.Fatal(err)
	}
	const gone = -time.Minute
	told := int64(4096)
	for _, step := range []struct {
		name         string
		change       func()
		size         int64
		disconnected bool
		inFlight     string
		want         int64
	}{
		{"requests of the connection before", nil, 8192, false, busy, 4096},
		{"unknown requests", nil, 8192, false, "", 4096},
		{"the target is away", nil, 8192, true, idle, 4096},
		{"requests are over", nil, 8192, false, idle, 8192},
		{"no change", nil, 8192, false, idle, 8192},
		{"requests of this connection", func() { a.retransmitted = time.Now().Add(gone) }, 12288, false, busy, 12288},
		{"the target is away again", nil, 16384, true, idle, 12288},
		{"part of a block", nil, 12289, false, idle, 12288},
		{"a connection is being replaced", func() { a.replacing = true }, 16384, false, idle, 12288},
		{"it is there", a.noteReplaced, 16384, false, idle, 16384},
		{"a connection has ended", func() {
			k.giveUp(0)
			for a.Connections() > 0 {
				time.Sleep(time.Millisecond)
			}
		}, 4096, false, idle, 16384},
	} {
		if step.change != nil {
			step.change()
		}
		size, answers = step.size, !step.disconnected
		k.inFlight(step.inFlight)
		told = a.followSize(told)
		if now := k.told(); told != step.want || now != 0 && int64(now) != told {
			t.Errorf("%s: the driver was told %d, and counts as told %d, not %d", step.name, now, told, step.want)
		}
	}
	if k.hung {
		t.Error("the driver was told a size while requests might wait for a connection")
	}
	a.release(errEnded)
}

// An attachment that has grown follows while it is served.
func TestSizeIsFollowed(t *testing.T) {
	defer goleak.VerifyNone(t)
	k := newKernel(t)
	var size atomic.Int64
	size.Store(8192)
	b := attachDisk(t, k, AnyIndex, 2, func() (int64, bool) { return size.Load(), true })
	size.Store(12288)
	for k.told() != 12288 {
		time.Sleep(time.Millisecond)
	}
	b.cancel(nil)
	b.wantEnd(t, context.Canceled)
}

// Detach waits for a size that is being told: the next process could not take
// the device over.
func TestLeaveWaitsForSize(t *testing.T) {
	defer goleak.VerifyNone(t)
	k := newKernel(t)
	var size atomic.Int64
	size.Store(8192)
	b := attachDisk(t, k, AnyIndex, 1, func() (int64, bool) { return size.Load(), true })
	k.mu.Lock() // the driver waits
	size.Store(12288)
	for k.second.Load() == 0 {
		time.Sleep(time.Millisecond)
	}
	left := make(chan error, 1)
	go func() { left <- b.Detach(context.Background()) }()
	<-b.active.Done()
	for range 100 { // requests that the driver waits for
		answer := []byte{0}
		_, failure := unix.Write(k.sockets[0], []byte{'x'})
		if _, err := unix.Read(k.sockets[0], answer); failure != nil || err != nil || answer[0] != 'x' {
			t.Errorf("answer %q, %v, %v", answer, failure, err)
			break
		}
	}
	k.mu.Unlock()
	b.wantEnd(t, nil)
	if err := <-left; err != nil {
		t.Error(err)
	}
}

// Requests in flight are answered, and the device stays.
func TestLeave(t *testing.T) {
	defer goleak.VerifyNone(t)
	k := newKernel(t)
	b := attach(t, k, 5, 2)
	k.send(0, slow)
	left := make(chan error, 1)
	go func() { left <- b.Detach(context.Background()) }()
	<-b.active.Done()
	close(b.server.goOn)
	k.wantAnswer(0, slow)
	b.wantEnd(t, nil)
	if err := <-left; err != nil {
		t.Error(err)
	}
	if slices.Contains(k.calls, commandDisconnect) || slices.Contains(k.calls, commandReconfigure) {
		t.Errorf("calls %v", k.calls)
	}
	if err := b.End(t.Context()); err != nil {
		t.Errorf("end after the end: %v", err)
	}
}

// While the driver has no use for connections, the device can be left.
func TestLeaveWithoutConnections(t *testing.T) {
	defer goleak.VerifyNone(t)
	k := newKernel(t)
	b := attach(t, k, 5, 1)
	k.mu.Lock()
	k.ignores = 1 << 30
	k.detach(0)
	k.mu.Unlock()
	for b.Connections() > 0 {
		time.Sleep(time.Millisecond)
	}
	if err := b.Detach(t.Context()); err != nil {
		t.Error(err)
	}
	b.wantEnd(t, nil)
}

func TestAttachFails(t *testing.T) {
	defer goleak.VerifyNone(t)
	k := newKernel(t)
	b := &bed{kernel: k, server: server{refuse: io.ErrNoProgress}}
	if _, err := b.begin(t, AnyIndex, 2); !errors.Is(err, io.ErrNoProgress) || len(k.calls) > 0 {
		t.Errorf("server that fails: %v, calls %v", err, k.calls)
	}
	b = &bed{kernel: k}
	r := &Reservation{index: 5, backend: "via+x", sysfs: k.folder, locks: filepath.Join(k.folder, "run")}
	if err := r.acquire(false); err != nil {
		t.Fatal(err)
	}
	_, err := Attach(t.Context(), Config{
		Connections: 1, Device: r, Serve: b.server.serve,
		Driver: &Driver{call: func(uint8, []byte) ([]byte, error) { return nil, unix.EBUSY }},
	})
	if !errors.Is(err, ErrBusy) {
		t.Errorf("device in use: %v", err)
	}
	if pid, err := Node(5).server(r.locks); pid != 0 || err != nil {
		t.Errorf("the device is still reserved: %d, %v", pid, err)
	}
}

func TestReserve(t *testing.T) {
	k := newKernel(t)
	k.connected(1)
	take := func(index int, backend string, reattach bool) error {
		r := &Reservation{index: index, backend: backend, sysfs: k.folder, locks: filepath.Join(k.folder, "run")}
		defer r.Release()
		return r.acquire(reattach)
	}
	for _, row := range []struct {
		index    int
		backend  string
		reattach bool
		busy     bool
	}{
		{5, "via+x", true, false},
		{AnyIndex, "via+x", true, false},
		{AnyIndex, "via+x", false, false}, // the driver chooses another
		{AnyIndex, "via+y", true, false},
		{6, "via+x", true, false},
		{5, "via+x", false, true},
		{5, "via+y", true, true},
	} {
		if err := take(row.index, row.backend, row.reattach); errors.Is(err, ErrBusy) != row.busy || err != nil && !row.busy {
			t.Errorf("%+v: %v", row, err)
		}
	}
	if err := os.WriteFile(filepath.Join(k.folder, "block/nbd5/backend"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := take(5, "via+x", true); !errors.Is(err, ErrBusy) {
		t.Errorf("a device of another program: %v", err)
	}
}
