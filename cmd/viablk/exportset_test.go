package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/viablk/viablk/config"
	"github.com/viablk/viablk/internal/block"
	"github.com/viablk/viablk/internal/nbd"
	"github.com/viablk/viablk/target/backend"
)

// newTestSet returns the disks of a target that serves them over NBD at a UNIX
// socket until the test ends.
func newTestSet(t *testing.T, exports ...config.Export) (set *exportSet, socket string) {
	t.Helper()
	log := slog.New(slog.DiscardHandler)
	c := config.Default()
	c.Target.StateFolder = t.TempDir()
	c.Target.Exports = exports
	disks, err := openDisks(config.Effective{Config: c}, nil, 0, log)
	if err != nil {
		t.Fatal(err)
	}
	set = newExportSet(log, config.Effective{Config: c, Settings: c.Settings()}, disks, make(chan struct{}))
	set.check = func(config.Config, []disk) error { return nil }
	if set.ender, err = newNBD(c, disks, &certificates{log: log}, log); err != nil {
		t.Fatal(err)
	}
	set.overNBD = set.ender.Exports.(*nbd.ExportTable)
	socket = filepath.Join(t.TempDir(), "nbd.sock")
	l, err := nbd.ListenUnix(t.Context(), socket, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	served := make(chan error, 1)
	go func() { served <- set.ender.Serve(context.Background(), l) }()
	greeted, err := net.Dial("unix", socket)
	if err == nil {
		_, err = greeted.Read(make([]byte, 1))
		greeted.Close()
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), waitTimeout)
		defer cancel()
		if err := errors.Join(set.ender.Drain(ctx), <-served, set.close(waitTimeout)); err != nil {
			t.Error(err)
		}
	})
	return set, socket
}

func memoryExport(name string) config.Export {
	return config.Export{Name: name, Backend: "memory:1M"}
}

// TestConcurrentChanges: of calls that add one name at a time with other
// settings, one succeeds; the same call again is no error; removals and adds of
// one name leave it there once or not at all, with one disk.
func TestConcurrentChanges(t *testing.T) {
	set, _ := newTestSet(t, memoryExport("stays"))
	const callers = 16
	each := func(f func(i int)) {
		var all sync.WaitGroup
		for i := range callers {
			all.Go(func() { f(i) })
		}
		all.Wait()
	}
	var added, conflicts atomic.Int32
	each(func(i int) {
		x := memoryExport("a")
		x.Description = fmt.Sprint(i % 4)
		first, err := set.add(t.Context(), x)
		var now *conflictError
		switch {
		case err == nil && first:
			added.Add(1)
		case errors.As(err, &now):
			conflicts.Add(1)
		case err != nil:
			t.Error(err)
		}
	})
	if added.Load() != 1 || conflicts.Load() != callers*3/4 {
		t.Errorf("%d calls added it, %d are in conflict", added.Load(), conflicts.Load())
	}
	added.Store(0)
	var removed atomic.Int32
	each(func(i int) {
		if i%2 == 0 {
			first, err := set.add(t.Context(), memoryExport("b"))
			if err == nil && first {
				added.Add(1)
			}
			return
		}
		switch err := set.remove(t.Context(), "b", removal{}); {
		case err == nil:
			removed.Add(1)
		case !errors.Is(err, errNoExport):
			t.Error(err)
		}
	})
	names := 0
	for _, d := range set.current() {
		if d.Name == "b" {
			names++
		}
	}
	// Two removals of one export may both succeed.
	if left := int32(names); names > 1 || removed.Load() < added.Load()-left || left > added.Load() {
		t.Errorf("added %d times, removed %d times, and there %d times", added.Load(), removed.Load(), names)
	}
}

// TestChangeHangs: a change that does not end keeps up neither status nor calls
// whose time is over, nor the end of the process.
func TestChangeHangs(t *testing.T) {
	set, _ := newTestSet(t, memoryExport("a"))
	ending := make(chan struct{})
	set.ending = ending
	entered, leave := make(chan struct{}), make(chan struct{})
	set.check = func(config.Config, []disk) error {
		close(entered)
		<-leave
		return nil
	}
	hung := make(chan error, 1)
	go func() {
		_, err := set.add(t.Context(), memoryExport("b"))
		hung <- err
	}()
	<-entered
	if n := len(set.current()); n != 1 {
		t.Errorf("%d exports", n)
	}
	over, cancel := context.WithCancel(t.Context())
	cancel()
	if err := set.remove(over, "a", removal{}); !errors.Is(err, errChanging) {
		t.Errorf("a change during another one: %v", err)
	}
	waits := make(chan error, 1)
	go func() { waits <- set.reload(t.Context(), nil) }()
	close(ending)
	if err := <-waits; !errors.Is(err, errDraining) {
		t.Errorf("a change of a process that ends: %v", err)
	}
	close(leave)
	if err := <-hung; err != nil {
		t.Error(err)
	}
}

