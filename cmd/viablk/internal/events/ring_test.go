package events

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// newLog returns a log whose records are kept in a ring.
func newLog(level slog.Level) (*slog.Logger, *Ring) {
	r := NewRing()
	text := slog.NewTextHandler(new(strings.Builder), &slog.HandlerOptions{Level: level})
	return slog.New(NewHandler(text, r, func(_ []string, a slog.Attr) slog.Attr { return a })), r
}

// stored streams what a ring has, and returns the lines.
func stored(r *Ring, last string) []string {
	w := httptest.NewRecorder()
	q := httptest.NewRequest(http.MethodGet, "/", nil)
	if err := r.Stream(w, q, last, false); err != nil {
		return []string{err.Error()}
	}
	return strings.Split(strings.TrimSuffix(w.Body.String(), "\n\n"), "\n\n")
}

// TestEventsOfLog: an event has its ID, its name and the record of the log, and
// those below the level of the log are none.
func TestEventsOfLog(t *testing.T) {
	log, r := newLog(slog.LevelWarn)
	log.Info("not shown", "event", "none")
	log.With("session", 7).WithGroup("g").Warn("lost\n\nid: 9", "event", "not_its_name")
	log.Error("bad", "event", "disk_failed")
	log.Warn("bad", "event", "a\nb")
	got := stored(r, "")
	if len(got) != 3 {
		t.Fatalf("%d events: %q", len(got), got)
	}
	for i, want := range []string{
		"id: " + r.id(1) + "\ndata: {", "id: " + r.id(2) + "\nevent: disk_failed\ndata: {", "id: " + r.id(3) + "\ndata: {",
	} {
		if !strings.HasPrefix(got[i], want) || !strings.HasSuffix(got[i], "}") {
			t.Errorf("%q, want %q", got[i], want)
		}
	}
	if !strings.Contains(got[0], `"session":7,"g":{"event":"not_its_name"}}`) {
		t.Error(got[0])
	}
}

// TestRingIsBounded: the oldest events go, by their number and by their bytes,
// and readers are told how many they miss.
func TestRingIsBounded(t *testing.T) {
	_, r := newLog(slog.LevelInfo)
	first := r.id(1)
	for i := range MaximumEvents + 5 {
		fmt.Fprintf(r, `{"n":%d}`+"\n", i)
	}
	got := stored(r, "")
	if len(got) != MaximumEvents || !strings.HasPrefix(got[0], "id: "+r.id(6)+"\n") {
		t.Errorf("%d events, the first is %q", len(got), got[0])
	}
	if got = stored(r, first); len(got) != MaximumEvents+1 || got[0] != "event: lost\ndata: {\"lost\":4}" {
		t.Errorf("%d events, the first is %q", len(got), got[0])
	}
	if got = stored(r, r.id(MaximumEvents+3)); len(got) != 2 || !strings.HasSuffix(got[1], `{"n":1004}`) {
		t.Errorf("resumed: %q", got)
	}
	for _, foreign := range []string{"x-3", "", r.origin, r.origin + "--1", r.id(1 << 60), strings.Repeat("9", 99)} {
		if got = stored(r, foreign); len(got) != MaximumEvents || !strings.HasPrefix(got[0], "id: "+r.id(6)+"\n") {
			t.Errorf("resumed behind %q: %d events, the first is %q", foreign, len(got), got[0])
		}
	}
	for range 40 {
		_, _ = r.Write(make([]byte, MaximumRecord))
		r.mu.Lock()
		sum := 0
		for _, record := range r.records {
			sum += len(record)
		}
		if sum != r.size || sum > maximumBytes {
			t.Fatalf("%d bytes are kept, %d counted, at most %d are allowed", sum, r.size, maximumBytes)
		}
		r.mu.Unlock()
	}
	_, _ = r.Write(make([]byte, MaximumRecord+1))
	_, _ = r.Write([]byte("{}"))
	if got = stored(r, r.id(MaximumEvents+5+40)); len(got) != 2 || got[0] != "event: lost\ndata: {\"lost\":1}" {
		t.Errorf("behind an event that is too long: %q", got)
	}
}

