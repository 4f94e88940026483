package main

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"regexp"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/viablk/viablk/config"
	clients "github.com/viablk/viablk/internal/access"
	"github.com/viablk/viablk/internal/nbd"
	"github.com/viablk/viablk/internal/nbdkernel"
	"github.com/viablk/viablk/target"
)

// recorder notes what happened in which order.
type recorder struct {
	mu    sync.Mutex
	notes []string
}

func (r *recorder) note(s string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.notes = append(r.notes, s)
}

// obedient is a part that serves until it is drained or cut off.
func (r *recorder) obedient(name string) part {
	drained := make(chan struct{})
	return part{
		name: name,
		serve: func(ctx context.Context) error {
			select {
			case <-drained:
				return nil
			case <-ctx.Done():
			}
			select {
			case <-drained:
				return nil
			default:
				r.note(name + " cut off")
				return context.Cause(ctx)
			}
		},
		drain: func(context.Context) error {
			r.note(name + " drained")
			close(drained)
			return nil
		},
	}
}

// unfinished is a part with a request that never finishes.
func unfinished(draining chan<- struct{}) part {
	return part{
		name:  "stubborn",
		serve: func(ctx context.Context) error { <-ctx.Done(); return context.Cause(ctx) },
		drain: func(ctx context.Context) error {
			close(draining)
			<-ctx.Done()
			return context.Cause(ctx)
		},
	}
}

func newTestService(t *testing.T, timeout time.Duration) *service {
	t.Helper()
	c := config.Default()
	c.DrainTimeout = timeout
	s := new(app).newService(c, slog.New(slog.DiscardHandler), new(slog.LevelVar))
	s.abandon = func(err error) { t.Errorf("abandoned: %v", err) }
	t.Cleanup(s.release)
	return s
}

func TestPartsDrainInReverseOrder(t *testing.T) {
	for name, end := range map[string]func(s *service, done chan struct{}){
		"signal": func(s *service, _ chan struct{}) { s.signals <- syscall.SIGTERM },
		"done":   func(_ *service, done chan struct{}) { close(done) },
	} {
		t.Run(name, func(t *testing.T) {
			s := newTestService(t, waitTimeout)
			var r recorder
			s.start(r.obedient("first"))
			s.start(part{name: "end only", drain: func(context.Context) error { r.note("end only drained"); return nil }})
			s.start(r.obedient("last"))
			done := make(chan struct{})
			end(s, done)
			if err := s.wait(done); err != nil {
				t.Fatal(err)
			}
			if want := []string{"last drained", "end only drained", "first drained"}; !slices.Equal(r.notes, want) {
				t.Errorf("got %q, want %q", r.notes, want)
			}
		})
	}
}

// A client that does not leave one part keeps no client of another.
func TestPartsStartedTogetherDrainTogether(t *testing.T) {
	s := newTestService(t, waitTimeout)
	met := make(chan struct{})
	s.start(
		part{name: "first", drain: func(ctx context.Context) error {
			select {
			case met <- struct{}{}:
				return nil
			case <-ctx.Done():
				return context.Cause(ctx)
			}
		}},
		part{name: "second", drain: func(ctx context.Context) error {
			select {
			case <-met:
				return nil
			case <-ctx.Done():
				return context.Cause(ctx)
			}
		}},
	)
	s.signals <- syscall.SIGTERM
	if err := s.wait(nil); err != nil {
		t.Error(err)
	}
}

// SIGHUP ends a process only if it has nothing to read again.
func TestHangup(t *testing.T) {
	s := newTestService(t, waitTimeout)
	reloads, done := 0, make(chan struct{})
	s.reload = func(context.Context) error {
		if reloads++; reloads == 3 {
			close(done)
			return nil
		}
		s.hangups <- syscall.SIGHUP
		return nil
	}
	s.hangups <- syscall.SIGHUP
	if err := s.wait(done); err != nil || reloads != 3 {
		t.Errorf("%d reloads, %v", reloads, err)
	}
	s = newTestService(t, waitTimeout)
	s.hangups <- syscall.SIGHUP
	if err := s.wait(nil); err != nil {
		t.Error(err)
	}
}

// Each hour a process reads again what it has to, and nothing else happens.
func TestHour(t *testing.T) {
	s := newTestService(t, waitTimeout)
	hours, done := make(chan time.Time, 1), make(chan struct{})
	s.hours = hours
	reloads := 0
	s.hourly = func() {
		if reloads++; reloads == 3 {
			close(done)
			return
		}
		hours <- time.Time{}
	}
	hours <- time.Time{}
	if err := s.wait(done); err != nil || reloads != 3 {
		t.Errorf("%d reloads, %v", reloads, err)
	}
}

// A second signal cuts requests off, unless it comes with the first: that is
// how timeout(1) ends a process.
func TestSecondSignalCutsOff(t *testing.T) {
	s := newTestService(t, time.Hour)
	now, calls := time.Unix(0, 0), 0
	s.clock = func() time.Time {
		calls++ // as the drain begins, at the same signal, at the second one
		if calls == 3 {
			now = now.Add(sameSignal)
		}
		return now
	}
	draining := make(chan struct{})
	s.start(unfinished(draining))
	s.signals <- syscall.SIGTERM
	go func() {
		<-draining
		s.signals <- syscall.SIGTERM
		s.signals <- syscall.SIGTERM
	}()
	if err := s.wait(nil); !errors.Is(err, errSecondSignal) || calls != 3 {
		t.Errorf("got %v after %d readings of the clock, want %v after 3", err, calls, errSecondSignal)
	}
}