// TestRemoveUnderLoad: clients write without a pause while their export is
// removed with a drain. Each write that was answered is in the file; the
// removal ends, and the clients with it.
func TestRemoveUnderLoad(t *testing.T) {
	const clients, blocks, length = 4, 64, 4096
	file := filepath.Join(t.TempDir(), "disk.img")
	if err := errors.Join(os.WriteFile(file, nil, 0o600), os.Truncate(file, clients*blocks*length)); err != nil {
		t.Fatal(err)
	}
	var x config.Export
	if err := x.UnmarshalText([]byte("a=limit:iops=1000000:file:" + file)); err != nil {
		t.Fatal(err)
	}
	set, socket := newTestSet(t, x, memoryExport("stays"))
	var all sync.WaitGroup
	var busy sync.WaitGroup
	answered := make([][blocks]uint64, clients)
	submitted := make([][blocks]uint64, clients)
	for i := range clients {
		device, err := openTestNBD(socket, "a")
		if err != nil {
			t.Fatal(err)
		}
		busy.Add(1)
		begun := sync.OnceFunc(busy.Done)
		all.Go(func() {
			defer begun()
			err := writeUntilLost(device, int64(i)*blocks*length, length, submitted[i][:], answered[i][:], begun)
			if err := errors.Join(err, device.Close()); err != nil {
				t.Error(err)
			}
		})
	}
	busy.Wait()
	if err := set.remove(t.Context(), "a", removal{}); err == nil || !strings.Contains(err.Error(), "in use by nbd client") {
		t.Errorf("removed below its clients: %v", err)
	}
	if err := set.remove(t.Context(), "a", removal{drain: waitTimeout}); err != nil {
		t.Fatal(err)
	}
	all.Wait()
	if err := set.remove(t.Context(), "a", removal{drain: waitTimeout}); !errors.Is(err, errNoExport) {
		t.Errorf("removed again: %v", err)
	}
	got, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	writes := uint64(0)
	for i := range clients {
		for j := range blocks {
			b := got[(i*blocks+j)*length:][:length]
			n, least, most := stampOf(b), answered[i][j], submitted[i][j]
			if n < least || n > most || !bytes.Equal(b, stamp(n, length)) {
				t.Fatalf("client %d, block %d: holds write %d; %d is answered, %d was sent", i, j, n, least, most)
			}
			writes += least
		}
	}
	if writes == 0 {
		t.Error("no write was answered")
	}
}

// openTestNBD opens an export at a UNIX socket. The disk fails when the server
// ends its connections.
func openTestNBD(socket, export string) (block.Device, error) {
	b, err := parseNBDBackend("nbd+unix:///" + export + "?reconnect=0s&socket=" + socket)
	if err != nil {
		return nil, err
	}
	return b.open(context.Background(), false, slog.New(slog.DiscardHandler))
}

// stamp returns a block that says which write it is of.
func stamp(n uint64, length int) []byte {
	if n == 0 {
		return make([]byte, length) // before the first
	}
	return bytes.Repeat(fmt.Appendf(nil, "%016x", n), length/16)
}

// stampOf returns the write of a block, or the largest number if it is of none.
func stampOf(b []byte) (n uint64) {
	if bytes.Equal(b, make([]byte, len(b))) {
		return 0
	}
	if _, err := fmt.Sscanf(string(b[:16]), "%016x", &n); err != nil {
		return 1<<64 - 1
	}
	return n
}

