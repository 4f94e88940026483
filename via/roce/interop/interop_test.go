package interop

import (
	"context"
	"errors"
	"path/filepath"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/viablk/viablk/via"
	"github.com/viablk/viablk/via/shm"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// between runs two roles against each other, each on a separate end with memory
// of a number of bytes.
func between(t *testing.T, bytes int, receives func(*End) []*via.Work, passive, active func(context.Context, *End, []*via.Work) error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	host := filepath.Join(t.TempDir(), "s")
	p := shm.New(shm.Options{})
	run := func(connect func(*End, ...*via.Work) error, role func(context.Context, *End, []*via.Work) error) error {
		e, err := Open(p, "", bytes)
		if err != nil {
			return err
		}
		posted := receives(e)
		if err = connect(e, posted...); err == nil {
			err = role(ctx, e, posted)
		}
		return errors.Join(err, e.Close())
	}
	listens, ended := make(chan struct{}), make(chan error, 1)
	go func() {
		ended <- run(func(e *End, r ...*via.Work) error {
			return e.Accept(ctx, host, func() { close(listens) }, r...)
		}, passive)
	}()
	select {
	case <-listens:
	case err := <-ended:
		t.Fatal(err)
	}
	err := run(func(e *End, r ...*via.Work) error { return e.Connect(ctx, host, r...) }, active)
	if err != nil {
		cancel()
	}
	if err = errors.Join(err, <-ended); err != nil {
		t.Error(err)
	}
}

func oneOffer(e *End) []*via.Work { return []*via.Work{e.OfferReceive()} }

func TestRping(t *testing.T) {
	for _, size := range []int{64, 3001} {
		between(t, RpingMemory(size), oneOffer,
			func(ctx context.Context, e *End, r []*via.Work) error {
				return e.RpingServe(ctx, r[0], 20, size)
			},
			func(ctx context.Context, e *End, r []*via.Work) error { return e.RpingAsk(ctx, r[0], 20, size) })
	}
}

func TestRpingDetectsCorruption(t *testing.T) {
	const size = 256
	noticed := make(chan error, 1)
	between(t, RpingMemory(size), oneOffer,
		func(ctx context.Context, e *End, r []*via.Work) error {
			var goOn *via.Work // the server neither reads nor writes
			for range 2 {
				sent := []*via.Work{}
				if goOn != nil {
					sent = append(sent, goOn)
				}
				if err := e.awaitMessage(ctx, r[0], sent...); err != nil {
					return err
				}
				goOn = e.Work(via.OpSend, offerOut, offerSize)
				if err := e.Post(goOn); err != nil {
					return err
				}
			}
			for {
				if _, err := e.Wait(ctx); errors.Is(err, ErrEnded) {
					return nil
				} else if ctx.Err() != nil {
					return err
				}
			}
		},
		func(ctx context.Context, e *End, r []*via.Work) error {
			noticed <- e.RpingAsk(ctx, r[0], 1, size)
			return nil
		})
	if err := <-noticed; err == nil {
		t.Error("the client accepts a server that wrote nothing")
	}
}

func TestPingPong(t *testing.T) {
	for _, size := range []int{0, 1, 4096, 20_000} {
		receives := func(e *End) []*via.Work { return e.PingPongReceives(size) }
		role := func(first bool) func(context.Context, *End, []*via.Work) error {
			return func(ctx context.Context, e *End, r []*via.Work) error { return e.PingPong(ctx, r, 200, size, first) }
		}
		between(t, PingPongMemory(size)+4096, receives, role(false), role(true))
	}
}
