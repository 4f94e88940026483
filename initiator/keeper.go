package initiator

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/viablk/viablk/internal/block"
	"github.com/viablk/viablk/internal/wire"
)

// keeper keeps a disk while its target is away: it ends the session that lost a
// connection, and begins another one when the target is back. The queues wait
// meanwhile and then send again what was not answered, see absence.
//
// That is safe because a target gives a disk to one writer at a time: it opens the
// disk to the new session when nothing of the old one is in the disk any more, so
// that a late write of the old session never meets one of the new. A target that was
// killed took its writes along.
type keeper struct {
	device *Device
	quit   context.Context // ended by stop
	cancel context.CancelFunc
	ended  chan struct{} // closed when routineKeep has ended

	mu      sync.Mutex
	session *session      // the present one, or the last
	news    chan struct{} // closed when what is guarded here changes
	losses  uint64        // of sessions
	since   time.Time     // the last loss, while there is no other session
	failure error         // there will be no session any more
}

// changedError is why a disk that is back is not the one that went away.
type changedError struct{ what string }

func (e *changedError) Error() string { return "the target is back, but " + e.what }

func newKeeper(d *Device, s *session) *keeper {
	k := &keeper{
		device: d, session: s, ended: make(chan struct{}), news: make(chan struct{}),
	}
	k.quit, k.cancel = context.WithCancel(context.Background())
	return k
}

// stop ends the keeper; the session is the caller's to close.
func (k *keeper) stop() {
	k.cancel()
	<-k.ended
}

// current returns the session, which may have ended, and why there will be no other,
// if that is so.
func (k *keeper) current() (*session, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.session, k.failure
}

// await returns a session that lives, and is not the one that the caller lost.
func (k *keeper) await(ctx context.Context, lost *session) (*session, error) {
	for {
		k.mu.Lock()
		s, failure, news := k.session, k.failure, k.news
		k.mu.Unlock()
		if failure != nil {
			return nil, failure
		}
		if s != lost && s.err() == nil {
			return s, nil
		}
		select {
		case <-news:
		case <-k.ended:
			return nil, errClosed
		case <-ctx.Done():
			return nil, fmt.Errorf("the target is away: %w", context.Cause(ctx))
		}
	}
}

// report adds what the keeper knows to a status.
func (k *keeper) report(st *Status) {
	k.mu.Lock()
	defer k.mu.Unlock()
	st.Losses = k.losses
	if !k.since.IsZero() {
		st.Connected, st.Away = false, time.Since(k.since).Seconds()
	}
	if k.failure != nil {
		st.Connected, st.Error = false, k.failure.Error()
	}
}

// change changes what is guarded, and tells who waits for it.
func (k *keeper) change(change func()) {
	k.mu.Lock()
	defer k.mu.Unlock()
	change()
	close(k.news)
	k.news = make(chan struct{})
}

// routineKeep replaces sessions until stop, or until the disk is not the same.
func (k *keeper) routineKeep() {
	defer close(k.ended)
	log := k.device.cfg.Log
	for {
		s, _ := k.current()
		select {
		case <-k.quit.Done():
			return
		case <-s.ended:
		case <-s.lost:
		}
		began := time.Now()
		log.Warn("the target is lost: requests wait for it", "host", k.device.cfg.Host, "timeout", k.device.cfg.LossTimeout)
		k.change(func() { k.losses, k.since = k.losses+1, began })
		s.superseded.Store(true)
		_ = s.close() // waits until nothing of the session is in the disk, if the target answers
		next, err := k.replace(log)
		switch {
		case k.quit.Err() != nil:
			if next != nil {
				_ = next.close()
			}
			return
		case err != nil:
			log.Error("the disk is lost: requests fail with EIO", "host", k.device.cfg.Host, "error", err)
			k.change(func() { k.failure, k.since = err, time.Time{} })
			return
		}
		k.change(func() { k.session, k.since = next, time.Time{} })
		log.Info("the target is back", "host", k.device.cfg.Host, "away", time.Since(began).Round(time.Millisecond))
	}
}

// firstDelay is the pause after the first attempt; the others last longer, up to
// Config.ReconnectDelay.
const firstDelay = 20 * time.Millisecond

// replace opens the disk again, however long that takes. It fails if the disk is
// another one, or has lost data.
func (k *keeper) replace(log *slog.Logger) (*session, error) {
	cfg := &k.device.cfg
	for delay := min(firstDelay, cfg.ReconnectDelay); ; delay = min(2*delay, cfg.ReconnectDelay) {
		ctx, cancel := context.WithTimeout(k.quit, cfg.Timeout)
		s, err := openDisk(ctx, *cfg)
		cancel()
		if err == nil {
			if err = k.device.same(&s.export); err == nil {
				return s, nil
			}
			return nil, errors.Join(err, s.close())
		}
		log.Debug("the target is away", "host", cfg.Host, "error", err)
		select {
		case <-k.quit.Done():
			return nil, errClosed
		case <-time.After(delay):
		}
	}
}

// same reports whether a disk is the one that was attached, as it was left.
func (d *Device) same(a *wire.OpenResponse) error {
	features := block.Features(a.Features) & block.KnownFeatures
	missing, i := d.info.Features&^features, d.Info()
	switch {
	case a.ExportUUID != d.export.ExportUUID:
		return &changedError{"serves another disk under this name, or has lost what was in memory"}
	case int64(a.Size) < i.Size:
		return &changedError{fmt.Sprintf("the disk has %d bytes and had %d", a.Size, i.Size)}
	case a.MinimumBlock != i.MinimumBlock:
		return &changedError{fmt.Sprintf("the disk has blocks of %d bytes and had those of %d", a.MinimumBlock, i.MinimumBlock)}
	case missing&^(block.Rotational|block.ReadOnly) != 0:
		return &changedError{fmt.Sprintf("the disk can do less than before: features %#x are missing", uint32(missing))}
	case features&block.ReadOnly != i.Features&block.ReadOnly:
		return &changedError{"the disk may be written or not, which was otherwise"}
	case a.Verifier == d.verifier:
		return nil
	case d.dirty():
		return &changedError{"its machine was started again, and writes that were not flushed may be lost"}
	}
	d.verifier = a.Verifier
	return nil
}