// writeUntilLost writes blocks one after the other, again and again, until the
// disk fails. It counts for each the writes that it submitted and those that
// were answered, and calls begun when every block was written.
func writeUntilLost(d block.Device, offset int64, length int, submitted, answered []uint64, begun func()) (err error) {
	q, err := d.NewQueue(len(submitted))
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, q.Close()) }()
	requests := make([]block.Request, len(submitted))
	place := make(map[*block.Request]int)
	for j := range requests {
		place[&requests[j]] = j
	}
	submit := func(j int) {
		submitted[j]++
		requests[j] = block.Request{Op: block.Write, Offset: offset + int64(j*length), Length: int64(length), Data: stamp(submitted[j], length)}
		if !q.Submit(&requests[j]) {
			panic("the queue is full")
		}
	}
	for j := range requests {
		submit(j)
	}
	done := make([]*block.Request, len(requests))
	for inFlight := len(requests); inFlight > 0; {
		q.Kick()
		n := q.Reap(done)
		if n == 0 {
			if limit, ok := q.Arm(); ok {
				_, _ = unix.Poll([]unix.PollFd{{Fd: int32(q.FD()), Events: unix.POLLIN}}, int(min(limit, time.Second).Milliseconds())) // Reap tells
			}
		}
		for _, r := range done[:n] {
			j := place[r]
			if r.Err != nil {
				inFlight--
				continue
			}
			answered[j] = submitted[j]
			submit(j)
		}
		if !slices.Contains(answered, 0) {
			begun()
		}
	}
	return nil
}

// TestExportCalls: calls that are wrong get 422 with all that is wrong, calls
// that cannot be now get 409, and neither changes anything.
func TestExportCalls(t *testing.T) {
	set, socket := newTestSet(t, memoryExport("a"))
	admin := newExportAdmin(set, func() []exportStatus { return nil })
	mux := http.NewServeMux()
	admin.handle(mux)
	client, err := openTestNBD(socket, "a")
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	for i := range maximumRemovals + 1 { // one more than wait at a time
		code, _ := callMux(mux, http.MethodDelete, "/v1/exports?name=a", "")
		if code != http.StatusConflict {
			t.Errorf("removal %d: %d", i, code)
		}
	}
	for _, c := range []struct {
		method, route, body string
		code, problems      int
	}{
		{"POST", "", `{"name":"b","backend":"memory:1M","x":1,"y":2}`, 422, 2},
		{"POST", "", `{"name":"b","backend":"memory:1M","limits":{"iops":-1}}`, 422, 1},
		{"POST", "", `{"name":"b","backend":"file:/missing"}`, 422, 1},
		{"POST", "", `{"name":"b","backend":"memory:1M","clients":["user:root","alice"]}`, 422, 1},
		{"POST", "", `{"name":"` + strings.Repeat("n", 5000) + `","backend":"memory:1M"}`, 422, 1},
		{"POST", "", `[]`, 422, 1},
		{"POST", "", `{} {}`, 422, 1},
		{"POST", "", `null`, 422, 1},
		{"POST", "", strings.Repeat("[", maximumDocument+1), 413, 0},
		{"POST", "", `{"name":"a","backend":"memory:2M"}`, 409, 0},
		{"POST", "", `{"name":"a","backend":"memory:1M"}`, 200, 0},
		{"POST", "", `{"name":"c","backend":"memory:1M"}`, 201, 0},
		{"DELETE", "?name=c", "", 204, 0},
		{"DELETE", "?name=c", "", 404, 0},
		{"PATCH", "?name=c", `{}`, 404, 0},
		{"PATCH", "?name=a", `{}`, 200, 0},
		{"PATCH", "?name=a", `{"size":"2M"}`, 422, 1},
		{"PATCH", "?name=a", `{"size":"512K"}`, 422, 1},
		{"PATCH", "?name=a", `{"size":"2MB","read_only":"maybe","x":1}`, 422, 3},
		{"PATCH", "?name=a", `{"size":"1M"}`, 200, 0},
		{"PATCH", "?name=a", `{"size":1048576,"read_only":false}`, 200, 0},
		{"PATCH", "?name=a", `{"name":"b"}`, 409, 0},
		{"PATCH", "?name=a", `{"read_only":true}`, 409, 0},
		{"PATCH", "?name=a", `{"limits":{"iops":7}}`, 409, 0},
		{"PATCH", "", `{}`, 400, 0},
		{"DELETE", "", "", 400, 0},
		{"DELETE", "?name=a&name=b", "", 400, 0},
		{"DELETE", "?name=a&drain=2h", "", 400, 0},
		{"DELETE", "?name=a&drain=-1s", "", 400, 0},
		{"DELETE", "?name=a&force=maybe", "", 400, 0},
		{"DELETE", "?name=a", "", 409, 0},
	} {
		code, answer := callMux(mux, c.method, "/v1/exports"+c.route, c.body)
		if code != c.code || len(answer.Error.Problems) != c.problems || code >= 400 && answer.Error.Message == "" {
			t.Errorf("%s %s %.60s: %d, %+v", c.method, c.route, c.body, code, answer.Error)
		}
	}
	if disks := set.current(); len(disks) != 1 || disks[0].Name != "a" || disks[0].Backend != "memory:1M" {
		t.Errorf("exports are %+v", disks)
	}
}

