package transfer

import (
	"context"

	"github.com/viablk/viablk/internal/eventfd"
)

// waker is an eventfd that is readable once a context has ended.
type waker struct {
	fd   int
	stop func() bool
	rung chan struct{}
}

func newWaker(ctx context.Context) (*waker, error) {
	fd, err := eventfd.New()
	if err != nil {
		return nil, err
	}
	w := &waker{fd: fd, rung: make(chan struct{})}
	w.stop = context.AfterFunc(ctx, func() {
		eventfd.Ring(fd)
		close(w.rung)
	})
	return w, nil
}

// close closes the eventfd.
func (w *waker) close() error {
	if !w.stop() {
		<-w.rung
	}
	return eventfd.Close(w.fd)
}
