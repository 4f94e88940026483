package main

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/viablk/viablk/config"
	"github.com/viablk/viablk/initiator"
	"github.com/viablk/viablk/internal/backoff"
)

// dialAttached opens the disk of an attach. While a device, or clients of a
// socket, wait for it, it tries until they would wait no longer.
func dialAttached(ctx context.Context, svc *service, u config.URI, c config.Attach, life *lifeFiles, log *slog.Logger, trace *tracer) (*remoteDisk, error) {
	dial := func() (*remoteDisk, error) { return dialRemote(ctx, u, c, life, log, trace) }
	if !life.reattaching() {
		return dial()
	}
	remote, err := attempts{
		timeout: c.CtrlLossTimeout, delay: c.ReconnectDelay, now: time.Now, log: log,
		wait: func(d time.Duration) bool {
			select {
			case <-time.After(d):
				return true
			case <-svc.signals:
			case <-ctx.Done():
			}
			return false
		},
	}.until(dial)
	if refused := new(initiator.ContinueError); errors.As(err, &refused) {
		err = fmt.Errorf("%w: %s", err, life.anew())
	}
	return remote, err
}

// attempts is the attempts to open a disk that clients wait for.
type attempts struct {
	timeout time.Duration // of all
	delay   time.Duration // the longest pause
	now     func() time.Time
	wait    func(time.Duration) bool // false: the process is to end
	log     *slog.Logger
}

// until dials until that succeeds, or trying again does not help.
func (a attempts) until(dial func() (*remoteDisk, error)) (*remoteDisk, error) {
	deadline := a.now().Add(a.timeout)
	for pauses := (backoff.Backoff{Random: rand.Reader}); ; {
		remote, err := dial()
		left := deadline.Sub(a.now())
		if err == nil || exitCode(err) != exitTryAgain || left <= 0 {
			return remote, err
		}
		a.log.Warn("clients of the process before wait for the target", "event", "reattach_waits", "error", err)
		if !a.wait(min(pauses.Next(a.delay), left)) {
			return nil, err
		}
	}
}