// callMux makes a call.
func callMux(h http.Handler, method, route, body string) (code int, answer adminError) {
	w := httptest.NewRecorder()
	h.ServeHTTP(w, httptest.NewRequest(method, route, strings.NewReader(body)))
	if w.Code >= http.StatusBadRequest {
		_ = json.Unmarshal(w.Body.Bytes(), &answer) // an empty answer tells
	}
	return w.Code, answer
}

// TestReloadWaits: a call for a reload ends with its time, also when the reload
// has begun, and with the process.
func TestReloadWaits(t *testing.T) {
	s := newTestService(t, waitTimeout)
	entered, leave, done := make(chan struct{}), make(chan struct{}), make(chan struct{})
	s.reload = func(context.Context) error {
		close(entered)
		<-leave
		return errors.New("bad")
	}
	ended := make(chan error, 1)
	go func() { ended <- s.wait(done) }()
	ctx, cancel := context.WithCancel(t.Context())
	first := make(chan error, 1)
	go func() { first <- s.askReload(ctx) }()
	<-entered
	cancel()
	if err := <-first; !errors.Is(err, errChanging) {
		t.Errorf("a reload that takes too long: %v", err)
	}
	second := make(chan error, 1)
	go func() { second <- s.askReload(t.Context()) }()
	close(done)
	if err := <-second; !errors.Is(err, errDraining) {
		t.Errorf("a reload of a process that ends: %v", err)
	}
	close(leave)
	select {
	case err := <-ended:
		if err != nil {
			t.Error(err)
		}
	case <-time.After(waitTimeout):
		t.Fatal("the process does not end")
	}
}

// TestKeepForSuccessor: a disk that came after a successor was admitted, and
// that cannot move, keeps the target. While an export changes nothing is
// handed over; after it is, nothing changes.
func TestKeepForSuccessor(t *testing.T) {
	path := filepath.Join(t.TempDir(), "disk")
	if err := os.WriteFile(path, make([]byte, 1<<20), 0o600); err != nil {
		t.Fatal(err)
	}
	set, _ := newTestSet(t, config.Export{Name: "file", Backend: "file:" + path})
	var err error
	if set.held, err = backend.NewHeld(nil); err != nil {
		t.Fatal(err)
	}
	by := claim{Exports: []string{"other", "file", "late"}}
	if err := set.mayHandOver(by); err != nil {
		t.Fatal(err)
	}
	if err := set.mayHandOver(claim{Exports: []string{"other"}}); err == nil || !strings.Contains(err.Error(), "file") {
		t.Errorf("a successor that does not export the disk: %v", err)
	}
	if _, err := set.add(t.Context(), memoryExport("late")); err != nil {
		t.Fatal(err)
	}
	if _, err := set.keep(by, new(nbdListeners), nil); err == nil || !strings.Contains(err.Error(), "late") {
		t.Errorf("a disk in memory, to a version that does not know of it: %v", err)
	}
	by.Memory = true
	if err := set.mayHandOver(by); err != nil {
		t.Errorf("a disk in memory: %v", err)
	}
	by.Memory = false
	if err := set.remove(t.Context(), "late", removal{}); err != nil {
		t.Fatal(err)
	}
	end, err := set.begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := set.keep(by, new(nbdListeners), nil); !errors.Is(err, errChanging) {
		t.Errorf("amid a change: %v", err)
	}
	end()
	if _, err := set.keep(claim{}, new(nbdListeners), nil); err == nil || !strings.Contains(err.Error(), "would end") {
		t.Errorf("a disk that the successor does not export: %v", err)
	}
	if _, err := set.keep(by, new(nbdListeners), nil); err != nil {
		t.Error(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := set.add(ctx, memoryExport("later")); !errors.Is(err, errChanging) {
		t.Errorf("a change after it: %v", err)
	}
}
