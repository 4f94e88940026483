package nbdclient

import (
	"context"
	"sync/atomic"
	"time"
)

// Bounds of the pause between two attempts to connect.
const (
	firstPause = 10 * time.Millisecond
	lastPause  = time.Second
)

// redial is the reconnect of a queue that lost its connection. Its goroutine
// opens the next one; the owner of the queue polls for it.
type redial struct {
	cancel  context.CancelFunc
	ended   chan struct{} // closed when the goroutine has ended; nil without
	result  atomic.Pointer[redialed]
	cause   error     // of the loss
	until   time.Time // requests wait until then; zero is without end
	expired bool      // until has passed, or the disk has failed
}

// redialed is a connection, or why there will be none.
type redialed struct {
	connection *connection
	err        error
}

// begin starts to connect. Requests wait for it for Config.Reconnect.
func (r *redial) begin(q *queue, cause error) {
	ctx, cancel := context.WithCancel(context.Background())
	r.cancel, r.ended, r.cause = cancel, make(chan struct{}), cause
	r.until = time.Now().Add(q.device.cfg.Reconnect)
	go r.routineConnect(ctx, q.device, q.bell)
}

// routineConnect connects until it has a connection, or the disk has failed.
func (r *redial) routineConnect(ctx context.Context, d *Device, b *bell) {
	defer close(r.ended)
	var result redialed
	for pause := firstPause; ; pause = min(2*pause, lastPause) {
		result.connection, result.err = d.connect(ctx)
		if result.err == nil || d.failure() != nil || ctx.Err() != nil {
			break
		}
		d.cfg.Log.Debug("reconnect failed", "event", "reconnect_failed", "server", d.cfg.Name, "error", result.err)
		timer := time.NewTimer(pause)
		select {
		case <-timer.C:
		case <-ctx.Done():
		}
		timer.Stop()
	}
	r.result.Store(&result)
	b.ring()
}

// poll has the queue use the new connection, or gives up its requests.
func (r *redial) poll(q *queue) {
	if r.ended == nil {
		return
	}
	result := r.result.Load()
	if result == nil {
		if !r.expired && !time.Now().Before(r.until) {
			r.expired = true
			q.device.cfg.Log.Error("the server did not return in time: requests fail with EIO until it does",
				"event", "loss_timeout", "server", q.device.cfg.Name, "timeout", q.device.cfg.Reconnect)
			q.abandon()
		}
		return
	}
	r.join()
	err := result.err
	if err == nil {
		if err = q.connect(result.connection); err != nil {
			result.connection.opened.Stream.Close()
			err = q.device.fail(err)
		}
	}
	if err != nil {
		r.fail(err)
		q.abandon()
		return
	}
	r.expired = false
	q.device.cfg.Log.Info("the server is back", "event", "server_back", "server", q.device.cfg.Name)
}

// arm shortens a sleep to the end of the wait.
func (r *redial) arm(d time.Duration) time.Duration {
	if r.ended == nil || r.expired {
		return d
	}
	left := max(time.Until(r.until), time.Nanosecond)
	if d < 0 || left < d {
		return left
	}
	return d
}

// fail ends all waiting for good.
func (r *redial) fail(cause error) { r.expired, r.cause = true, cause }

// err is the answer to requests that do not wait.
func (r *redial) err(d *Device) error {
	if r.ended == nil {
		return failed(r.cause)
	}
	return &lostError{d.cfg.Name + " is away", r.cause}
}

// join waits for the end of the goroutine.
func (r *redial) join() {
	r.cancel()
	<-r.ended
	r.ended = nil
	r.result.Store(nil)
}

// stop ends the goroutine, and drops its connection.
func (r *redial) stop() {
	if r.ended == nil {
		return
	}
	r.cancel()
	<-r.ended
	if result := r.result.Load(); result != nil && result.connection != nil {
		disconnect(result.connection.opened.Stream, result.connection.opened.Extended)
	}
	r.ended = nil
	r.result.Store(nil)
}