func TestDrainTimesOut(t *testing.T) {
	s := newTestService(t, 0)
	s.start(unfinished(make(chan struct{})))
	s.signals <- syscall.SIGTERM
	if err := s.wait(nil); !errors.Is(err, errDrainTimeout) {
		t.Errorf("got %v, want %v", err, errDrainTimeout)
	}
}

func TestHangingPartIsAbandoned(t *testing.T) {
	s := newTestService(t, 0)
	var abandoned error
	s.abandon = func(err error) { abandoned = err }
	hang := make(chan struct{})
	defer close(hang)
	s.start(part{
		name:  "hanging",
		serve: func(context.Context) error { <-hang; return nil },
		drain: func(context.Context) error { <-hang; return nil },
	})
	s.signals <- syscall.SIGTERM
	if err := s.wait(nil); !errors.Is(err, errDrainTimeout) || !errors.Is(abandoned, errDrainTimeout) {
		t.Errorf("got %v, abandoned for %v", err, abandoned)
	}
}

func TestFailureOfOnePartEndsAll(t *testing.T) {
	s := newTestService(t, waitTimeout)
	var r recorder
	s.start(r.obedient("other"))
	s.start(part{name: "bad", serve: func(context.Context) error { return syscall.EADDRINUSE }})
	err := s.wait(nil)
	if !errors.Is(err, syscall.EADDRINUSE) || err.Error() != "bad: address already in use" {
		t.Errorf("got %v", err)
	}
	if want := []string{"other cut off"}; !slices.Equal(r.notes, want) {
		t.Errorf("got %q, want %q", r.notes, want)
	}
}

// TestLogFormats: a value with a name is logged by it, in both formats, and the
// lines have the same attributes.
func TestLogFormats(t *testing.T) {
	for format, want := range map[string]string{
		"text": `level=INFO msg=x event=e device=/dev/nbd3 identity="uid 4294967294" error=EOF requests=3 took=1.5s`,
		"json": `"level":"INFO","msg":"x","event":"e","device":"/dev/nbd3","identity":"uid 4294967294","error":"EOF","requests":3,"took":1500000000}`,
	} {
		var out bytes.Buffer
		log := newLog(config.Log{Level: "info", Format: format}, &out)
		log.Debug("not at this level", "event", "e")
		log.Info("x", "event", "e", "device", nbdkernel.Node(3), "identity", clients.Local(1<<32-2), "error", io.EOF, "requests", 3, "took", 1500*time.Millisecond)
		if got := out.String(); !strings.Contains(got, want) || strings.Count(got, "\n") != 1 {
			t.Errorf("%s: %s", format, got)
		}
	}
}

// TestLogOnTerminal: lines on a terminal have the time of day, and all others
// the date and zone too.
func TestLogOnTerminal(t *testing.T) {
	master, err := os.OpenFile("/dev/ptmx", os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer master.Close()
	n, err := unix.IoctlGetInt(int(master.Fd()), unix.TIOCGPTN)
	if err == nil {
		err = unix.IoctlSetPointerInt(int(master.Fd()), unix.TIOCSPTLCK, 0)
	}
	if err != nil {
		t.Fatal(err)
	}
	terminal, err := os.OpenFile(fmt.Sprintf("/dev/pts/%d", n), os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer terminal.Close()
	t.Setenv("JOURNAL_STREAM", "")
	var plain bytes.Buffer
	lines := bufio.NewReader(master)
	for format, want := range map[string]string{
		"text": `^time=\d\d:\d\d:\d\d\.\d{3} level=INFO msg=x event=e\r\n$`,
		"json": `^{"time":"20\d\d-\d\d-\d\dT[^"]+","level":"INFO",`,
	} {
		newLog(config.Log{Level: "info", Format: format}, terminal).Info("x", "event", "e")
		line, err := lines.ReadBytes('\n') // a terminal passes on parts of one
		if err != nil || !regexp.MustCompile(want).Match(line) {
			t.Errorf("%s: %q, %v", format, line, err)
		}
	}
	newLog(config.Log{Level: "info", Format: "text"}, &plain).Info("x", "event", "e")
	if !regexp.MustCompile(`^time=20\d\d-\d\d-\d\dT\S+ level=INFO msg=x event=e\n$`).Match(plain.Bytes()) {
		t.Errorf("elsewhere: %q", &plain)
	}
}

// TestDrainingCounts: the line of a signal says how many requests are in
// flight, over all faces.
func TestDrainingCounts(t *testing.T) {
	var out bytes.Buffer
	s := &service{
		log: slog.New(slog.NewTextHandler(&out, nil)), timeout: time.Minute, signals: make(chan os.Signal, 2), ending: make(chan struct{}), clock: time.Now,
		report: func() processStatus {
			return processStatus{NBD: &nbd.Status{InFlight: 2}, Targets: []target.Status{{InFlight: 1}, {InFlight: 4}}}
		},
	}
	s.ctx, s.cancel = context.WithCancelCause(context.Background())
	s.signals <- syscall.SIGTERM
	if err := s.wait(nil); err != nil {
		t.Error(err)
	}
	if got := out.String(); !strings.Contains(got, "event=draining signal=terminated requests=7 timeout=1m0s") {
		t.Error(got)
	}
}
