package nbdclient

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/viablk/viablk/internal/block"
	"golang.org/x/sys/unix"
)

// forever is longer than any test.
const forever = time.Hour

// restartable is an nbdkit on a file, at one socket, that can be killed and
// started again.
type restartable struct {
	*process
	t            testing.TB
	socket, file string
	args         []string
}

func newRestartable(t testing.TB, size int64, args ...string) *restartable {
	t.Helper()
	folder := t.TempDir()
	r := &restartable{t: t, socket: filepath.Join(folder, "socket"), file: filepath.Join(folder, "disk"), args: args}
	if err := os.WriteFile(r.file, make([]byte, size), 0o600); err != nil {
		t.Fatal(err)
	}
	r.start()
	return r
}

// start starts a server; the one before was killed.
func (r *restartable) start() {
	r.t.Helper()
	_ = os.Remove(r.socket)
	r.process = start(r.t, r.socket, "nbdkit", append([]string{"-f", "-U", r.socket, "file", r.file}, r.args...)...)
}

// restart replaces the server.
func (r *restartable) restart() {
	r.t.Helper()
	r.kill()
	r.start()
}

// device opens the disk.
func (r *restartable) device(reconnect time.Duration, durable bool) *Device {
	r.t.Helper()
	cfg := r.config()
	cfg.Reconnect, cfg.Durable = reconnect, durable
	d := mustOpen(r.t, cfg)
	r.t.Cleanup(func() {
		if err := d.Close(); err != nil {
			r.t.Error(err)
		}
	})
	return d
}

// client is a queue and its owner.
type client struct {
	t     testing.TB
	queue block.Queue
}

func newClient(t testing.TB, d *Device) *client {
	t.Helper()
	q, err := d.NewQueue(16)
	if err != nil {
		t.Fatal(err)
	}
	c := &client{t, q}
	t.Cleanup(func() {
		if err := q.Close(); err != nil {
			t.Error(err)
		}
	})
	return c
}

// submit starts a request.
func (c *client) submit(r *block.Request) {
	c.t.Helper()
	if !c.queue.Submit(r) {
		c.t.Fatal("the queue is full")
	}
	c.queue.Kick()
}

// wait waits for one request.
func (c *client) wait() *block.Request {
	c.t.Helper()
	var done [1]*block.Request
	for c.queue.Reap(done[:]) == 0 {
		c.sleep()
	}
	return done[0]
}

// sleep waits for the queue as its owner does.
func (c *client) sleep() {
	c.t.Helper()
	d, ok := c.queue.Arm()
	if !ok {
		return
	}
	timeout := -1
	if d >= 0 {
		timeout = int(d.Milliseconds()) + 1
	}
	if _, err := unix.Poll([]unix.PollFd{{Fd: int32(c.queue.FD()), Events: unix.POLLIN}}, timeout); err != nil && err != unix.EINTR {
		c.t.Fatal(err)
	}
}

// do runs one request.
func (c *client) do(r *block.Request) error {
	c.t.Helper()
	c.submit(r)
	return c.wait().Err
}

// put writes a block that is full of b, and get reads it.
func (c *client) put(b byte, flags block.Flags) error {
	c.t.Helper()
	return c.do(&block.Request{Op: block.Write, Flags: flags, Length: 4096, Data: bytes.Repeat([]byte{b}, 4096)})
}

func (c *client) get() (byte, error) {
	c.t.Helper()
	data := make([]byte, 4096)
	err := c.do(&block.Request{Op: block.Read, Length: 4096, Data: data})
	return data[0], err
}

func (c *client) flush() error {
	c.t.Helper()
	return c.do(&block.Request{Op: block.Flush})
}

// must ends the test unless err is nil.
func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// wantFailed checks that the disk has failed for good, and says why.
func wantFailed(t *testing.T, c *client, text string) {
	t.Helper()
	for range 2 {
		_, read := c.get()
		for op, err := range map[string]error{"read": read, "write": c.put(9, 0), "flush": c.flush()} {
			if block.Errno(err) != syscall.EIO || !strings.Contains(err.Error(), text) {
				t.Errorf("a %s: %v, want EIO and %q", op, err, text)
			}
		}
	}
}

// restartKinds are servers with a connection for each queue and with one for
// all.
var restartKinds = map[string][]string{
	"connections":    nil,
	"one connection": {"--filter=multi-conn", "multi-conn-mode=disable"},
}

// eachKind runs a test with both.
func eachKind(t *testing.T, test func(t *testing.T, r *restartable)) {
	for name, args := range restartKinds {
		t.Run(name, func(t *testing.T) { test(t, newRestartable(t, 1<<20, args...)) })
	}
}

// TestFlushedWritesOutliveServer: a disk whose writes were flushed goes on with
// the next server, and requests wait for it.
func TestFlushedWritesOutliveServer(t *testing.T) {
	eachKind(t, func(t *testing.T, r *restartable) {
		c := newClient(t, r.device(forever, false))
		for round := range byte(3) {
			must(t, c.put(round+1, 0))
			must(t, c.flush())
			r.kill()
			data := make([]byte, 4096)
			c.submit(&block.Request{Op: block.Read, Length: 4096, Data: data})
			var done [1]*block.Request
			if c.queue.Reap(done[:]) == 1 {
				t.Fatalf("a request does not wait for the server: %v", done[0].Err)
			}
			r.start()
			if got := c.wait(); got.Err != nil || data[0] != round+1 {
				t.Fatalf("after %d servers: read %d, %v", round+1, data[0], got.Err)
			}
			must(t, c.put(round+2, block.FUA))
			r.restart()
			if got, err := c.get(); err != nil || got != round+2 {
				t.Fatalf("a durable write: read %d, %v", got, err)
			}
		}
	})
}

