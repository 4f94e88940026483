package bench

import (
	"time"

	"github.com/viablk/viablk/via"
)

// postRate measures what sends cost the processor that posts them: the posts
// and their doorbell, and the polls that take the completions. Waiting for the
// peer's credits does not count.
func (s *session) postRate(x Case) (sample, error) {
	out := sample{ops: s.cfg.ops(x), arrived: 1}
	sends := depth(x, batch)
	sh := shape{VIs: x.VIs, Sends: sends, SendSize: x.Size, Receives: credits}
	st := step{Role: consume, Size: x.Size, Receives: 4 * sends}
	err := s.with(st, sh, x.Wait, func(c *circuit) error {
		if s.cfg.Level != via.UnreliableDelivery {
			c.allow(st.Receives)
		}
		if _, _, err := c.postRate(max(1, warm(x, out.ops)/batch)); err != nil {
			return err
		}
		batches := max(1, out.ops/batch)
		out.ops = batches * batch
		var posting, reaping time.Duration
		var err error
		out.counters, err = s.count(c, out.ops, func() error {
			posting, reaping, err = c.postRate(batches)
			return err
		})
		out.post = perOp(posting, out.ops)
		out.time = perOp(posting+reaping, out.ops)
		return err
	})
	return out, err
}

// postRate posts batches and returns the time of the posts with their
// doorbells, and that of the polls until the batch has completed.
func (c *circuit) postRate(batches int) (posting, reaping time.Duration, err error) {
	streams, next := c.streams, 0
	for range batches {
		for !c.ready(next) {
			if err := c.finish(); err != nil {
				return 0, 0, err
			}
		}
		from, want := next, c.sent+batch
		start := time.Now()
		for range batch {
			l := &streams[next]
			l.credit--
			if err := l.stage(); err != nil {
				return 0, 0, err
			}
			if next++; next == len(streams) {
				next = 0
			}
		}
		c.ring(from, min(batch, len(streams)))
		posted := time.Since(start)
		for c.sent < want {
			if err := c.finish(); err != nil {
				return 0, 0, err
			}
		}
		posting += posted
		reaping += time.Since(start) - posted
	}
	return posting, reaping, nil
}

// ready reports whether a batch can be posted from stream next on.
func (c *circuit) ready(next int) bool {
	each := (batch + len(c.streams) - 1) / len(c.streams)
	for range min(batch, len(c.streams)) {
		l := &c.streams[next]
		if l.credit < each || int(l.posted-l.sent)+each > len(l.out) {
			return false
		}
		if next++; next == len(c.streams) {
			next = 0
		}
	}
	return true
}