// serve serves a ring over HTTP until the test ends, with the deadlines of the
// admin socket.
func serve(t *testing.T, r *Ring) (address string) {
	t.Helper()
	l, err := new(net.ListenConfig).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	server := &http.Server{
		ReadTimeout: time.Second, WriteTimeout: time.Second,
		Handler: http.HandlerFunc(func(w http.ResponseWriter, q *http.Request) {
			if err := r.Stream(w, q, q.Header.Get("Last-Event-ID"), true); err != nil {
				http.Error(w, err.Error(), http.StatusServiceUnavailable)
			}
		}),
	}
	served := make(chan error)
	go func() { served <- server.Serve(l) }()
	t.Cleanup(func() {
		r.Close()
		if err := server.Shutdown(context.Background()); err != nil {
			t.Error(err)
		}
		if err := <-served; !errors.Is(err, http.ErrServerClosed) {
			t.Error(err)
		}
	})
	return l.Addr().String()
}

// follow connects a reader and returns its events; a line is one of a frame.
func follow(t *testing.T, address string) (lines *bufio.Scanner, c net.Conn) {
	t.Helper()
	c, err := new(net.Dialer).DialContext(t.Context(), "tcp", address)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := c.Write([]byte("GET / HTTP/1.0\r\n\r\n")); err != nil {
		t.Fatal(err)
	}
	return bufio.NewScanner(c), c
}

// await reads lines until one has the text.
func await(t *testing.T, lines *bufio.Scanner, text string) {
	t.Helper()
	for lines.Scan() {
		if strings.Contains(lines.Text(), text) {
			return
		}
	}
	t.Fatalf("%q never came: %v", text, lines.Err())
}

// TestReadersFollow: events reach all readers as they come, from several
// loggers, and the end of the ring ends them behind the last event.
func TestReadersFollow(t *testing.T) {
	log, r := newLog(slog.LevelInfo)
	address := serve(t, r)
	var readers, loggers sync.WaitGroup
	entered := make(chan struct{}, MaximumReaders)
	for range MaximumReaders {
		readers.Go(func() {
			lines, c := follow(t, address)
			defer c.Close()
			await(t, lines, "200 OK")
			entered <- struct{}{}
			n := 0
			for lines.Scan() {
				if strings.HasPrefix(lines.Text(), "data: ") {
					n++
				}
			}
			if n != 401 || lines.Err() != nil {
				t.Errorf("%d events, %v", n, lines.Err())
			}
		})
	}
	for range MaximumReaders {
		<-entered
	}
	lines, c := follow(t, address)
	await(t, lines, "503 ")
	await(t, lines, ErrReaders.Error())
	c.Close()
	for range 4 {
		loggers.Go(func() {
			for range 100 {
				log.Info("x", "event", "a")
			}
		})
	}
	loggers.Wait()
	log.Info("last", "event", "z")
	r.Close()
	readers.Wait()
	lines, c = follow(t, address)
	await(t, lines, ErrEnded.Error())
	c.Close()
}

// TestStalledReader: a log call does not wait for a reader that takes nothing.
// The reader is told what it has missed, and Close does not wait for it long.
func TestStalledReader(t *testing.T) {
	_, r := newLog(slog.LevelInfo)
	address := serve(t, r)
	lines, c := follow(t, address)
	defer c.Close()
	lines.Buffer(nil, 2*MaximumRecord)
	await(t, lines, "200 OK")
	record := []byte(`{"event":"big","x":"` + strings.Repeat("x", 32<<10) + `"}`)
	for range 2000 { // 64 MB: more than a connection takes
		if _, err := r.Write(record); err != nil {
			t.Fatal(err)
		}
	}
	await(t, lines, `{"lost":`)
	await(t, lines, "id: "+r.id(2000))
	stalled, other := follow(t, address)
	defer other.Close()
	await(t, stalled, "200 OK")
	for range 2000 {
		_, _ = r.Write(record)
	}
	r.Close()
	if r.readers != 0 {
		t.Errorf("%d readers are left", r.readers)
	}
}

// TestReaderLeaves: a reader that goes gives its place back without an event.
func TestReaderLeaves(t *testing.T) {
	_, r := newLog(slog.LevelInfo)
	address := serve(t, r)
	for range 2 * MaximumReaders {
		lines, c := follow(t, address)
		await(t, lines, "200 OK")
		c.Close()
		for left := false; !left; time.Sleep(time.Millisecond) {
			r.mu.Lock()
			left = r.readers == 0
			r.mu.Unlock()
		}
	}
}