// TestUnflushedWritesFailTheDisk: NBD cannot say whether they were lost.
func TestUnflushedWritesFailTheDisk(t *testing.T) {
	eachKind(t, func(t *testing.T, r *restartable) {
		d := r.device(forever, false)
		c, other := newClient(t, d), newClient(t, d)
		must(t, other.put(1, 0))
		must(t, other.flush())
		must(t, c.put(2, 0))
		r.restart()
		wantFailed(t, c, "not flushed")
		wantFailed(t, other, "not flushed")
		if q, err := d.NewQueue(1); err == nil && d.connector != nil {
			t.Error("a queue of a failed disk opens")
			_ = q.Close()
		}
	})
}

// TestDurableServerKeepsUnflushedWrites: the user says that they are not lost.
func TestDurableServerKeepsUnflushedWrites(t *testing.T) {
	eachKind(t, func(t *testing.T, r *restartable) {
		c := newClient(t, r.device(forever, true))
		must(t, c.put(7, 0))
		r.restart()
		if got, err := c.get(); err != nil || got != 7 {
			t.Fatalf("read %d, %v", got, err)
		}
		must(t, c.flush())
	})
}

// TestNewConnectionToAnotherServer: a server that was started again while its
// connections were idle is noticed before a new one is used: a flush there
// would cover writes that are lost.
func TestNewConnectionToAnotherServer(t *testing.T) {
	eachKind(t, func(t *testing.T, r *restartable) {
		t.Run("idle queue", func(t *testing.T) {
			d := r.device(forever, false)
			c := newClient(t, d)
			must(t, c.put(1, 0))
			r.restart()
			wantNoFlush(t, d)
		})
		t.Run("closed queue", func(t *testing.T) {
			d := r.device(forever, false)
			q, err := d.NewQueue(1)
			must(t, err)
			c := &client{t, q}
			must(t, c.put(1, 0))
			must(t, q.Close())
			r.restart()
			wantNoFlush(t, d)
		})
		t.Run("flushed", func(t *testing.T) {
			d := r.device(forever, false)
			c := newClient(t, d)
			must(t, c.put(1, 0))
			must(t, c.flush())
			r.restart()
			must(t, newClient(t, d).flush())
		})
	})
}

// wantNoFlush checks that no new queue says that writes are durable.
func wantNoFlush(t *testing.T, d *Device) {
	t.Helper()
	q, err := d.NewQueue(1)
	if err == nil {
		c := &client{t, q}
		err = c.flush()
		must(t, q.Close())
	}
	if !errors.Is(err, errUnflushed) || block.Errno(err) != syscall.EIO {
		t.Errorf("a new queue flushes: %v, want EIO and %q", err, errUnflushed)
	}
}

// TestWriteInFlightFailsTheDisk: whether the server executes it, and when, is
// not known.
func TestWriteInFlightFailsTheDisk(t *testing.T) {
	r := newRestartable(t, 1<<20, "--filter=delay", "wdelay=3600")
	c := newClient(t, r.device(forever, false))
	c.submit(&block.Request{Op: block.Write, Flags: block.FUA, Length: 4096, Data: make([]byte, 4096)})
	r.restart()
	if err := c.wait().Err; block.Errno(err) != syscall.EIO {
		t.Errorf("the write: %v", err)
	}
	if _, err := c.get(); !errors.Is(err, errUnflushed) {
		t.Errorf("a read: %v, want %v", err, errUnflushed)
	}
}

// TestServerThatStaysAway: requests fail at the end of the wait, and succeed
// when the server is back after all.
func TestServerThatStaysAway(t *testing.T) {
	eachKind(t, func(t *testing.T, r *restartable) {
		c := newClient(t, r.device(50*time.Millisecond, false))
		if _, err := c.get(); err != nil {
			t.Fatal(err)
		}
		r.kill()
		_, err := c.get()
		if block.Errno(err) != syscall.EIO || !strings.Contains(err.Error(), "away") {
			t.Fatalf("a read without server: %v", err)
		}
		r.start()
		for {
			if _, err = c.get(); err == nil {
				break
			}
			if !strings.Contains(err.Error(), "away") {
				t.Fatal(err)
			}
			time.Sleep(time.Millisecond)
		}
	})
}

// TestNoReconnect: with a wait of 0 the disk fails with its server.
func TestNoReconnect(t *testing.T) {
	eachKind(t, func(t *testing.T, r *restartable) {
		c := newClient(t, r.device(0, true))
		must(t, c.put(1, 0))
		r.restart()
		wantFailed(t, c, "closed the connection")
	})
}

// TestOtherDiskIsBack: a disk that comes back smaller, or read-only, is another
// one. It may come back longer.
func TestOtherDiskIsBack(t *testing.T) {
	for name, c := range map[string]struct {
		size int64
		args []string
		want string
	}{
		"smaller":   {512 << 10, nil, "has 524288 bytes and had 1048576"},
		"read-only": {1 << 20, []string{"-r"}, "can do other things"},
		"longer":    {2 << 20, nil, ""},
	} {
		t.Run(name, func(t *testing.T) {
			r := newRestartable(t, 1<<20)
			d := r.device(forever, false)
			client := newClient(t, d)
			_, err := client.get()
			must(t, err)
			r.kill()
			must(t, os.Truncate(r.file, c.size))
			r.args = c.args
			r.start()
			if c.want != "" {
				wantFailed(t, client, c.want)
				return
			}
			_, err = client.get()
			must(t, err)
			if got := d.Info().Size; got != c.size {
				t.Errorf("the size is %d, want %d", got, c.size)
			}
			must(t, client.do(&block.Request{Op: block.Write, Offset: 1 << 20, Length: 512, Data: make([]byte, 512)}))
		})
	}
}
